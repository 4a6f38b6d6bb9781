"""Cutting GPUs by MIG over the fake driver library, in the agent's worker process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.gpu_slices.mig import MIGSlices
from collector.gpu_slices.mig_worker import WorkerMIGDriver
from collector.gpu_slices.modes import AllModes
from collector.jobs.attempts import AttemptRunner
from jobqueue.executors.simulated.executor import SimulatedExecutor
from plugins.mig import MIGError, MIGInUseError, MIGPermissionError
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from protocol.gpu_slices import GPUPartition, GPUSlice, MIGPlacement, PartitionMode
from tests.fixtures.mig_steps import MIGSteps
from tests.fixtures.nvml import World, nvml_environment, reading
from tests.fixtures.polling import eventually
from tests.unit.collector.hand_clock import HandClock

GPU, OTHER_GPU = (f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(2))
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"
CREATE_COMPUTE = "nvmlGpuInstanceCreateComputeInstance"
DESTROY = "nvmlGpuInstanceDestroy"
DESTROY_COMPUTE = "nvmlComputeInstanceDestroy"
NO_PERMISSION = 4
SLICE = GPUSlice(
    mode=PartitionMode.MIG, gpu_uuid=GPU, share_milli=500, profile="3g.40gb", start=4, slots=4
)
ORDERS = [GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MIG)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "world")
    world.add("gpus 2")
    return world


@pytest.fixture
def driver(
    fake_nvml: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerMIGDriver]:
    for name in ("LD_LIBRARY_PATH", "VEDETTE_FAKE_NVML"):
        monkeypatch.setenv(name, nvml_environment(fake_nvml, world.path)[name])
    driver = WorkerMIGDriver(call_seconds=20)
    yield driver
    driver.close()


def test_profiles_and_places_are_those_of_the_driver(driver: WorkerMIGDriver) -> None:
    assert driver.read()[0].profiles == []
    driver.set_mode(GPU, enabled=True)
    offered = {profile.name: profile for profile in driver.read()[0].profiles}
    assert list(offered) == ["7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb"]
    assert offered["3g.40gb"].starts == (0, 4)
    assert offered["3g.40gb"].slots == 4
    assert offered["3g.40gb"].memory_bytes == 40448 * 2**20
    assert offered["1g.10gb"].profile_id == 19


def test_an_instance_is_made_used_and_destroyed(driver: WorkerMIGDriver) -> None:
    driver.set_mode(GPU, enabled=True)
    made = driver.create(GPU, "3g.40gb", 4)
    assert made.uuid.startswith("MIG-")
    assert driver.read()[0].instances == [made]
    assert driver.create(GPU, "3g.40gb", 4) == made
    driver.destroy(GPU, 4)
    driver.destroy(GPU, 4)
    assert driver.read()[0].instances == []


@pytest.mark.parametrize(
    ("profile", "start", "reason"),
    [
        ("9g.90gb", 0, "has no MIG profile 9g.90gb; it has 1g.10gb"),
        ("3g.40gb", 2, "a 3g.40gb fits at slots 0, 4"),
        ("1g.10gb", 4, "slot 4 .* is taken by a 3g.40gb"),
        ("2g.20gb", 4, "slot 4 .* is taken by a 3g.40gb"),
        ("7g.80gb", 0, "other instances take the slots"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    driver: WorkerMIGDriver, profile: str, start: int, reason: str
) -> None:
    driver.set_mode(GPU, enabled=True)
    driver.create(GPU, "3g.40gb", 4)
    with pytest.raises(MIGError, match=reason):
        driver.create(GPU, profile, start)


def test_an_instance_with_a_process_is_in_use(driver: WorkerMIGDriver, world: World) -> None:
    driver.set_mode(GPU, enabled=True)
    driver.create(GPU, "1g.10gb", 2)
    world.add("process 0 2 4711 100 0 c")
    with pytest.raises(MIGInUseError):
        driver.destroy(GPU, 2)
    assert driver.read()[0].instances[0].uuid


def test_a_gpu_with_a_process_is_not_switched(driver: WorkerMIGDriver, world: World) -> None:
    world.add("process 0 -1 4711 100 0 c")
    with pytest.raises(MIGInUseError, match="MIG mode can't change"):
        driver.set_mode(GPU, enabled=True)


def test_a_mode_that_needs_a_reset_is_pending(driver: WorkerMIGDriver, world: World) -> None:
    world.add("gpu 0 mig_needs_reset 1")
    driver.set_mode(GPU, enabled=True)
    gpu = driver.read()[0]
    assert (gpu.is_enabled, gpu.is_pending) == (False, True)


def test_a_driver_that_refuses_says_what_to_do(driver: WorkerMIGDriver, world: World) -> None:
    world.add(f"refuse nvmlDeviceSetMigMode {NO_PERMISSION}")
    with pytest.raises(MIGPermissionError, match="CAP_SYS_ADMIN"):
        driver.set_mode(GPU, enabled=True)


def test_a_call_that_hangs_ends_with_its_process(world: World, driver: WorkerMIGDriver) -> None:
    driver.set_mode(GPU, enabled=True)
    world.add(f"hang {CREATE_COMPUTE}")
    impatient = WorkerMIGDriver(call_seconds=5)
    with pytest.raises(MIGError, match="does not answer"):
        impatient.create(GPU, "1g.10gb", 0)
    world.add("hang nothing")
    assert [made.uuid for made in impatient.read()[0].instances] == [""]
    assert impatient.create(GPU, "1g.10gb", 0).uuid
    impatient.close()


def test_a_lost_gpu_does_not_hide_the_others(driver: WorkerMIGDriver, world: World) -> None:
    world.add("gpu 0 error 15")
    assert [gpu.uuid for gpu in driver.read()] == [OTHER_GPU]


@pytest.mark.parametrize("step", [CREATE, CREATE_COMPUTE, DESTROY, DESTROY_COMPUTE])
def test_what_a_crash_leaves_is_put_right(driver: WorkerMIGDriver, world: World, step: str) -> None:
    slices = MIGSlices(driver)
    place = MIGPlacement(profile="1g.10gb", start=0)
    layout = [GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MIG, layout=[place])]
    slices.settle(ORDERS, {"gone": SLICE}, set())
    world.add(f"die {step}")
    slices.settle(layout, {}, set())
    world.add("die nothing")
    MIGSlices(driver).settle(layout, {}, set())
    assert [(made.profile, made.start) for made in driver.read()[0].instances] == [("1g.10gb", 0)]
    assert all(made.uuid for made in driver.read()[0].instances)


class FakeHardware:
    """The GPUs of the fake library, whose process ends when it is told to."""

    def __init__(self, driver: WorkerMIGDriver, world: World) -> None:
        self.driver = driver
        self._world = world
        self._deadly = "nothing"
        self._processes: set[tuple[str, int]] = set()

    def crash_at(self, change: int) -> None:
        self._deadly = ("nothing", CREATE_COMPUTE, DESTROY, CREATE)[change]
        self._write()

    def run_process(self, gpu_uuid: str, start: int, *, runs: bool) -> None:
        (self._processes.add if runs else self._processes.discard)((gpu_uuid, start))
        self._write()

    def reboot(self) -> None:
        self._processes.clear()
        self._write()
        self._world.path.with_suffix(".mig").unlink()

    def _write(self) -> None:
        processes = (f"process {uuid[-1]} {at} 4711 100 0 c" for uuid, at in self._processes)
        self._world.replace("gpus 2", f"die {self._deadly}", *processes)


@pytest.mark.parametrize("count", [20, pytest.param(60, marks=pytest.mark.nightly)])
def test_random_steps_and_crashes_break_no_rule(
    driver: WorkerMIGDriver, world: World, count: int
) -> None:
    steps = MIGSteps(FakeHardware(driver, world), seed=7)
    for _ in range(count):
        steps.take()
    steps.finish()
    assert steps.violations == []
    assert steps.counts["slices made"] > count // 6


def test_an_attempt_runs_in_its_instance_from_start_to_end(
    driver: WorkerMIGDriver, tmp_path: Path
) -> None:
    clock = HandClock()
    executor = SimulatedExecutor(clock, on_work=lambda *_: None, on_end=lambda *_: None)
    runner = AttemptRunner(
        executor,
        state_path=tmp_path / "attempts.json",
        slices=AllModes(mig=MIGSlices(driver)),
        clock=clock,
    )
    spec = AttemptSpec(
        attempt_id="a",
        job_id="job-1",
        name="notebook",
        image="notebook:1",
        env={"SIM_SECONDS": "10"},
        gpu_uuids=[GPU],
        gpu_slice=SLICE,
    )
    runner.set_desired(DesiredState(generation=1, attempts=[spec], gpu_partitions=ORDERS))

    def seen(state: ObservedState) -> AttemptObservation | None:
        clock.advance(1)
        runner.step()
        return next((attempt for attempt in executor.observe() if attempt.state is state), None)

    eventually(lambda: seen(ObservedState.RUNNING), what="the attempt to run")
    reader = WorkerMIGDriver(call_seconds=20)
    [made] = reader.read()[0].instances
    assert (made.profile, made.start) == (SLICE.profile, SLICE.start)
    assert runner.job_of_gpu() == {made.uuid: "job-1"}
    eventually(lambda: seen(ObservedState.SUCCEEDED), what="the attempt to end")

    def is_gone() -> bool:
        seen(ObservedState.SUCCEEDED)
        return not reader.read()[0].instances

    eventually(is_gone, what="the instance to be destroyed")
    runner.close()
    reader.close()


def test_the_inventory_has_profiles_and_instances(fake_nvml: Path, world: World) -> None:
    world.add("gpu 0 mig 1", "gpu 0 slices 2")
    with reading("inventory", fake_nvml, world.path) as inventory:
        [listed] = inventory.answer()["inventories"]
        gpu = listed["gpus"][0]
        assert (gpu["is_mig_capable"], gpu["is_mig_enabled"]) == (True, True)
        assert [made["start"] for made in gpu["mig_instances"]] == [0, 1]
        assert "3g.40gb" in {profile["name"] for profile in gpu["mig_profiles"]}
        world.add("gpu 0 mig 0")
        [listed] = inventory.answer(61)["inventories"]
        gpu = listed["gpus"][0]
        assert (gpu["is_mig_capable"], gpu["is_mig_enabled"]) == (True, False)
        assert "3g.40gb" in {profile["name"] for profile in gpu["mig_profiles"]}
        assert "mig_instances" not in gpu or not gpu["mig_instances"]


def test_a_gpu_that_does_not_know_mig_is_not_capable(fake_nvml: Path, world: World) -> None:
    world.add("refuse nvmlDeviceGetMigMode 3")
    with reading("inventory", fake_nvml, world.path) as inventory:
        [listed] = inventory.answer()["inventories"]
        assert not any(gpu.get("is_mig_capable") for gpu in listed["gpus"])
