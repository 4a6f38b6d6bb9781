"""The inventory's NVIDIA part through NVIDIA's bindings, on a driver library built for the test."""

from pathlib import Path

import msgspec
import pytest

from protocol.inventory import GPUInfo, Inventory
from tests.fixtures.nvml import NVMLReader, World, reading
from tests.fixtures.nvml_dgx import MIB, world

__all__ = ["world"]


def read(reader: NVMLReader) -> Inventory:
    """Read the plugin; return what it published."""
    [published] = reader.answer()["inventories"]
    return msgspec.convert(published, Inventory)


def look(fake_nvml: Path, world: World, *statements: str) -> Inventory:
    """Return the inventory of a world at the second reading, when constants are from the cache."""
    world.add(*statements)
    with reading("inventory", fake_nvml, world.path) as reader:
        read(reader)
        return read(reader)


def test_a_gpu_is_described_with_its_cores_bus_and_firmware(fake_nvml: Path, world: World) -> None:
    inventory = look(fake_nvml, world, "scenario dgx")
    assert (inventory.driver_version, inventory.cuda_version) == ("550.127.05", "12.4")
    assert len(inventory.gpus) == 8
    gpu = inventory.gpus[0]
    assert gpu.architecture == "Hopper"
    assert gpu.compute_capability == "9.0"
    assert (gpu.pcie_generation, gpu.pcie_generation_max) == (4, 5)
    assert (gpu.pcie_width, gpu.pcie_width_max) == (8, 16)
    assert gpu.core_count > 0
    assert gpu.memory_bus_bits > 0
    assert gpu.sm_clock_max_hertz > gpu.memory_clock_max_hertz / 10 > 0
    assert gpu.serial
    assert gpu.vbios_version
    assert gpu.pci_address.startswith("0000:")
    assert not gpu.is_mig_enabled


def test_gpus_on_switches_reach_each_other_by_eighteen_links(fake_nvml: Path, world: World) -> None:
    inventory = look(fake_nvml, world, "scenario dgx")
    assert {link.remote for gpu in inventory.gpus for link in gpu.nvlinks} == {"switch"}
    assert len(inventory.gpu_paths) == 8 * 7 / 2
    assert {path.kind for path in inventory.gpu_paths} == {"NV18"}


def test_links_that_are_down_are_shown_and_make_the_paths_narrower(
    fake_nvml: Path, world: World
) -> None:
    inventory = look(fake_nvml, world, "scenario dgx", "gpu 1 links_down 3")
    assert [link.is_active for link in inventory.gpus[1].nvlinks[:3]] == [False, False, True]
    kinds = {(path.first_index, path.second_index): path.kind for path in inventory.gpu_paths}
    assert (kinds[0, 1], kinds[0, 2]) == ("NV16", "NV18")


def test_without_nvlink_the_path_is_what_the_board_has(fake_nvml: Path, world: World) -> None:
    inventory = look(fake_nvml, world, "scenario dgx", "refuse nvmlDeviceGetNvLinkState 3")
    assert not any(gpu.nvlinks for gpu in inventory.gpus)
    assert {path.kind for path in inventory.gpu_paths} <= {"PIX", "PXB", "PHB", "NODE", "SYS"}
    assert len(inventory.gpu_paths) == 28


def test_mig_is_shown(fake_nvml: Path, world: World) -> None:
    inventory = look(fake_nvml, world, "scenario mig")
    assert [gpu.index for gpu in inventory.gpus if gpu.is_mig_enabled] == [0, 1]


def test_a_lost_gpu_is_missing_and_the_others_stay(fake_nvml: Path, world: World) -> None:
    inventory = look(fake_nvml, world, "scenario lost")
    assert [gpu.index for gpu in inventory.gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_a_card_that_supports_nothing_is_listed_by_name_alone(
    fake_nvml: Path, world: World
) -> None:
    inventory = look(fake_nvml, world, "scenario unsupported")
    assert len(inventory.gpus) == 8
    bare = {"index", "uuid", "model", "memory_bytes", "has_unified_memory"}
    said = msgspec.structs.asdict(inventory.gpus[0])
    empty = msgspec.structs.asdict(GPUInfo(index=0, uuid="", model="", memory_bytes=0))
    assert {name for name in said if said[name] != empty[name]} <= bare


FUNCTIONS = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
)


@pytest.mark.parametrize("code", [999, 15])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_queries_that_fail_change_nothing(
    fake_nvml: Path, world: World, function: str, code: int
) -> None:
    with reading("inventory", fake_nvml, world.path) as reader:
        complete = read(reader)
        world.add(f"refuse {function} {code}")
        assert read(reader) == complete


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetHandleByIndex_v2"]
)
def test_a_query_that_fails_for_a_moment_at_the_start_is_made_again(
    fake_nvml: Path, world: World, function: str
) -> None:
    world.add(f"fail {function} 999 2")
    with reading("inventory", fake_nvml, world.path) as reader:
        assert [gpu.memory_bytes for gpu in read(reader).gpus] == [81559 * MIB] * 8


def test_a_gpu_is_gone_at_the_second_reading_without_it(fake_nvml: Path, world: World) -> None:
    with reading("inventory", fake_nvml, world.path) as reader:
        complete = read(reader)
        world.add("gpu 3 error 15")
        assert [gpu.index for gpu in read(reader).gpus] == [*range(8)]
        assert [gpu.index for gpu in read(reader).gpus] == [0, 1, 2, 4, 5, 6, 7]
        world.add("gpu 3 error 0")
        assert read(reader) == complete


@pytest.mark.parametrize("count", [0, 12])
def test_the_driver_says_how_many_links_a_card_has(
    fake_nvml: Path, world: World, count: int
) -> None:
    inventory = look(fake_nvml, world, f"gpu 1 links {count}")
    assert [len(gpu.nvlinks) for gpu in inventory.gpus[:3]] == [18, count, 18]
    [path] = [
        candidate
        for candidate in inventory.gpu_paths
        if (candidate.first_index, candidate.second_index) == (0, 1)
    ]
    assert path.kind == (f"NV{count}" if count else "NODE")


def test_a_gpu_that_shares_the_hosts_memory_has_that(fake_nvml: Path, world: World) -> None:
    world.add("refuse nvmlDeviceGetMemoryInfo_v2 3")
    with reading("inventory", fake_nvml, world.path) as reader:
        inventory = read(reader)
        world.add("refuse nvmlDeviceGetMemoryInfo_v2 999")
        assert read(reader) == inventory
    assert inventory.memory_bytes > 0
    assert {(gpu.memory_bytes, gpu.has_unified_memory) for gpu in inventory.gpus} == {
        (inventory.memory_bytes, True)
    }


def test_memory_that_cant_be_read_is_unknown_and_not_the_hosts(
    fake_nvml: Path, world: World
) -> None:
    inventory = look(fake_nvml, world, "refuse nvmlDeviceGetMemoryInfo_v2 999")
    assert {(gpu.memory_bytes, gpu.has_unified_memory) for gpu in inventory.gpus} == {(0, False)}
