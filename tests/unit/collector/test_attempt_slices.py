"""The attempt runner with slices of GPUs: simulated GPUs and the simulated executor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

import msgspec
import pytest

from collector.gpu_slices.base import GPUSlices, SliceAccess, SliceError
from collector.gpu_slices.mig import MIGSlices
from collector.gpu_slices.modes import AllModes
from collector.jobs.attempts import AttemptRunner
from collector.jobs.slices import with_slice
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from jobqueue.executors.simulated.executor import SimulatedExecutor
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    ObservedState,
    StopReason,
)
from protocol.gpu_slices import GPUPartition, GPUSlice, PartitionMode
from protocol.job_spec import Mount
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal
from tests.unit.collector.hand_clock import HandClock

CONFIG = SimulationConfig(seed="acme/dgx-1", gpu_count=2)
GPU, OTHER_GPU = CONFIG.gpu_uuids
SLICE = GPUSlice(
    mode=PartitionMode.MIG, gpu_uuid=GPU, share_milli=125, profile="1g.10gb", start=3, slots=1
)
ORDERS = [GPUPartition(gpu_uuid=GPU, mode=PartitionMode.MIG)]
SPEC = AttemptSpec(
    attempt_id="a",
    job_id="job-1",
    name="notebook",
    image="notebook:1",
    env={"SIM_SECONDS": "10"},
    gpu_uuids=[GPU],
    gpu_slice=SLICE,
)


def desired(
    *attempts: AttemptSpec, stopping: Sequence[str] = (), generation: int = 1
) -> DesiredState:
    return DesiredState(
        generation=generation,
        attempts=list(attempts),
        stopping=list(stopping),
        gpu_partitions=ORDERS,
    )


class SlowExecutor(SimulatedExecutor):
    """Simulated attempts that don't stop while the site is patient."""

    def __init__(self, site: "Site") -> None:
        super().__init__(
            site.clock,
            on_work=lambda *_: None,
            on_end=lambda *_: None,
            state_path=site.folder / "simulated-attempts.json",
        )
        self._site = site

    def stop(
        self, attempt_id: str, *, grace_seconds: float, reason: StopReason = StopReason.USER
    ) -> None:
        if not self._site.is_patient:
            super().stop(attempt_id, grace_seconds=grace_seconds, reason=reason)


class CountingSlices(AllModes):
    """Slices that say how often the GPUs were settled."""

    settled = 0

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        super().settle(partitions, in_use, busy)
        self.settled += 1


class Site:
    """One appliance: its GPUs, its runner, its link, and the passing of its time."""

    def __init__(self, folder: Path, portal: RecordingPortal, clock: HandClock) -> None:
        self.folder, self.portal, self.clock = folder, portal, clock
        self.model = SimulatedAppliance(CONFIG, started_at=clock.now)
        self.link = PortalConnection(AccessPoints([portal.url]), agent_token=AGENT_TOKEN)
        self.runner: AttemptRunner | None = None
        self.is_patient = False

    def begin(self, slices: GPUSlices | None) -> None:
        """Begin as a new agent process does: from what is on disk."""
        if self.runner is not None:
            self.runner.close()
        self.runner = AttemptRunner(
            SlowExecutor(self),
            state_path=self.folder / "attempts.json",
            slices=slices,
            clock=self.clock,
        )

    def begin_with_mig(self) -> None:
        self.slices = CountingSlices(mig=MIGSlices(self.model.mig))
        self.begin(self.slices)

    def turn_until_settled(self) -> None:
        """Go round until the GPUs were settled once more."""
        before = self.slices.settled
        self.clock.advance(31)

        def is_settled() -> bool:
            self.turn(seconds=0.01)
            return self.slices.settled > before

        eventually(is_settled, what="the GPUs to be settled")

    def want(self, state: DesiredState) -> None:
        assert self.runner is not None
        self.runner.set_desired(state)

    def turn(self, *, seconds: float = 1.0) -> None:
        """Let time pass and go once round the loop."""
        assert self.runner is not None
        self.clock.advance(seconds)
        self.runner.step()
        self.runner.report(self.link, self.clock.now)

    def seen(self, attempt_id: str = "a") -> AttemptObservation | None:
        self.turn(seconds=0.01)
        return self.portal.recording.observed.get(attempt_id)

    def turn_until(self, state: ObservedState, attempt_id: str = "a") -> AttemptObservation:
        """Go round until an attempt has a state; slices are made in a thread."""

        def reached() -> AttemptObservation | None:
            self.turn(seconds=0.5)
            seen = self.portal.recording.observed.get(attempt_id)
            return seen if seen is not None and seen.state is state else None

        return eventually(reached, what=f"attempt {attempt_id} to be {state}")

    def instances(self) -> list[str]:
        return [made.uuid for made in self.model.mig.read()[0].instances]

    def has_no_instances(self) -> bool:
        self.turn(seconds=0.01)
        return not self.instances()

    def job_of_gpu(self) -> Mapping[str, str]:
        assert self.runner is not None
        return self.runner.job_of_gpu()


