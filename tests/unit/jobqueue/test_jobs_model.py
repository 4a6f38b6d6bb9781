"""Jobs over random start failures, kills and restarts, compared with what must hold.

The portal's dispatcher and state machine, and two agents with simulated executors, run as they do
in production: reports are lost, repeated and late, agents restart, engines break. After every step
no job runs twice, no GPU is allocated twice or leaked, retries are within their limits, and
quarantines begin and end as `jobqueue.jobs.quarantine` says.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import enumerate as threads

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from collector.jobs.attempts import AttemptRunner
from core.db import create_session_factory
from core.errors import ConflictError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.executors.base import Probe
from jobqueue.executors.simulated.executor import SimulatedExecutor
from jobqueue.jobs.quarantine import JOBS_TO_QUARANTINE, WINDOW, is_start_fault, order_probes
from jobqueue.jobs.retries import FREE_STARTS
from jobqueue.models import Attempt, Job
from jobqueue.queue.retention import delete_job
from jobqueue.queue.service import submit_job
from jobqueue.queue.stopping import stop_job
from jobqueue.states import ALLOCATED_STATES, AttemptState, JobState
from protocol.attempts import LogAck, LogChunk, ObservedReport, ObservedState
from protocol.job_spec import JobKind, JobRequest
from tenants.models import Appliance
from tests.cast import BOX, FrozenClock, make_appliance, make_cast, scope_of
from tests.unit.jobqueue.builders import inventory

MAX_RETRIES = 1
GPUS = 2
FAULT = "network bridge not found"


class WithoutProbes(SimulatedExecutor):
    """An appliance whose agent is too old to run probes."""

    def probe(self) -> Probe | None:
        return None


class Site:
    """An appliance with its agent, and the link to the portal, which loses and repeats reports."""

    def __init__(self, name: str, folder: Path, clock: FrozenClock, *, can_probe: bool) -> None:
        self.name, self.can_probe = name, can_probe
        self.reports: list[ObservedReport] = []
        self._folder, self._clock = folder, clock
        self._folder.mkdir()
        self.is_broken = False
        self.restart()

    def restart(self) -> None:
        """Start the agent, as after a kill: only what it has written is left."""
        kind = SimulatedExecutor if self.can_probe else WithoutProbes
        self.executor = kind(
            self._clock,
            on_work=lambda *_: None,
            on_end=lambda *_: None,
            state_path=self._folder / "simulated.json",
        )
        self.runner = AttemptRunner(
            self.executor, state_path=self._folder / "attempts.json", clock=self._clock
        )
        self.set_broken(is_broken=self.is_broken)

    def set_broken(self, *, is_broken: bool) -> None:
        """Break or repair the engine."""
        self.is_broken = is_broken
        self.executor.start_fault = FAULT if is_broken else ""

    def report(self, observed: ObservedReport) -> None:
        """Take a report for the portal."""
        self.reports.append(observed)

    def ship_logs(self, chunks: list[LogChunk]) -> list[LogAck]:
        """Take logs."""
        return [LogAck(next_offset=chunk.offset + len(chunk.data)) for chunk in chunks]

    def step(self) -> None:
        """Let the agent observe, act, wait for its probe, and report."""
        self.runner.step()
        for thread in threads():
            if thread.name == "probe":
                thread.join()
        self.runner.step()
        self.runner.report(self, self._clock())  # type: ignore[arg-type] # the part that it uses
        self.runner.ship_logs(self)  # type: ignore[arg-type] # as above

    def running_jobs(self) -> list[str]:
        """Return the jobs whose containers run."""
        running = {
            seen.attempt_id
            for seen in self.executor.observe()
            if seen.state is ObservedState.RUNNING
        }
        return [
            attempt.spec.job_id
            for ident, attempt in self.executor._attempts.items()  # noqa: SLF001 - what really runs
            if ident in running
        ]


class Jobs(RuleBasedStateMachine):
    """The effects of users, appliances and time on jobs.

    Attributes:
        engine: opens the file of its option `file`; its compiled statements serve all examples.
        tables: a file with every table and no rows.
    """

    engine: Engine
    tables: Path

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory(prefix="vedette-jobs-")
        folder = Path(self._folder.name)
        file = shutil.copyfile(self.tables, folder / "vedette.db")
        self.engine.update_execution_options(file=file)
        self.sessions = create_session_factory(self.engine)
        self.clock = FrozenClock()
        names = {"dgx-01": True, "dgx-02": False}
        self.sites = {
            name: Site(name, folder / name, self.clock, can_probe=can_probe)
            for name, can_probe in names.items()
        }
        with self.sessions.begin() as session:
            cast = make_cast(session)
            self.scope = scope_of(cast.alice)
            self.appliance_ids = {
                name: make_appliance(
                    session,
                    cast.acme,
                    name,
                    inventory=inventory(name, gpus=GPUS) | {"can_probe": can_probe},
                ).id
                for name, can_probe in names.items()
            }
        self.restart_portal()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.engine.dispose()
            self._folder.cleanup()

    @rule(
        count=st.integers(1, 3),
        gpus=st.integers(0, GPUS),
        is_service=st.booleans(),
        image=st.sampled_from(["train", "train", "train", "missing"]),
        exit_code=st.sampled_from([0, 0, 1]),
        retries=st.integers(0, MAX_RETRIES),
    )
    def submit(
        self, *, count: int, gpus: int, is_service: bool, image: str, exit_code: int, retries: int
    ) -> None:
        request = JobRequest(
            name="train",
            image=image,
            kind=JobKind.SERVICE if is_service else JobKind.BATCH,
            gpus=gpus,
            env={"SIM_SECONDS": "40", "SIM_EXIT_CODE": str(exit_code)},
            max_retries=0 if is_service else retries,
            retry_on=[] if is_service or not retries else ["exit", "start"],
        )
        with self.sessions.begin() as session:
            for _ in range(count):
                submit_job(session, self.scope, request, box=BOX, now=self.clock())

    @rule(number=st.integers(0, 9))
    def stop(self, number: int) -> None:
        self._on_job(number, stop_job)

    @rule(number=st.integers(0, 9))
    def delete(self, number: int) -> None:
        self._on_job(number, delete_job)

    def _on_job(self, number: int, act: Callable[..., object]) -> None:
        with self.sessions.begin() as session:
            ids = session.scalars(select(Job.id).order_by(Job.id)).all()
            if number >= len(ids):
                return
            job = session.get_one(Job, ids[number])
            is_refused = job.state.is_final is (act is stop_job)
            try:
                act(session, self.scope, job.id, now=self.clock())
            except ConflictError:
                assert is_refused
            else:
                assert not is_refused

    @rule(seconds=st.sampled_from([1, 5, 30, 120]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def dispatch(self) -> None:
        self.dispatcher.cycle(now=self.clock())
        with self.sessions.begin() as session:
            order_probes(session, now=self.clock())

    @rule()
    def restart_portal(self) -> None:
        self.dispatcher = Dispatcher(self.sessions.begin)

    @rule(name=st.sampled_from(["dgx-01", "dgx-02"]))
    def poll(self, name: str) -> None:
        site = self.sites[name]
        with self.sessions.begin() as session:
            site.runner.set_desired(desired_state(session, self.appliance_ids[name], box=BOX))

    @rule(name=st.sampled_from(["dgx-01", "dgx-02"]), is_lost=st.booleans())
    def step(self, *, name: str, is_lost: bool) -> None:
        site = self.sites[name]
        count = len(site.reports)
        site.step()
        if not is_lost and len(site.reports) > count:
            self._deliver(name, site.reports[-1])

    @precondition(lambda self: any(site.reports for site in self.sites.values()))
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([n for n, site in self.sites.items() if site.reports]))
        self._deliver(name, data.draw(st.sampled_from(self.sites[name].reports[-5:])))

    @rule()
    def operate(self) -> None:
        """Let everything go its usual way for some seconds."""
        self.dispatch()
        for name in self.sites:
            self.poll(name=name)
            self.step(name=name, is_lost=False)
            self.clock.advance(3)
            self.step(name=name, is_lost=False)

    @rule()
    def break_everything(self) -> None:
        """Let jobs meet engines that can't start them."""
        for name in self.sites:
            self.change_engine(name=name, is_broken=True)
        self.submit(count=3, gpus=1, is_service=False, image="train", exit_code=0, retries=0)
        self.operate()

    @rule(name=st.sampled_from(["dgx-01", "dgx-02"]))
    def restart_agent(self, name: str) -> None:
        self.sites[name].restart()

    @rule(
        name=st.sampled_from(["dgx-01", "dgx-02"]), is_broken=st.sampled_from([True, True, False])
    )
    def change_engine(self, *, name: str, is_broken: bool) -> None:
        self.sites[name].set_broken(is_broken=is_broken)

    def _deliver(self, name: str, observed: ObservedReport) -> None:
        """Deliver a report, and compare the quarantine with what the report must do to it."""
        now, ident = self.clock(), self.appliance_ids[name]
        with self.sessions.begin() as session:
            before = session.get_one(Appliance, ident).quarantined_at
            failed = {fault.id for fault in self._faults(session, ident, now=now)}
            apply_report(session, ident, observed.attempts, probe=observed.probe, now=now)
        with self.sessions() as session:
            appliance = session.get_one(Appliance, ident)
            faults = self._faults(session, ident, now=now)
            is_new = {fault.id for fault in faults} != failed
            jobs = {fault.job_id for fault in faults}
            after = appliance.quarantined_at
            if before is None and after is None:
                assert not (is_new and len(jobs) >= JOBS_TO_QUARANTINE)
            elif before is None:
                assert len(jobs) >= JOBS_TO_QUARANTINE
            elif after is None:
                has_run = observed.probe is not None and not observed.probe.problem
                started = [
                    attempt for attempt in self._attempts(session, ident) if attempt.started_at
                ]
                assert has_run or any(is_after(attempt.assigned_at, before) for attempt in started)

    def _attempts(self, session: Session, appliance_id: str) -> list[Attempt]:
        placed = select(Attempt).where(
            Attempt.appliance_id == appliance_id, Attempt.assigned_at.is_not(None)
        )
        return list(session.scalars(placed).unique())

    def _faults(self, session: Session, appliance_id: str, *, now: datetime) -> list[Attempt]:
        ended_at = session.get_one(Appliance, appliance_id).quarantine_ended_at
        since = max(now - WINDOW, ended_at or now - WINDOW)
        return [
            attempt
            for attempt in self._attempts(session, appliance_id)
            if is_start_fault(attempt) and is_after(attempt.finished_at, since)
        ]

    @invariant()
    def no_gpu_is_allocated_twice(self) -> None:
        with self.sessions() as session:
            for name, ident in self.appliance_ids.items():
                allocated = [
                    attempt for attempt in self._attempts(session, ident) if is_allocated(attempt)
                ]
                uuids = Counter(uuid for attempt in allocated for uuid in attempt.gpu_uuids)
                assert all(count == 1 for count in uuids.values())
                assert uuids.keys() <= {f"GPU-{name}-{index}" for index in range(GPUS)}
                assert all(len(attempt.gpu_uuids) == attempt.job.gpus for attempt in allocated)

    @invariant()
    def jobs_and_attempts_agree(self) -> None:
        with self.sessions() as session:
            for job in session.scalars(select(Job)).unique():
                live = [attempt for attempt in job.attempts if not attempt.state.is_final]
                if job.state in {JobState.STARTING, JobState.RUNNING}:
                    assert [attempt.state.value for attempt in live] == [job.state.value]
                elif job.state is JobState.QUEUED:
                    assert all(attempt.state is AttemptState.BOUND for attempt in live)
                    assert len(live) <= 1
                    assert job.stop_requested_at is None
                else:
                    assert live == []

    @invariant()
    def no_job_runs_twice(self) -> None:
        running = Counter(job for site in self.sites.values() for job in site.running_jobs())
        assert all(count == 1 for count in running.values())

    @invariant()
    def retries_are_within_their_limits(self) -> None:
        with self.sessions() as session:
            for job in session.scalars(select(Job).where(Job.kind == JobKind.BATCH)).unique():
                trials = sum(bool(attempt.placement.get("is_trial")) for attempt in job.attempts)
                assert len(job.attempts) <= 1 + job.max_retries + FREE_STARTS + trials

    @invariant()
    def a_quarantined_appliance_gets_no_jobs_but_one_on_trial(self) -> None:
        with self.sessions() as session:
            for name, ident in self.appliance_ids.items():
                began_at = session.get_one(Appliance, ident).quarantined_at
                later = [
                    attempt
                    for attempt in self._attempts(session, ident)
                    if is_after(attempt.assigned_at, began_at) and is_allocated(attempt)
                ]
                assert len(later) <= (0 if self.sites[name].can_probe else 1)

    def settle(self) -> None:
        """Repair everything and wait: every job ends, and every GPU is free."""
        for name in self.sites:
            self.change_engine(name=name, is_broken=False)
        with self.sessions() as session:
            services = select(Job.id).where(Job.kind == JobKind.SERVICE)
            ids = session.scalars(services.where(Job.state.not_in(FINAL))).all()
        for ident in ids:
            with self.sessions.begin() as session:
                stop_job(session, self.scope, ident, now=self.clock())
        with self.sessions() as session:
            jobs = session.scalars(select(Job.id).where(Job.state.not_in(FINAL))).all()
        # An appliance in quarantine tries one job after another.
        for _ in range(60 + len(jobs)):
            self.clock.now += timedelta(minutes=11)
            self.operate()
            with self.sessions() as session:
                jobs = session.scalars(select(Job.id).where(Job.state.not_in(FINAL))).all()
            if not jobs:
                break
        with self.sessions() as session:
            assert jobs == []
            assert not any(
                is_allocated(attempt) for attempt in session.scalars(select(Attempt)).unique()
            )


FINAL = [state for state in JobState if state.is_final]


def is_after(at: datetime | None, other: datetime | None) -> bool:
    """Return whether both instants are set, and the first is the later one."""
    return at is not None and other is not None and at > other


def is_allocated(attempt: Attempt) -> bool:
    """Return whether resources are allocated to an attempt."""
    return attempt.state in ALLOCATED_STATES


@pytest.fixture
def jobs(shared_engine: Engine, empty_database: Path) -> type[Jobs]:
    """The model on the engine of all tests."""
    return type("JobsOfTest", (Jobs,), {"engine": shared_engine, "tables": empty_database})


def run(jobs: type[Jobs], *, examples: int, steps: int) -> None:
    """Run the model on random sequences."""
    run_state_machine_as_test(
        jobs,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(600)
def test_jobs_over_failures_kills_and_restarts(jobs: type[Jobs]) -> None:
    run(jobs, examples=1, steps=8)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_jobs_over_many_failures_kills_and_restarts(jobs: type[Jobs]) -> None:
    run(jobs, examples=500, steps=80)
