"""What prepares attempts fails on its own: the other attempts and parts go on."""

import errno
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from collector.jobs.attempts import AttemptRunner
from collector.jobs.executors import simulated_executor
from collector.jobs.preparations import Preparation
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    ObservedReport,
    ObservedState,
    StagingProgress,
)
from protocol.gangs import Gang
from tests.unit.collector.hand_clock import HandClock


class Network(Preparation):
    """Has a network for each attempt that should run."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.is_closed = False

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        self.made.add(spec.attempt_id)
        return spec

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:  # noqa: ARG002
        return "Making the network.", None

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        self.made &= set(attempt_ids)

    def close(self) -> None:
        self.is_closed = True


class Data(Network):
    """Stages for a while, or has a fault in one of its methods."""

    def __init__(self, fault: str = "", error: Exception | None = None) -> None:
        super().__init__()
        self.fault, self.error = fault, error or OSError(errno.ENOSPC, "No space left on device")
        self.is_staging = False

    def _fail(self, name: str) -> None:
        if self.fault == name:
            raise self.error

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        if spec.attempt_id != "bad":
            return spec
        self._fail("prepare")
        return None if self.is_staging else spec

    def progress(self, attempt_id: str) -> tuple[str, StagingProgress | None]:  # noqa: ARG002
        self._fail("progress")
        return "Fetching imagenet.", StagingProgress(staged_bytes=1, total_bytes=2)

    def review(self, observed: Sequence[AttemptObservation]) -> list[AttemptObservation]:
        self._fail("review")
        return list(observed)

    def keep_only(self, attempt_ids: Collection[str]) -> None:
        self._fail("keep_only")
        super().keep_only(attempt_ids)

    def close(self) -> None:
        self._fail("close")


class Portal:
    """Remembers reports."""

    def __init__(self) -> None:
        self.reports: list[ObservedReport] = []

    def report(self, report: ObservedReport) -> None:
        self.reports.append(report)


class Site:
    """A runner with these preparations."""

    def __init__(self, folder: Path, clock: HandClock, *preparations: Preparation) -> None:
        self.folder, self.clock = folder, clock
        self.model = SimulatedAppliance(SimulationConfig(seed="a"), started_at=clock.now)
        self.portal = Portal()
        self.start(*preparations)

    def start(self, *preparations: Preparation) -> None:
        self.runner = AttemptRunner(
            simulated_executor(self.model, clock=self.clock, data_dir=self.folder),
            state_path=self.folder / "attempts.json",
            preparations=preparations,
            clock=self.clock,
        )

    def wants(self, *attempt_ids: str, stopping: Sequence[str] = ()) -> None:
        self.generation = getattr(self, "generation", 0) + 1
        specs = [
            AttemptSpec(attempt_id=own, job_id=f"job-{own}", name="train", image="train")
            for own in attempt_ids
        ]
        self.runner.set_desired(
            DesiredState(generation=self.generation, attempts=specs, stopping=list(stopping))
        )

    def turn(self) -> dict[str, AttemptObservation]:
        self.clock.advance(20)
        self.runner.step()
        self.runner.report(self.portal, self.clock())  # type: ignore[arg-type]
        return {seen.attempt_id: seen for seen in self.portal.reports[-1].attempts}


@pytest.mark.parametrize("fault", ["prepare", "progress", "review", "keep_only"])
def test_a_fault_of_one_preparation_stops_no_other_attempt(
    tmp_path: Path, hand_clock: HandClock, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    network, data, after = Network(), Data(fault), Network()
    data.is_staging = True
    site = Site(tmp_path, hand_clock, network, data, after)
    site.wants("bad", "good")
    for _ in range(5):
        seen = site.turn()
    assert seen["good"].state in {ObservedState.RUNNING, ObservedState.SUCCEEDED}
    assert len([record for record in caplog.records if record.exc_info]) == 1
    site.wants()
    site.turn()
    assert "bad" not in network.made | after.made


def test_an_attempt_that_cannot_be_prepared_fails_once_with_the_reason(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    network = Network()
    site = Site(tmp_path, hand_clock, network, Data("prepare"))
    site.wants("bad")
    seen = [site.turn()["bad"] for _ in range(4)]
    assert {observation.state for observation in seen[1:]} == {ObservedState.FAILED}
    assert seen[-1].reason == "start_failed"
    assert "No space left on device" in seen[-1].message
    site.wants()
    assert site.turn() == {}
    assert not network.made, "what was made before is removed"


def test_a_secret_in_an_unknown_error_is_not_reported(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    fault = RuntimeError("https://host/x?token=presigned-secret")
    site = Site(tmp_path, hand_clock, Data("prepare", fault))
    site.wants("bad")
    site.turn()
    message = site.turn()["bad"].message
    assert "RuntimeError" in message
    assert "presigned-secret" not in message


def test_an_attempt_stopped_while_it_stages_ends_once_and_leaves_nothing(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    network, data = Network(), Data()
    data.is_staging = True
    site = Site(tmp_path, hand_clock, network, data)
    site.wants("bad")
    for _ in range(3):
        seen = site.turn()["bad"]
        assert (seen.state, seen.message) == (ObservedState.STARTING, "Fetching imagenet.")
    site.start(network, data)  # killed: the next agent goes on
    seen = site.turn()["bad"]
    assert seen.staging == StagingProgress(staged_bytes=1, total_bytes=2)
    site.wants("bad", stopping=["bad"])
    site.turn()
    seen = site.turn()["bad"]
    assert (seen.state, seen.reason) == (ObservedState.STOPPED, "never_started")
    data.is_staging = False
    assert site.turn()["bad"] == seen, "it does not start any more"
    site.wants()
    site.turn()
    assert not network.made


def test_a_failing_preparation_does_not_keep_the_others_open(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    before, after = Network(), Network()
    Site(tmp_path, hand_clock, before, Data("close"), after).runner.close()
    assert before.is_closed
    assert after.is_closed


def test_attempts_start_although_the_orders_of_datasets_cannot_be_followed(
    tmp_path: Path, hand_clock: HandClock
) -> None:
    def fail(_: DesiredState) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    model = SimulatedAppliance(SimulationConfig(seed="a"), started_at=hand_clock.now)
    runner = AttemptRunner(
        simulated_executor(model, clock=hand_clock, data_dir=tmp_path),
        state_path=tmp_path / "attempts.json",
        on_desired=fail,
        clock=hand_clock,
    )
    runner.set_desired(DesiredState(generation=7))
    assert runner.generation == 7
    runner.close()


def test_a_member_waits_until_its_gang_may_start(tmp_path: Path, clock: HandClock) -> None:
    site = Site(tmp_path, clock)

    def order(generation: int, *, may_start: bool) -> None:
        gang = Gang(gang_id="gang", rank=0, members=[], may_start=may_start)
        spec = AttemptSpec(attempt_id="a", job_id="job-a", name="train", image="train", gang=gang)
        site.runner.set_desired(DesiredState(generation=generation, attempts=[spec]))

    order(1, may_start=False)
    waiting = site.turn()["a"]
    assert (waiting.state, waiting.is_prepared) == (ObservedState.STARTING, True)
    assert "other members" in waiting.message
    site.start()  # a restart of the agent starts nothing either
    order(1, may_start=False)
    assert site.turn()["a"].is_prepared
    order(2, may_start=True)
    site.turn()
    started = site.turn()["a"]
    assert (started.state, started.is_prepared) == (ObservedState.RUNNING, False)
    order(3, may_start=False)  # another member is prepared anew; this one runs on
    assert site.turn()["a"].state is ObservedState.RUNNING