@pytest.fixture
def site(tmp_path: Path, portal: RecordingPortal, hand_clock: HandClock) -> Iterator[Site]:
    site = Site(tmp_path, portal, hand_clock)
    yield site
    if site.runner is not None:
        site.runner.close()
    site.link.close()


def test_an_attempt_runs_in_its_instance_which_is_reported(site: Site) -> None:
    site.begin_with_mig()
    site.want(desired(SPEC))
    seen = site.turn_until(ObservedState.RUNNING)
    assert [seen.gpu_slice_uuid] == site.instances()
    assert site.job_of_gpu() == {seen.gpu_slice_uuid: "job-1"}


def test_an_instance_is_destroyed_when_its_attempt_has_ended(site: Site) -> None:
    site.begin_with_mig()
    site.want(desired(SPEC))
    site.turn_until(ObservedState.RUNNING)
    ended = site.turn_until(ObservedState.SUCCEEDED)
    assert ended.gpu_slice_uuid
    eventually(site.has_no_instances, what="the instance to be destroyed")


def test_the_instance_of_a_stopping_attempt_stays_over_a_restart_until_it_has_ended(
    site: Site,
) -> None:
    site.begin_with_mig()
    service = msgspec.structs.replace(SPEC, env={"SIM_SECONDS": "600"})
    site.want(desired(service))
    site.turn_until(ObservedState.RUNNING)
    uuids = site.instances()
    site.is_patient = True
    site.want(desired(generation=2, stopping=["a"]))
    site.begin_with_mig()
    site.turn_until_settled()
    assert site.instances() == uuids
    site.is_patient = False
    site.turn_until(ObservedState.STOPPED)
    eventually(site.has_no_instances, what="the instance to be destroyed")


def test_a_running_attempt_reports_its_instance_after_a_restart(site: Site) -> None:
    site.begin_with_mig()
    site.want(desired(msgspec.structs.replace(SPEC, env={"SIM_SECONDS": "600"})))
    before = site.turn_until(ObservedState.RUNNING)
    site.begin_with_mig()
    after = site.seen()
    assert after is not None
    assert after.gpu_slice_uuid == before.gpu_slice_uuid


def test_an_attempt_whose_slice_can_not_be_made_fails_with_the_reason(site: Site) -> None:
    site.begin_with_mig()
    unknown = msgspec.structs.replace(SLICE, profile="9g.90gb")
    site.want(desired(msgspec.structs.replace(SPEC, gpu_slice=unknown)))
    failed = site.turn_until(ObservedState.FAILED)
    assert failed.reason == "gpu_slice_failed"
    assert "9g.90gb" in failed.message


def test_an_executor_that_can_not_share_gpus_fails_the_attempt(site: Site) -> None:
    site.begin(None)
    site.want(desired(SPEC))
    assert site.turn_until(ObservedState.FAILED).reason == "gpu_slice_failed"


def test_attempts_that_take_turns_own_no_readings_of_the_gpu(site: Site) -> None:
    site.begin_with_mig()
    turns = GPUSlice(mode=PartitionMode.TIME_SLICING, gpu_uuid=OTHER_GPU, share_milli=250)
    site.want(desired(msgspec.structs.replace(SPEC, gpu_uuids=[OTHER_GPU], gpu_slice=turns)))
    seen = site.turn_until(ObservedState.RUNNING)
    assert not seen.gpu_slice_uuid
    assert site.job_of_gpu() == {}


