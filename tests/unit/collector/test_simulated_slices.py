"""Slices on a simulated appliance, by the runner, the executor and the code of real appliances."""

from pathlib import Path

import msgspec
import pytest

from collector.config import AgentConfig
from collector.data_dir import load_json
from collector.gpu_slices.build import build_slices
from collector.jobs.attempts import AttemptRunner, AttemptState
from collector.jobs.executors import simulated_executor
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import AttemptObservation, AttemptSpec, DesiredState, ObservedState
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode
from tests.fixtures.polling import eventually
from tests.unit.collector.hand_clock import HandClock

CONFIG = SimulationConfig(seed="acme/dgx-1")
GPU = CONFIG.gpu_uuids[0]
GIB = 2**30
QUARTER = GPUSlice(mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=250, memory_bytes=20 * GIB)


def client(name: str, part: GPUSlice = QUARTER, **env: str) -> AttemptSpec:
    return AttemptSpec(
        attempt_id=name,
        job_id=f"job-{name}",
        name=name,
        image="train:1",
        env={"SIM_SECONDS": "600", **env},
        gpu_uuids=[GPU],
        gpu_slice=part,
    )


class Site:
    """One simulated appliance."""

    def __init__(self, folder: Path, clock: HandClock) -> None:
        self.folder, self.clock = folder, clock
        self.mig_path = folder / "mig.json"
        self.restart()

    def restart(self) -> None:
        """Start as a new agent does."""
        self.model = SimulatedAppliance(
            CONFIG, started_at=self.clock.now, mig_state_path=self.mig_path
        )
        self.executor = simulated_executor(self.model, clock=self.clock, data_dir=self.folder)
        config = AgentConfig(data_dir=self.folder)
        slices = build_slices(config, self.executor, simulation=self.model, clock=self.clock)
        self.runner = AttemptRunner(
            self.executor,
            state_path=self.folder / "attempts.json",
            slices=slices,
            clock=self.clock,
        )

    def order(self, mode: PartitionMode, *attempts: AttemptSpec, generation: int = 1) -> None:
        partitions = [GPUPartition(gpu_uuid=GPU, mode=mode)]
        self.runner.set_desired(
            DesiredState(generation=generation, attempts=list(attempts), gpu_partitions=partitions)
        )

    def steps(self) -> bool:
        """Go once round the loop."""
        self.runner.step()
        return True

    def seen(self, name: str) -> AttemptObservation | None:
        self.runner.step()
        state = load_json(self.folder / "attempts.json", AttemptState)
        return state.remembered.get(name) if state is not None else None

    def started(self, name: str) -> AttemptObservation:
        """Wait until the thread of the slices has made its own."""
        seen = eventually(lambda: self.seen(name), what=f"the start of {name}")
        self.clock.advance(3)
        return self.seen(name) or seen


@pytest.fixture
def site(tmp_path: Path, hand_clock: HandClock) -> Site:
    return Site(tmp_path, hand_clock)


def test_shares_have_a_daemon_for_as_long_as_they_run(site: Site) -> None:
    site.order(PartitionMode.MPS, client("a"), client("b"))
    daemon = site.folder / "simulated-mps" / GPU

    assert site.started("a").state is ObservedState.RUNNING
    assert site.started("b").state is ObservedState.RUNNING
    assert daemon.exists()
    reading = site.model.read(site.clock.now)
    assert [own.workload.job_id for own in reading.slices] == ["job-a", "job-b"]
    site.order(PartitionMode.MPS, generation=2)
    eventually(lambda: site.steps() and not daemon.exists(), what="the daemon's end")


def test_the_fault_of_a_job_ends_its_neighbors(site: Site) -> None:
    cause = client("a", SIM_SECONDS="60", SIM_EXIT_CODE="1", SIM_GPU_FAULT="1")
    elsewhere = msgspec.structs.replace(QUARTER, gpu_uuid=CONFIG.gpu_uuids[1])
    site.order(PartitionMode.MPS, cause, client("b"), client("c", elsewhere))
    for name in ("a", "b", "c"):
        assert site.started(name).state is ObservedState.RUNNING

    site.clock.advance(61)
    first, second, third = (site.seen(name) for name in ("a", "b", "c"))

    assert first is not None
    assert second is not None
    assert third is not None
    assert (second.state, second.reason) == (ObservedState.FAILED, "gpu_fault_of_neighbor")
    assert "This job or the other one there caused" in second.message
    assert first.reason == "gpu_fault_of_neighbor", "MPS does not tell which of them it was"
    assert third.state is ObservedState.RUNNING


def test_a_mig_instance_outlives_a_restart_of_the_agent(site: Site) -> None:
    part = GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid=GPU,
        share_milli=125,
        profile="1g.10gb",
        start=2,
        slots=1,
    )
    site.order(PartitionMode.MIG)
    eventually(lambda: site.steps() and site.model.mig.read()[0].is_enabled, what="MIG")
    site.order(PartitionMode.MIG, client("a", part), generation=2)
    before = site.started("a")
    [made] = site.model.mig.read()[0].instances

    site.restart()
    after = site.started("a")

    assert before.gpu_slice_uuid == made.uuid
    assert (after.state, after.gpu_slice_uuid) == (ObservedState.RUNNING, made.uuid)
    assert site.model.mig.read()[0].instances == [made]
    [reading] = site.model.read(site.clock.now).slices
    assert reading.gpu_slice.uuid == made.uuid
