"""Processes on AMD GPUs, from a tree as the kernel makes it.

The files of fdinfo have the keys that the kernel's Documentation/gpu/drm-usage-stats.rst defines,
in the order in which amdgpu_fdinfo.c of Linux 6.8 prints them.
"""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from core.clock import to_ns
from plugins.amdgpu_processes import clients
from plugins.amdgpu_processes.clients import MAX_DESCRIPTORS, read_client
from plugins.amdgpu_processes.reader import SEARCH_EVERY, AMDGPUProcessesPlugin
from plugins.base import PluginContext, PluginUnavailableError
from plugins.gpu_processes.reader import GPUProcessesConfig
from protocol.gpu_processes import GPUProcess
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT

MI300X = "AMD-a1f3c9d2e47b8056"
ADDRESS = "0000:c1:00.0"
CONTAINER = "4f" * 32
TEN_SECONDS = timedelta(seconds=10)
GIBIBYTE = 2**30
FDINFO = """\
pos:\t0
flags:\t02100002
mnt_id:\t26
ino:\t1153
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t{address}
pasid:\t32772
drm-memory-vram:\t{vram} KiB
drm-memory-gtt: \t2048 KiB
drm-memory-cpu: \t0 KiB
amd-memory-visible-vram:\t{vram} KiB
amd-evicted-vram:\t0 KiB
amd-requested-vram:\t{vram} KiB
drm-engine-gfx:\t{gfx} ns
drm-engine-compute:\t{compute} ns
drm-engine-enc:\t5 ns
"""


