"""The inventory of a captured host: a two-socket server with disks and network cards."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from plugins.base import NoSettings, PluginContext
from plugins.inventory.nvidia import nvlinks_between
from plugins.inventory.reader import InventoryPlugin, InventorySource
from protocol.inventory import DiskInfo, GPUInfo, Inventory, NICInfo, NVLinkInfo
from tests.unit.plugins.conftest import CAPTURES, FIRST_AT

HOST = CAPTURES / "inventory"


def look(root: Path = HOST) -> Inventory:
    return InventorySource(proc=root / "proc", sys=root / "sys", with_nvidia=False).read()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The captured host, whose files may be changed."""
    return Path(shutil.copytree(HOST, tmp_path / "host", symlinks=True))


def test_the_host_is_named_with_its_maker_and_kernel() -> None:
    inventory = look()
    assert (inventory.hostname, inventory.kernel) == ("dgx-01", "5.15.0-1063-nvidia")
    assert (inventory.vendor, inventory.product) == ("NVIDIA", "DGXH100")


def test_what_a_maker_did_not_fill_in_is_left_empty() -> None:
    assert look().serial == ""


def test_threads_cores_and_sockets_are_counted() -> None:
    inventory = look()
    assert (inventory.cpu_count, inventory.cpu_core_count, inventory.cpu_socket_count) == (8, 4, 2)
    assert inventory.cpu_model == "Intel(R) Xeon(R) Platinum 8480CL"
    assert inventory.memory_bytes == 2113394016 * 1024


def test_disks_are_whole_devices_only() -> None:
    assert look().disks == [
        DiskInfo(name="nvme0n1", size_bytes=3750748848 * 512, model="SAMSUNG MZWLO1T9HCJR-00A07"),
        DiskInfo(
            name="sda", size_bytes=7814037168 * 512, model="ST4000NM000A-2HZ", is_rotational=True
        ),
    ]


def test_network_cards_are_listed_with_their_speed_which_is_0_while_the_line_is_down() -> None:
    ethernet = [nic for nic in look().nics if nic.driver == "ice"]
    assert ethernet == [
        NICInfo(
            name="ens1f0",
            address="b8:3f:d2:11:22:33",
            driver="ice",
            speed_bits_per_second=25_000_000_000,
        ),
        NICInfo(name="ens1f1", address="b8:3f:d2:11:22:34", driver="ice"),
    ]


def test_infiniband_is_listed_once_with_or_without_a_network_interface() -> None:
    infiniband = [nic for nic in look().nics if nic.driver == "mlx5_core"]
    assert [(nic.name, nic.speed_bits_per_second) for nic in infiniband] == [
        ("ibp24s0", 400_000_000_000),
        ("mlx5_1", 400_000_000_000),
    ]


def test_parts_of_a_card_that_are_lent_to_guests_are_no_cards() -> None:
    assert "ens1f0v0" not in {nic.name for nic in look().nics}


def test_a_disk_that_is_plugged_in_shows_at_the_next_look(host: Path) -> None:
    source = InventorySource(proc=host / "proc", sys=host / "sys", with_nvidia=False)
    before = {disk.name for disk in source.read().disks}
    shutil.copytree(host / "sys/block/sda", host / "sys/block/sdc")
    assert {disk.name for disk in source.read().disks} - before == {"sdc"}


def test_amd_gpus_are_listed_with_the_uuid_of_their_samples(host: Path) -> None:
    shutil.copytree(CAPTURES / "amdgpu/mi300x/sys", host / "sys", symlinks=True, dirs_exist_ok=True)
    assert look(host).gpus == [
        GPUInfo(
            index=0,
            uuid="AMD-a1f3c9d2e47b8056",
            model="AMD Instinct MI300X OAM",
            memory_bytes=206141652992,
            power_limit_max_watts=750.0,
            pci_address="0000:c1:00.0",
            pcie_generation=5,
            pcie_generation_max=5,
            pcie_width=16,
            pcie_width_max=16,
            serial="692251001124",
            vbios_version="113-M3000100-102",
        )
    ]


def test_a_host_that_shows_nothing_still_has_an_inventory(tmp_path: Path) -> None:
    inventory = look(tmp_path)
    assert inventory.hostname
    assert inventory.cpu_count >= 1
    assert (inventory.disks, inventory.nics, inventory.gpus, inventory.memory_bytes) == (
        [],
        [],
        [],
        0,
    )


def test_the_plugin_publishes_what_it_finds_and_counts_it() -> None:
    published: list[Inventory] = []
    context = PluginContext(
        proc=HOST / "proc", sys=HOST / "sys", publish_inventory=published.append
    )
    plugin = InventoryPlugin(NoSettings(), replace(context))
    (point,) = plugin.gather(FIRST_AT)
    plugin.close()
    assert published == [look()]
    assert point.measurement == "inventory"
    assert point.fields == {
        "cpu_count": 8,
        "memory_bytes": 2113394016 * 1024,
        "gpu_count": 0,
        "disk_count": 2,
        "nic_count": 4,
    }


def gpu(uuid: str, *remotes: str, down: int = 0) -> GPUInfo:
    """Return a GPU with an active link to each of these, the first `down` of which are down."""
    links = [
        NVLinkInfo(link=number, is_active=number >= down, remote=remote)
        for number, remote in enumerate(remotes)
    ]
    return GPUInfo(index=0, uuid=uuid, model="", memory_bytes=0, nvlinks=links)


def test_gpus_on_a_switch_reach_each_other_by_the_links_that_both_have_up() -> None:
    first, second = gpu("a", *["switch"] * 18), gpu("b", *["switch"] * 18, down=2)
    assert nvlinks_between(first, second) == 16


def test_gpus_that_are_wired_directly_have_the_links_between_them() -> None:
    first, second = gpu("a", "b", "b", "c"), gpu("b", "a", "a")
    assert nvlinks_between(first, second) == 2


def test_gpus_without_nvlink_have_none() -> None:
    assert nvlinks_between(gpu("a"), gpu("b", "switch")) == 0