def test_a_gpu_is_not_switched_under_a_stopping_attempt_that_has_it_as_a_whole(
    site: Site,
) -> None:
    site.begin_with_mig()
    whole = msgspec.structs.replace(SPEC, env={"SIM_SECONDS": "600"}, gpu_slice=None)
    site.want(DesiredState(generation=1, attempts=[whole]))
    site.turn_until(ObservedState.RUNNING)
    site.is_patient = True
    site.want(desired(generation=2, stopping=["a"]))
    site.begin_with_mig()
    site.turn_until_settled()
    assert not site.model.mig.read()[0].is_enabled
    site.is_patient = False
    site.turn_until(ObservedState.STOPPED)
    eventually(lambda: _turned(site).model.mig.read()[0].is_enabled, what="MIG to be on")


def test_nothing_is_settled_while_an_attempt_runs_of_which_nothing_is_stored(site: Site) -> None:
    site.begin_with_mig()
    site.want(desired(msgspec.structs.replace(SPEC, env={"SIM_SECONDS": "600"})))
    site.turn_until(ObservedState.RUNNING)
    uuids = site.instances()
    (site.folder / "attempts.json").unlink()
    site.is_patient = True
    site.begin_with_mig()
    site.want(desired(generation=2))
    for _ in range(3):
        site.turn(seconds=31)
    assert site.slices.settled == 0
    assert site.instances() == uuids
    site.is_patient = False
    eventually(site.has_no_instances, what="the stopped attempt's instance to be destroyed")


def _turned(site: Site) -> Site:
    site.turn(seconds=0.5)
    return site


class StubbornSlices:
    """Slices of which some are never made, as by a driver that hangs."""

    modes = (PartitionMode.MPS,)

    def __init__(self) -> None:
        self.released = Event()

    def prepare(self, attempt_id: str, wanted: GPUSlice) -> SliceAccess:
        if not self.released.wait(60):
            raise SliceError(f"no slice for {attempt_id}")
        return SliceAccess(
            gpu_uuids=[wanted.gpu_uuid],
            env={"CUDA_MPS_PIPE_DIRECTORY": "/mps"},
            mounts=[Mount(source="/run/mps", target="/mps")],
            uses_host_ipc=True,
        )

    def settle(
        self, partitions: Sequence[GPUPartition], in_use: Mapping[str, GPUSlice], busy: set[str]
    ) -> None:
        pass

    def review(
        self, observed: Iterable[AttemptObservation], attempt_of_container: Mapping[str, str]
    ) -> list[AttemptObservation]:
        del attempt_of_container
        return list(observed)

    def close(self) -> None:
        self.released.set()


def test_other_attempts_run_while_a_slice_is_not_made(site: Site) -> None:
    site.begin(StubbornSlices())
    share = GPUSlice(mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=250)
    waiting = msgspec.structs.replace(SPEC, gpu_slice=share)
    whole = msgspec.structs.replace(SPEC, attempt_id="b", gpu_uuids=[OTHER_GPU], gpu_slice=None)
    site.want(desired(waiting, whole))
    site.turn_until(ObservedState.SUCCEEDED, "b")
    assert site.seen("a") is None


def test_a_container_gets_what_its_slice_needs(site: Site) -> None:
    slices = StubbornSlices()
    slices.released.set()
    site.begin(slices)
    share = GPUSlice(mode=PartitionMode.MPS, gpu_uuid=GPU, share_milli=250)
    site.want(desired(msgspec.structs.replace(SPEC, gpu_slice=share)))
    site.turn_until(ObservedState.RUNNING)
    [started] = msgspec.json.decode((site.folder / "simulated-attempts.json").read_bytes())
    spec = msgspec.convert(started["spec"], AttemptSpec)
    assert spec.env == {"SIM_SECONDS": "10", "CUDA_MPS_PIPE_DIRECTORY": "/mps"}
    assert spec.mounts == [Mount(source="/run/mps", target="/mps")]
    assert spec.uses_host_ipc


def test_no_variable_of_a_job_replaces_the_limits_of_its_slice() -> None:
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    spec = AttemptSpec(
        attempt_id="a",
        job_id="j",
        name="n",
        image="i",
        env={name: "100", "MODE": "train"},
        secrets={name: "100", "KEY": "secret"},
    )
    limited = with_slice(spec, SliceAccess(gpu_uuids=["GPU-1"], env={name: "25"}))
    assert limited.env == {name: "25", "MODE": "train"}
    assert limited.secrets == {"KEY": "secret"}
    assert limited.gpu_uuids == ["GPU-1"]
