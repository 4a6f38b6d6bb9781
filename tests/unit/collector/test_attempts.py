"""The attempt runner with the simulated executor, over real HTTP to a recording portal."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collector.data_dir import load_json
from collector.errors import PortalUnreachableError
from collector.jobs.attempts import AttemptRunner, AttemptState
from collector.jobs.executors import simulated_executor
from collector.jobs.storage import StorageReporter
from collector.sending.access_points import AccessPoints
from collector.sending.portal_connection import PortalConnection
from jobqueue.executors.base import ExecutorError
from jobqueue.executors.simulated.executor import SimulatedExecutor
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from protocol.attempts import AttemptSpec, DesiredState, ObservedState
from protocol.storage import CleanupOrder, StorageReport
from tests.fixtures.recording_portal import AGENT_TOKEN, RecordingPortal, Refusal
from tests.unit.collector.hand_clock import HandClock

CONFIG = SimulationConfig(seed="acme/dgx-1")
SPEC = AttemptSpec(
    attempt_id="a",
    job_id="job-1",
    name="train",
    image="train:1",
    env={"SIM_SECONDS": "10"},
    gpu_uuids=CONFIG.gpu_uuids[:2],
    cpus=4,
)
RUN = DesiredState(generation=1, attempts=[SPEC])


class Site:
    """One appliance: its runner, its link, and the passing of its time."""

    def __init__(self, folder: Path, portal: RecordingPortal, clock: HandClock) -> None:
        self.folder, self.portal, self.clock = folder, portal, clock
        self.model = SimulatedAppliance(CONFIG, started_at=clock.now)
        self.link = PortalConnection(AccessPoints([portal.url]), agent_token=AGENT_TOKEN)
        self.restart()

    def restart(self) -> None:
        """Begin again as a new agent process does: from what is on disk."""
        self.executor = simulated_executor(self.model, clock=self.clock, data_dir=self.folder)
        self.runner = AttemptRunner(
            self.executor, state_path=self.folder / "attempts.json", clock=self.clock
        )

    def turn(self, *, seconds: float = 1.0) -> None:
        """Let time pass and go once round the loop."""
        self.clock.advance(seconds)
        self.runner.step()
        self.runner.report(self.link, self.clock.now)
        self.runner.ship_logs(self.link)

    def state(self) -> ObservedState | None:
        seen = self.portal.recording.observed.get("a")
        return seen.state if seen else None


@pytest.fixture
def site(tmp_path: Path, portal: RecordingPortal, hand_clock: HandClock) -> Iterator[Site]:
    site = Site(tmp_path, portal, hand_clock)
    yield site
    site.link.close()


def test_an_attempt_is_started_reported_and_its_log_shipped(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn()
    assert site.state() is ObservedState.STARTING
    site.turn(seconds=3)
    assert site.state() is ObservedState.RUNNING
    assert b"train: image train:1" in site.portal.recording.logs["a"]
    site.turn(seconds=10)
    assert site.state() is ObservedState.SUCCEEDED
    assert site.portal.recording.logs["a"].endswith(b"training finished\n")


def test_an_attempt_fails_at_its_time_limit_over_a_restart(site: Site) -> None:
    limited = msgspec.structs.replace(SPEC, time_limit_seconds=5)
    site.runner.set_desired(DesiredState(generation=1, attempts=[limited]))
    site.turn()
    site.turn(seconds=5)
    assert site.state() is ObservedState.RUNNING
    site.restart()
    site.turn(seconds=3)
    site.turn()
    ended = site.portal.recording.observed["a"]
    assert (ended.state, ended.reason) == (ObservedState.FAILED, "time_limit")


def test_the_state_of_an_earlier_agent_is_read(site: Site) -> None:
    limited = msgspec.structs.replace(SPEC, time_limit_seconds=3600)
    site.runner.set_desired(DesiredState(generation=1, attempts=[limited]))
    site.turn()
    state = site.folder / "attempts.json"
    text = state.read_text("utf-8")
    # It stored the limit as a decimal, and did not know the grace period.
    earlier = text.replace('"time_limit_seconds":3600', '"time_limit_seconds":3600.0')
    state.write_text(earlier.replace('"stop_grace_seconds":0,', ""), "utf-8")
    assert len(state.read_text("utf-8")) < len(text)
    stored = load_json(state, AttemptState)
    assert stored is not None
    assert stored.desired == DesiredState(generation=1, attempts=[limited])


def test_an_unlisted_attempt_is_removed_once_its_log_is_delivered(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=20)
    site.runner.set_desired(DesiredState(generation=2))
    site.turn()
    site.turn()
    assert site.executor.observe() == []
    assert site.portal.recording.logs["a"].endswith(b"training finished\n")


def test_an_ended_attempt_is_not_run_again_after_a_restart_that_lost_the_executors_memory(
    site: Site,
) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=20)
    (site.folder / "simulated-attempts.json").unlink()
    site.restart()
    site.runner.set_desired(RUN)
    site.turn()
    site.turn()
    assert site.executor.observe() == []
    assert site.state() is ObservedState.SUCCEEDED


def test_a_running_attempt_continues_over_a_restart_without_the_portal(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=3)
    site.restart()
    site.turn()
    [seen] = site.executor.observe()
    assert seen.state is ObservedState.RUNNING
    assert site.runner.generation == -1  # the next poll is answered at once


def test_nothing_is_stopped_before_the_first_desired_state(site: Site) -> None:
    site.executor.start(SPEC)
    site.turn(seconds=3)
    assert site.state() is ObservedState.RUNNING


def test_a_stopped_attempt_is_reported_stopped(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=3)
    site.runner.set_desired(DesiredState(generation=2, stopping=["a"]))
    site.turn()
    site.turn()
    assert site.state() is ObservedState.STOPPED


def test_reports_are_sent_on_change_and_every_ten_seconds(site: Site) -> None:
    for _ in range(9):
        site.turn()
    assert site.portal.recording.reports == 1
    site.turn(seconds=2)
    assert site.portal.recording.reports == 2


def test_a_log_continues_at_the_offset_from_the_portal(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=5)
    log = site.portal.recording.logs["a"]
    site.restart()
    site.turn(seconds=2)
    site.turn(seconds=2)
    assert site.portal.recording.logs["a"].startswith(log)
    assert len(site.portal.recording.logs["a"]) > len(log)
    assert site.portal.recording.logs["a"].count(b"image train:1") == 1


def test_a_log_that_is_full_is_not_sent_on(site: Site) -> None:
    site.portal.recording.log_limit_bytes = 50
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=20)
    assert len(site.portal.recording.logs["a"]) == 50
    site.runner.set_desired(DesiredState(generation=2))
    site.turn()
    assert site.executor.observe() == []


def test_an_unreported_end_is_reported_later(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.portal.refuse_always(Refusal(503))
    with pytest.raises(PortalUnreachableError):
        site.turn(seconds=20)
    site.portal.refuse_always(None)
    site.turn()
    assert site.state() is ObservedState.SUCCEEDED


def test_gpus_are_attributed_to_the_job_while_it_runs(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    assert site.runner.job_of_gpu() == {}
    site.turn(seconds=3)
    assert site.runner.job_of_gpu() == dict.fromkeys(CONFIG.gpu_uuids[:2], "job-1")
    site.turn(seconds=20)
    assert site.runner.job_of_gpu() == {}


class ContainerExecutor(SimulatedExecutor):
    """Simulated attempts that have a container each, named after the attempt."""

    def container_ids(self) -> Mapping[str, str]:
        return {f"{seen.attempt_id:0>64}": seen.attempt_id for seen in self.observe()}


def in_containers(site: Site) -> AttemptRunner:
    executor = ContainerExecutor(
        site.clock, on_work=lambda *_: None, on_end=lambda *_: None, state_path=None
    )
    return AttemptRunner(executor, state_path=site.folder / "containers.json")


def test_a_container_is_attributed_to_its_job_until_the_attempt_ends(site: Site) -> None:
    runner = in_containers(site)
    runner.set_desired(RUN)
    runner.step()
    assert runner.job_of_container() == {}
    site.clock.advance(3)
    runner.step()
    assert runner.job_of_container() == {f"{'a':0>64}": "job-1"}
    site.clock.advance(10)
    runner.step()
    assert runner.job_of_container() == {}


def test_a_container_that_is_being_stopped_still_belongs_to_its_job(site: Site) -> None:
    runner = in_containers(site)
    runner.set_desired(RUN)
    runner.step()
    site.clock.advance(3)
    runner.step()
    runner.set_desired(DesiredState(generation=2, stopping=["a"]))
    assert runner.job_of_container() == {f"{'a':0>64}": "job-1"}


def test_the_use_of_a_running_attempt_becomes_a_point(site: Site) -> None:
    site.runner.set_desired(RUN)
    site.turn()
    site.turn(seconds=3)
    point, container = site.runner.usage_points(site.clock.now)
    assert (container.measurement, container.tags["job"]) == ("container", point.tags["job"])
    assert point.measurement == "attempt"
    assert point.tags == {"job": "job-1", "attempt": "a"}
    assert point.fields["cpu_percent"] > 0  # type: ignore[operator] # a float by contract


class StorageLink:
    """Notes the images of each report, and orders nothing."""

    def __init__(self) -> None:
        self.reports: list[list[str]] = []

    def report_storage(self, report: StorageReport) -> CleanupOrder:
        self.reports.append([image.names[0] for image in report.images])
        return CleanupOrder()


def test_images_are_reported_every_ten_minutes_and_soon_after_jobs_with_others(site: Site) -> None:
    link: Any = StorageLink()
    storage = site.executor.storage()
    assert storage
    reporter = StorageReporter(storage, site.runner, site.clock)
    reporter.step(link)
    site.runner.set_desired(RUN)
    site.turn()
    for seconds, count in ((30, 1), (30, 2), (60, 2), (480, 2), (60, 3)):
        site.clock.advance(seconds)
        reporter.step(link)
        assert len(link.reports) == count
    assert link.reports == [[], ["train:1"], ["train:1"]]


class SlowStarts(SimulatedExecutor):
    """An executor that takes longer to accept an attempt than a step may start attempts."""

    def start(self, spec: AttemptSpec) -> None:
        super().start(spec)
        time.sleep(0.02)


def test_attempts_that_start_slowly_do_not_hold_up_stops_and_reports(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.jobs.attempts.START_SECONDS", 0.01)
    executor = SlowStarts(
        site.clock, on_work=lambda *_: None, on_end=lambda *_: None, state_path=None
    )
    runner = AttemptRunner(executor, state_path=site.folder / "slow.json", clock=site.clock)
    names = ["a", "b", "c"]
    attempts = [msgspec.structs.replace(SPEC, attempt_id=name) for name in names]
    runner.set_desired(DesiredState(generation=1, attempts=attempts[:1]))
    runner.step()
    runner.set_desired(DesiredState(generation=2, attempts=attempts[1:], stopping=["a"]))
    site.clock.advance(5)
    runner.step()
    states = {seen.attempt_id: seen.state for seen in executor.observe()}
    assert set(states) == {"a", "b"}
    assert runner.step_wanted.is_set()
    runner.step()
    assert {seen.attempt_id for seen in executor.observe()} == set(names)
    assert not runner.step_wanted.is_set()


class OtherExecutor(SimulatedExecutor):
    """An executor that the agent's configuration names in place of another."""

    name = "other"
    names = ("other",)