class Host:
    """The files of a host with an MI300X, and the plugin that reads them."""

    def __init__(self, root: Path, *, skip_uuids: tuple[str, ...] = ()) -> None:
        self.proc = root / "proc"
        self.jobs: dict[str, str] = {}
        self.published: list[GPUProcess] | None = None
        context = PluginContext(
            proc=self.proc,
            sys=root / "sys",
            job_of_container=lambda: self.jobs,
            publish_amd_processes=self._publish,
        )
        self._plugin = AMDGPUProcessesPlugin(GPUProcessesConfig(skip_uuids=skip_uuids), context)

    def _publish(self, processes: list[GPUProcess]) -> None:
        self.published = processes

    def run(self, pid: int, name: str, *, cgroup: str = "/system.slice/x.service") -> None:
        """Add a process without a GPU."""
        folder = self.proc / str(pid)
        for part in ("fd", "fdinfo"):
            (folder / part).mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        (folder / "fd" / "0").symlink_to("/dev/null")

    def open_card(
        self,
        pid: int,
        descriptor: int,
        *,
        client: int,
        vram: int = 0,
        gfx: int = 0,
        compute: int = 0,
    ) -> None:
        """Set what a descriptor of a process says."""
        link = self.proc / str(pid) / "fd" / str(descriptor)
        if not link.is_symlink():
            link.symlink_to("/dev/dri/renderD128")
        text = FDINFO.format(client=client, address=ADDRESS, vram=vram, gfx=gfx, compute=compute)
        (self.proc / str(pid) / "fdinfo" / str(descriptor)).write_text(text)

    def read(self, seconds: float = 0) -> dict[str, dict[str, object]]:
        """Return the fields of each owner."""
        points = list(self._plugin.gather(FIRST_AT + timedelta(seconds=seconds)))
        assert all(
            point.time_ns == to_ns(FIRST_AT + timedelta(seconds=seconds)) for point in points
        )
        assert {point.measurement for point in points} <= {"gpu_process"}
        assert all(point.tags["uuid"] == MI300X for point in points)
        return {
            point.tags.get("job") or point.tags.get("container") or point.tags["owner"]: dict(
                point.fields
            )
            for point in points
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    shutil.copytree(CAPTURES / "amdgpu" / "mi300x", tmp_path / "host", symlinks=True)
    return Host(tmp_path / "host")


def test_processes_have_the_job_or_container_that_they_belong_to(host: Host) -> None:
    host.jobs[CONTAINER] = "0198-job"
    host.run(100, "python3", cgroup=f"/system.slice/docker-{CONTAINER}.scope")
    host.open_card(100, 5, client=13, vram=3 * 2**20, compute=7_000_000_000)
    host.run(200, "Xorg")
    host.open_card(200, 4, client=2, vram=1024, gfx=1)
    host.run(300, "bash")
    assert host.read() == {
        "0198-job": {"processes": 1, "memory_used_bytes": 3 * GIBIBYTE},
        "host": {"processes": 1, "memory_used_bytes": 2**20},
    }
    assert host.published == [
        GPUProcess(
            pid=100,
            name="python3",
            gpu=0,
            uuid=MI300X,
            owner="job",
            memory_bytes=3 * GIBIBYTE,
            job="0198-job",
            container=CONTAINER[:12],
        ),
        GPUProcess(pid=200, name="Xorg", gpu=0, uuid=MI300X, owner="host", memory_bytes=2**20),
    ]


def test_use_is_the_growth_of_the_time_on_engines_between_readings(host: Host) -> None:
    host.run(100, "python3")
    host.open_card(100, 5, client=13, vram=8, gfx=1_000_000_000, compute=2_000_000_000)
    assert "utilization_percent" not in host.read()["host"]
    host.open_card(100, 5, client=13, vram=8, gfx=2_000_000_000, compute=5_500_000_000)
    assert host.read(10)["host"]["utilization_percent"] == 45.0
    host.open_card(100, 5, client=13, vram=8, gfx=90_000_000_000, compute=90_000_000_000)
    assert host.read(20)["host"]["utilization_percent"] == 100.0
    # A process with the same number that begins anew has not run for less than no time.
    host.open_card(100, 5, client=90, vram=8, gfx=1)
    assert host.read(30)["host"]["utilization_percent"] == 0.0


def test_queues_that_the_driver_does_not_count_have_no_use(host: Host) -> None:
    host.run(100, "python3")
    host.open_card(100, 5, client=13, vram=8)
    host.read()
    assert host.read(10)["host"] == {"processes": 1, "memory_used_bytes": 8192}


def test_copies_of_a_descriptor_count_once_and_clients_are_summed(host: Host) -> None:
    host.run(100, "python3")
    for descriptor, client in ((5, 13), (6, 13), (7, 14)):
        host.open_card(100, descriptor, client=client, vram=8)
    assert host.read()["host"] == {"processes": 1, "memory_used_bytes": 2 * 8192}


def test_a_file_that_is_open_only_is_no_use(host: Host) -> None:
    host.run(100, "amd-smi")
    host.open_card(100, 5, client=13)
    assert host.read() == {}
    assert host.published == []


def test_processes_are_searched_from_time_to_time(host: Host) -> None:
    host.run(100, "python3")
    host.read()
    host.open_card(100, 5, client=13, vram=8)
    assert host.read(10) == {}
    assert host.read(SEARCH_EVERY.total_seconds()) != {}
    shutil.rmtree(host.proc / "100")
    assert host.read(SEARCH_EVERY.total_seconds() + 1) == {}


def test_hosts_with_very_many_files_are_searched_up_to_a_limit(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_DESCRIPTORS >= 100_000
    monkeypatch.setattr(clients, "MAX_DESCRIPTORS", 3)
    for pid in range(100, 110):
        host.run(pid, "python3")
        host.open_card(pid, 5, client=pid, vram=8)
    assert 1 <= int(str(host.read()["host"]["processes"])) <= 3


def test_a_card_can_be_skipped(host: Host) -> None:
    host.run(100, "python3")
    host.open_card(100, 5, client=13, vram=8)
    assert Host(host.proc.parent, skip_uuids=(MI300X,)).read() == {}


def test_a_host_without_amd_gpus_has_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(PluginUnavailableError, match="no AMD GPU"):
        Host(tmp_path).read()


@pytest.mark.parametrize(
    ("text", "memory_bytes", "busy_ns"),
    [
        ("drm-resident-vram:\t3 MiB\n", 3 * 2**20, None),
        ("drm-memory-vram:\t4096\n", 4096, None),
        ("drm-engine-compute:\t80 ns\ndrm-engine-capacity-compute:\t4\n", None, 20.0),
        ("drm-memory-vram:\t? KiB\ndrm-engine-gfx:\t-1 ns\n", 0, 0.0),
    ],
)
def test_newer_and_odd_kernels_are_read_as_far_as_they_go(
    text: str, memory_bytes: int | None, busy_ns: float | None
) -> None:
    client = read_client(f"drm-driver:\tamdgpu\ndrm-pdev:\t{ADDRESS}\n{text}")
    assert client is not None
    assert (client.memory_bytes, client.busy_ns) == (memory_bytes, busy_ns)


@pytest.mark.parametrize(
    "text", ["", "drm-driver:\ti915\ndrm-pdev:\t0000:00:02.0\n", "drm-driver:"]
)
def test_other_drivers_are_left_out(text: str) -> None:
    assert read_client(text) is None
