"""Space of file systems: which mounts count, what is read, and servers that do not answer."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest

from plugins.base import PluginContext
from plugins.disk.mounts import RemoteReader, wanted_mounts
from plugins.disk.reader import DiskConfig, DiskPlugin, file_system_fields
from tests.fixtures.polling import eventually
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT, SECOND_AT, CapturedHost

DGX = (CAPTURES / "proc_dgx" / "self" / "mountinfo").read_bytes()
A_FILE_SYSTEM = os.statvfs_result((4096, 4096, 1000, 400, 300, 500, 200, 200, 0, 255))


class HungServer:
    """Answers for every mount point but one, which waits until the server is back."""

    def __init__(self, hung: bytes) -> None:
        self.hung = hung
        self.is_back = Event()

    def statvfs(self, path: bytes) -> os.statvfs_result:
        if path == self.hung:
            self.is_back.wait()
        return A_FILE_SYSTEM


@pytest.fixture
def server() -> Iterator[HungServer]:
    server = HungServer(b"/home")
    yield server
    server.is_back.set()


def mounts(config: DiskConfig | None = None) -> dict[str, str]:
    return {
        mount.mount: mount.device for mount in wanted_mounts(DGX, (config or DiskConfig()).includes)
    }


def mountinfo(*mount_points: Path, file_system: str = "ext4 /dev/sda1") -> str:
    return "".join(
        f"{number} 1 8:{number} / {path} rw,relatime - {file_system} rw\n"
        for number, path in enumerate(mount_points, start=1)
    )


def test_disks_and_network_file_systems_of_a_dgx_are_read_once_each() -> None:
    assert mounts() == {
        "/": "/dev/nvme0n1p2",
        "/home": "filer.acme.test:/export/home",
        "/mnt/hidden": "/dev/mapper/vg-new",
        "/mnt/old scratch": "192.0.2.20@o2ib:/scratch",
        "/raid": "/dev/md1",
        "/tank": "tank",
        "/tank/models": "tank/models",
    }


def test_network_file_systems_can_be_skipped() -> None:
    assert mounts(DiskConfig(has_remote=False)).keys() == {
        "/",
        "/mnt/hidden",
        "/raid",
        "/tank",
        "/tank/models",
    }


def test_mounts_are_skipped_by_pattern() -> None:
    config = DiskConfig(
        skip_mounts=("/tank*",), skip_devices=("/dev/mapper/*",), skip_file_systems=("lustre",)
    )
    assert mounts(config).keys() == {
        "/",
        "/home",
        "/raid",
        "/boot/efi",
        "/snap/core20/1974",
        "/var/lib/lxcfs",
    }


def test_a_mount_whose_name_is_no_valid_tag_is_skipped() -> None:
    odd = rb"1 0 8:1 / /mnt/a\012b rw - ext4 /dev/sdb rw" + b"\n"
    assert wanted_mounts(odd, DiskConfig().includes) == []


def test_a_file_system_is_counted_as_df_does() -> None:
    # 1000 blocks of 4096 bytes; 400 free, 300 of them for ordinary users; 500 inodes, 200 free.
    assert file_system_fields(A_FILE_SYSTEM) == {
        "total_bytes": 1000 * 4096,
        "used_bytes": 600 * 4096,
        "free_bytes": 300 * 4096,
        "used_percent": pytest.approx(100 * 600 / 900, abs=0.0005),
        "inodes_total": 500,
        "inodes_used": 300,
        "inodes_free": 200,
        "inodes_used_percent": 60,
    }


def test_a_file_system_without_inodes_has_none() -> None:
    status = os.statvfs_result((4096, 4096, 1000, 400, 400, 0, 0, 0, 0, 255))
    fields = file_system_fields(status)
    assert not [name for name in fields if name.startswith("inodes")]
    assert fields["used_percent"] == pytest.approx(60)


def test_this_hosts_disks_are_read_once() -> None:
    plugin = DiskPlugin(DiskConfig(), PluginContext())
    devices = [point.tags["device"] for point in plugin.gather(FIRST_AT)]
    plugin.close()
    assert len(devices) == len(set(devices))


def test_a_mount_that_is_gone_is_skipped_and_the_others_are_read(
    host: CapturedHost, tmp_path: Path
) -> None:
    host.write("self/mountinfo", mountinfo(tmp_path, tmp_path / "gone"))
    [point] = DiskPlugin(DiskConfig(), host.context).gather(FIRST_AT)
    assert point.tags == {"mount": str(tmp_path), "device": "/dev/sda1"}


def test_the_table_of_mounts_is_read_again_within_a_minute(
    host: CapturedHost, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    plugin = DiskPlugin(DiskConfig(), host.context)
    host.write("self/mountinfo", mountinfo(tmp_path))
    assert len(list(plugin.gather(FIRST_AT))) == 1
    host.write("self/mountinfo", mountinfo(tmp_path, new))
    assert len(list(plugin.gather(FIRST_AT + timedelta(seconds=60)))) == 2
    plugin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system, which needs root")
def test_a_file_system_is_read_as_soon_as_it_is_mounted(tmp_path: Path) -> None:
    plugin = DiskPlugin(DiskConfig(skip_file_systems=()), PluginContext())
    plugin.gather(FIRST_AT)
    mount = [str(shutil.which("mount")), "-t", "tmpfs", "/dev/pretended", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("root may not mount here")
    try:
        after = [point.tags["mount"] for point in plugin.gather(FIRST_AT)]
    finally:
        subprocess.run([str(shutil.which("umount")), str(tmp_path)], check=True)
        plugin.close()
    assert str(tmp_path) in after


def test_remote_file_systems_are_read_after_the_local_ones(
    host: CapturedHost, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    nfs, ext4 = (mountinfo(folder) for folder in folders)
    nfs = nfs.replace("ext4 /dev/sda1", "nfs4 filer:/a").replace("8:1", "0:50")
    host.write("self/mountinfo", nfs + ext4)
    plugin = DiskPlugin(DiskConfig(), host.context)
    points = list(plugin.gather(FIRST_AT))
    assert [point.tags["device"] for point in points] == ["/dev/sda1", "filer:/a"]
    assert len(list(plugin.gather(SECOND_AT))) == 2
    plugin.close()


def test_a_server_that_does_not_answer_costs_one_wait_and_only_its_own_mount(
    server: HungServer,
) -> None:
    reader = RemoteReader(wait_seconds=0.5, statvfs=server.statvfs)
    assert reader.read([b"/data", b"/home", b"/models"]).keys() == {b"/data"}
    assert reader.stuck == [b"/home"]
    assert reader.read([b"/data", b"/home", b"/models"]).keys() == {b"/data", b"/models"}
    reader.close()


def test_a_server_that_is_back_is_read_again(server: HungServer) -> None:
    reader = RemoteReader(wait_seconds=0.5, statvfs=server.statvfs)
    assert reader.read([b"/home"]) == {}
    assert reader.read([b"/home"]) == {}
    server.is_back.set()
    eventually(lambda: reader.stuck == [])
    assert reader.read([b"/home"]).keys() == {b"/home"}
    reader.close()


def test_a_mount_that_cannot_be_read_is_skipped() -> None:
    reader = RemoteReader(wait_seconds=60)
    assert reader.read([b"/nowhere/at/all", b"/"]).keys() == {b"/"}
    reader.close()
