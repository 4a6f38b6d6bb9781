"""MIG instances for attempts and layouts, on simulated GPUs."""

import logging

import pytest

from collector.gpu_slices.base import SliceError
from collector.gpu_slices.mig import MIGSlices
from plugins.mig import MIGInUseError
from plugins.simulation.config import SimulationConfig
from plugins.simulation.mig import SimulatedMIGDriver
from protocol.gpu_slices import GPUPartition, GPUSlice, MIGPlacement, PartitionMode
from tests.fixtures.mig_steps import MIGSteps, SimulatedHardware

H100 = SimulationConfig(seed="acme/dgx-1", gpu_count=2)
A100 = SimulationConfig(seed="acme/dgx-1", gpu_count=2, gpu_model="NVIDIA A100-SXM4-80GB")
GPU, OTHER_GPU = H100.gpu_uuids
MIG = [GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MIG)]
WHOLE = [GPUPartition(gpu_uuid=GPU)]
LAYOUT = [
    MIGPlacement(profile="3g.40gb", start=0),
    MIGPlacement(profile="2g.20gb", start=4),
    MIGPlacement(profile="1g.10gb", start=6),
]


def mig_slice(profile: str, start: int, slots: int = 1) -> GPUSlice:
    return GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=GPU,
        share_milli=125 * slots,
        profile=profile,
        start=start,
        slots=slots,
    )


SMALL = mig_slice("1g.10gb", 3)
LARGE = mig_slice("3g.40gb", 4, 4)


class Site:
    """Simulated GPUs and an agent that cuts them."""

    def __init__(self, config: SimulationConfig = H100) -> None:
        self.driver = SimulatedMIGDriver(config)
        self.slices = MIGSlices(self.driver)

    def settle(self, orders: list[GPUPartition], *busy: str, **in_use: GPUSlice) -> dict[int, str]:
        """Settle; return the profile of each instance by first slot."""
        self.slices.settle(orders, in_use, set(busy))
        return self.instances()

    def instances(self) -> dict[int, str]:
        return {made.start: made.profile for made in self.driver.read()[0].instances}

    def is_enabled(self) -> bool:
        return self.driver.read()[0].is_enabled


@pytest.fixture
def site() -> Site:
    return Site()


def test_mig_is_switched_on_where_it_is_ordered(site: Site) -> None:
    site.settle(MIG)
    assert [gpu.is_enabled for gpu in site.driver.read()] == [True, False]


def test_a_gpu_of_a_job_is_switched_once_the_job_has_ended(site: Site) -> None:
    site.settle(MIG, GPU)
    assert not site.is_enabled()
    site.settle(MIG)
    assert site.is_enabled()


def test_a_gpu_with_shares_of_another_mode_is_not_switched(site: Site) -> None:
    share = GPUSlice(mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=250)
    site.settle(MIG, a=share)
    assert not site.is_enabled()


def test_the_instance_of_an_attempt_is_made_where_it_was_placed(site: Site) -> None:
    site.settle(MIG, a=LARGE)
    access = site.slices.prepare("a", LARGE)
    [made] = site.driver.read()[0].instances
    assert (made.profile, made.start) == ("3g.40gb", 4)
    assert access.gpu_uuids == [made.uuid]
    assert access.slice_uuid == made.uuid


def test_a_repeated_preparation_returns_the_same_instance(site: Site) -> None:
    site.settle(MIG, a=SMALL)
    assert site.slices.prepare("a", SMALL) == site.slices.prepare("a", SMALL)


def test_an_instance_ends_with_its_attempt(site: Site) -> None:
    assert site.settle(MIG, a=SMALL) == {3: "1g.10gb"}
    assert site.settle(MIG) == {}


def test_the_instances_of_a_layout_stay_where_no_attempt_is_in_the_way(site: Site) -> None:
    orders = [GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MIG, layout=LAYOUT)]
    assert site.settle(orders) == {0: "3g.40gb", 4: "2g.20gb", 6: "1g.10gb"}
    assert site.settle(orders, a=LARGE) == {0: "3g.40gb", 4: "3g.40gb"}
    assert site.settle(orders) == {0: "3g.40gb", 4: "2g.20gb", 6: "1g.10gb"}


