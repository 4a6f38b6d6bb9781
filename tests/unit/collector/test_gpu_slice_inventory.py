"""What the inventory says about sharing GPUs."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from collector.capabilities import has_capability
from collector.gpu_slices.build import CAP_SYS_ADMIN
from collector.gpu_slices.inventory import offered_modes, with_mig, with_profiles
from collector.gpu_slices.mig import MIGSlices
from collector.gpu_slices.modes import AllModes
from collector.inventory import simulated_inventory
from plugins.simulation.config import SimulationConfig
from plugins.simulation.mig import SimulatedMIGDriver
from protocol.gpu_slices import GPUPartition, PartitionMode
from protocol.inventory import GPUInfo, Inventory

H100 = SimulationConfig(seed="acme/dgx-1", gpu_count=2)
NVIDIA = GPUInfo(index=0, uuid="GPU-1", model="NVIDIA T4", memory_bytes=16)
CAPABLE = msgspec.structs.replace(NVIDIA, is_mig_capable=True)
AMD = msgspec.structs.replace(NVIDIA, uuid="0xf00", model="AMD Instinct MI210")


@pytest.mark.parametrize(
    ("gpus", "modes"),
    [
        ([], []),
        ([AMD], []),
        ([NVIDIA], ["time_slicing"]),
        ([AMD, CAPABLE], ["mig", "time_slicing"]),
    ],
)
def test_modes_are_those_that_the_gpus_and_the_agent_know(
    gpus: Sequence[GPUInfo], modes: list[str]
) -> None:
    slices = AllModes(mig=MIGSlices(SimulatedMIGDriver(H100)))
    assert offered_modes(slices, gpus) == modes


def test_an_executor_that_can_not_use_parts_of_gpus_offers_no_mode() -> None:
    assert offered_modes(None, [CAPABLE]) == []


def test_profiles_stay_known_while_the_mode_is_off() -> None:
    driver = SimulatedMIGDriver(H100)
    uuid = driver.read()[0].uuid
    inventory = simulated_inventory(H100)
    driver.set_mode(uuid, enabled=True)
    made = driver.create(uuid, "1g.10gb", 2)
    on = with_mig(inventory.gpus, driver.read())
    driver.destroy(uuid, 2)
    driver.set_mode(uuid, enabled=False)
    off = with_mig(inventory.gpus, driver.read())
    assert on[0].mig_instances == [made]
    assert off[0].mig_profiles == []
    later = with_profiles(_with(inventory, off), _with(inventory, on))
    assert later.gpus[0].mig_profiles == on[0].mig_profiles
    assert later.gpus[1].mig_profiles == []
    assert not later.gpus[0].is_mig_enabled


def test_a_card_that_was_replaced_has_no_profiles_of_the_old_one() -> None:
    before = _with(simulated_inventory(H100), with_mig([CAPABLE], []))
    now = _with(before, [NVIDIA])
    assert with_profiles(now, before) == now


@pytest.mark.parametrize(
    ("mask", "is_there"),
    [("0000000000000000", False), ("0000000000200000", True), ("000001ffffdfffff", False)],
)
def test_a_capability_is_read_from_the_kernel(tmp_path: Path, mask: str, *, is_there: bool) -> None:
    (tmp_path / "self").mkdir()
    status = f"CapPrm:\t000001ffffffffff\nCapEff:\t{mask}\nCapBnd:\t000001ffffffffff\n"
    (tmp_path / "self" / "status").write_text(status)
    assert has_capability(CAP_SYS_ADMIN, proc=tmp_path) is is_there


def test_an_agent_that_lacks_the_permission_offers_no_mig_until_it_works() -> None:
    driver = SimulatedMIGDriver(H100)
    slices = MIGSlices(driver, is_permitted=False)
    assert offered_modes(AllModes(mig=slices), [CAPABLE]) == ["time_slicing"]
    order = GPUPartition(gpu_uuid=driver.read()[0].uuid, mode=PartitionMode.MIG)
    slices.settle([order], {}, set())
    assert offered_modes(AllModes(mig=slices), [CAPABLE]) == ["mig", "time_slicing"]


def _with(inventory: Inventory, gpus: list[GPUInfo]) -> Inventory:
    return msgspec.structs.replace(inventory, gpus=gpus)