def test_what_another_executor_has_is_not_started_a_second_time(site: Site) -> None:
    state_path = site.folder / "changed.json"
    other = OtherExecutor(
        site.clock, on_work=lambda *_: None, on_end=lambda *_: None, state_path=None
    )
    for executor in (site.executor, other):
        site.runner = AttemptRunner(executor, state_path=state_path, clock=site.clock)
        site.runner.set_desired(RUN)
        site.turn(seconds=0)
        site.turn(seconds=0)
    assert other.observe() == []
    seen = site.portal.recording.observed["a"]
    assert (seen.state, seen.reason) == (ObservedState.FAILED, "executor_error")
    assert "while simulated had the attempt" in seen.message


class FullCluster(SimulatedExecutor):
    """An executor that accepts no attempts for now."""

    is_full = True

    def start(self, spec: AttemptSpec) -> None:
        if self.is_full:
            raise ExecutorError("Slurm accepts no more jobs now")
        super().start(spec)


def test_an_attempt_that_is_not_accepted_yet_says_why(site: Site) -> None:
    executor = FullCluster(
        site.clock, on_work=lambda *_: None, on_end=lambda *_: None, state_path=None
    )
    site.runner = AttemptRunner(executor, state_path=site.folder / "full.json", clock=site.clock)
    site.runner.set_desired(RUN)
    site.turn()
    seen = site.portal.recording.observed["a"]
    assert seen.state is ObservedState.STARTING
    assert seen.message == "Not started yet: Slurm accepts no more jobs now"
    executor.is_full = False
    site.turn()
    site.turn()
    assert "Not started" not in site.portal.recording.observed["a"].message
    site.turn(seconds=5)
    assert site.state() is ObservedState.RUNNING
