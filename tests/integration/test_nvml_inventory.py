"""The inventory's NVIDIA part through NVIDIA's bindings, on a driver library built for the test."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from protocol.inventory import GPUInfo, Inventory
from tests.servers import require_program

FAKE = Path(__file__).parent.parent / "fixtures" / "fake_nvml"
ROOT = FAKE.parents[2]
# The loader reads its path when a process starts, so the inventory is read in one of its own.
LOOK = """
import sys
import msgspec
from plugins.inventory.reader import InventorySource

source = InventorySource()
source.read()
sys.stdout.buffer.write(msgspec.json.encode(source.read()))
source.close()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built library."""
    compiler = require_program("gcc", package="gcc")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", *FAKE.glob("*.c")],
        check=True,
    )
    return folder


def look(library: Path, *statements: str) -> Inventory:
    world = library / "world"
    world.write_text("".join(f"{statement}\n" for statement in statements))
    result = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": str(ROOT),
            "VEDETTE_FAKE_NVML": str(world),
        },
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return msgspec.json.decode(result.stdout, type=Inventory)


def test_a_gpu_is_described_with_its_cores_bus_and_firmware(library: Path) -> None:
    found = look(library, "scenario dgx")
    assert (found.driver_version, found.cuda_version) == ("550.127.05", "12.4")
    assert len(found.gpus) == 8
    gpu = found.gpus[0]
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


def test_gpus_on_switches_reach_each_other_by_eighteen_links(library: Path) -> None:
    found = look(library, "scenario dgx")
    assert {link.remote for gpu in found.gpus for link in gpu.nvlinks} == {"switch"}
    assert len(found.gpu_paths) == 8 * 7 / 2
    assert {path.kind for path in found.gpu_paths} == {"NV18"}


def test_links_that_are_down_are_shown_and_make_the_paths_narrower(library: Path) -> None:
    found = look(library, "scenario dgx", "gpu 1 links_down 3")
    assert [link.is_active for link in found.gpus[1].nvlinks[:3]] == [False, False, True]
    kinds = {(path.first_index, path.second_index): path.kind for path in found.gpu_paths}
    assert (kinds[0, 1], kinds[0, 2]) == ("NV16", "NV18")


def test_without_nvlink_the_path_is_what_the_board_has(library: Path) -> None:
    found = look(library, "scenario dgx", "refuse nvmlDeviceGetNvLinkState 3")
    assert not any(gpu.nvlinks for gpu in found.gpus)
    assert {path.kind for path in found.gpu_paths} <= {"PIX", "PXB", "PHB", "NODE", "SYS"}
    assert len(found.gpu_paths) == 28


def test_mig_is_shown(library: Path) -> None:
    found = look(library, "scenario mig")
    assert [gpu.index for gpu in found.gpus if gpu.is_mig_enabled] == [0, 1]


def test_a_lost_gpu_is_missing_and_the_others_stay(library: Path) -> None:
    found = look(library, "scenario lost")
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_a_card_that_supports_nothing_is_listed_by_name_alone(library: Path) -> None:
    found = look(library, "scenario unsupported")
    assert len(found.gpus) == 8
    bare = {"index", "uuid", "model", "memory_bytes"}
    said = msgspec.structs.asdict(found.gpus[0])
    empty = msgspec.structs.asdict(GPUInfo(index=0, uuid="", model="", memory_bytes=0))
    assert {name for name in said if said[name] != empty[name]} <= bare