def test_an_instance_that_a_process_uses_is_left_until_it_has_ended(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.settle(MIG)
    site.driver.create(GPU, "1g.10gb", 0)
    site.driver.processes.add((GPU, 0))
    for _ in range(3):
        assert site.settle(MIG) == {0: "1g.10gb"}
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "process outside of jobs" in warnings[0].getMessage()
    site.driver.processes.clear()
    assert site.settle(MIG) == {}


def test_a_gpu_without_an_order_is_left_alone(site: Site) -> None:
    site.settle(MIG)
    site.driver.create(GPU, "1g.10gb", 0)
    assert site.settle([GPUPartition(gpu_uuid=OTHER_GPU)]) == {0: "1g.10gb"}
    assert site.settle([]) == {0: "1g.10gb"}


def test_mig_is_switched_off_once_the_last_attempt_has_ended(site: Site) -> None:
    site.settle(MIG, a=SMALL)
    assert site.settle(WHOLE, a=SMALL) == {3: "1g.10gb"}
    assert site.settle(WHOLE) == {}
    assert not site.is_enabled()


def test_instances_of_running_attempts_are_made_again_after_a_reboot(site: Site) -> None:
    site.settle(MIG, a=SMALL)
    before = site.slices.prepare("a", SMALL)
    site.driver.set_mode(OTHER_GPU, enabled=True)
    site.driver.reboot()
    assert site.settle(MIG, a=SMALL) == {3: "1g.10gb"}
    assert site.slices.prepare("a", SMALL) == before


def test_slots_that_another_attempt_still_uses_are_refused(site: Site) -> None:
    other = mig_slice("2g.20gb", 2, 2)
    site.settle(MIG, a=SMALL)
    site.slices.prepare("a", SMALL)
    assert site.settle(MIG, a=SMALL, b=other) == {3: "1g.10gb"}
    with pytest.raises(SliceError, match="attempt a still uses"):
        site.slices.prepare("b", other)


def test_a_gpu_that_needs_a_reset_says_so() -> None:
    site = Site(A100)
    wanted = mig_slice("1g.10gb", 0)
    site.settle(MIG, a=wanted)
    assert site.driver.read()[0].is_pending
    with pytest.raises(SliceError, match="next reset"):
        site.slices.prepare("a", wanted)
    site.driver.reboot()
    site.settle(MIG, a=wanted)
    assert site.slices.prepare("a", wanted).slice_uuid


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (mig_slice("9g.90gb", 0), "no MIG profile 9g.90gb"),
        (mig_slice("3g.40gb", 2, 4), "no MIG profile 3g.40gb at slot 2"),
    ],
)
def test_a_slice_that_the_gpu_does_not_offer_is_refused(
    site: Site, wanted: GPUSlice, reason: str
) -> None:
    site.settle(MIG)
    with pytest.raises(SliceError, match=reason):
        site.slices.prepare("a", wanted)


def test_an_agent_without_permission_offers_no_mig(site: Site) -> None:
    assert site.slices.modes == [PartitionMode.MIG]
    site.driver.is_permitted = False
    site.settle(MIG)
    assert site.slices.modes == []
    site.driver.is_permitted = True
    site.settle(MIG)
    assert site.slices.modes == [PartitionMode.MIG]


def test_a_process_on_the_gpu_delays_the_switch(site: Site) -> None:
    site.driver.processes.add((GPU, -1))
    with pytest.raises(MIGInUseError):
        site.driver.set_mode(GPU, enabled=True)
    site.settle(MIG)
    assert not site.is_enabled()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))]
)
def test_random_steps_and_crashes_break_no_rule(seed: int) -> None:
    steps = MIGSteps(SimulatedHardware(3), seed)
    for _ in range(2_500):
        steps.take()
    steps.finish()
    assert steps.violations == []
    assert steps.counts["crashes"] > 100
    assert steps.counts["slices made"] > 500
