"""Dispatch applies decisions to rows, guarded against concurrent changes."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from jobqueue.dispatch import dispatcher as dispatching
from jobqueue.dispatch.appliance_lifecycle import retire_idle_appliance
from jobqueue.dispatch.dispatcher import Dispatcher
from jobqueue.dispatch.snapshot import read_snapshot
from jobqueue.models import Attempt, Job
from jobqueue.placement.decisions import Action
from jobqueue.placement.views import Snapshot
from jobqueue.queue.service import job_events
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from protocol.job_spec import Port
from tenants.fleet.appliance_service import drain_appliance
from tenants.models import ApplianceState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, start, submit

# A turn lists the tenants, begins a pass, reads, decides and writes.
LAST_OF_A_TURN = 5


def attempts_of(session: Session, job: Job) -> list[Attempt]:
    session.refresh(job)
    return job.attempts


def test_a_job_starts_on_a_free_appliance_with_its_gpus(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    job = submit(session, cast.alice, gpus=2)
    summary = dispatch(session, now=NOON)
    [attempt] = attempts_of(session, job)
    assert summary == {Action.ASSIGN: 1}
    assert (job.state, attempt.state) == (JobState.STARTING, AttemptState.STARTING)
    assert attempt.gpu_uuids == ["GPU-dgx-01-0", "GPU-dgx-01-1"]
    assert (attempt.appliance_id, attempt.number, attempt.assigned_at) == (dgx.id, 1, NOON)
    assert attempt.placement == {
        "policy": "first_free_else_lru",
        "reason": "dgx-01 was the first free appliance.",
        "rejections": [],
    }


def test_a_job_waits_with_the_reason_while_the_only_executor_would_drop_a_field(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "mesos-1", executors=["marathon", "chronos"])
    ports = submit(session, cast.alice, command=["serve"], ports=[Port(container_port=80)])
    image_command = submit(session, cast.alice, "default", command=[])
    dispatch(session, now=NOON)
    assert "mesos-1: chronos publishes no ports" in ports.message
    assert "mesos-1: chronos requires a command" in image_command.message
    assert not attempts_of(session, ports) + attempts_of(session, image_command)


def test_an_assignment_moves_the_appliances_generation(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    before = dgx.desired_generation
    submit(session, cast.alice)
    dispatch(session, now=NOON)
    session.refresh(dgx)
    assert dgx.desired_generation == before + 1


def test_a_job_that_must_wait_is_bound_and_says_why(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    submit(session, cast.alice, "first", gpus=6)
    job = submit(session, cast.alice, "second", gpus=4)
    summary = dispatch(session, now=NOON)
    [attempt] = attempts_of(session, job)
    assert summary[Action.BIND] == 1
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RESOURCES)
    assert "dgx-01: 2 of 8 GPUs free, 4 requested" in job.message
    assert (attempt.state, attempt.gpu_uuids) == (AttemptState.BOUND, [])
    assert attempt.placement["policy"] == "least_recently_used"
    [refused] = attempt.placement["rejections"]
    assert (refused["code"], refused["count"]) == ("gpus_busy", 1)
    assert refused["examples"] == [
        {
            "appliance_id": dgx.id,
            "appliance": "dgx-01",
            "fact": "2 of 8 GPUs free, 4 requested",
        }
    ]


def test_a_bound_job_starts_when_the_one_before_it_ends(session: Session, cast: Cast) -> None:
    running = start(session, cast, gpus=8)
    job = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    report(session, running, ObservedState.SUCCEEDED, exit_code=0)
    dispatch(session, now=NOON)
    [attempt] = attempts_of(session, job)
    assert (job.state, attempt.state) == (JobState.STARTING, AttemptState.STARTING)
    assert (attempt.number, len(attempt.gpu_uuids)) == (1, 8)


def test_a_bound_attempt_moves_to_the_appliance_that_frees_up(session: Session, cast: Cast) -> None:
    start(session, cast, gpus=8)
    job = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    [bound] = attempts_of(session, job)
    other = add_appliance(session, cast.acme, "dgx-02")
    dispatch(session, now=NOON)
    [attempt] = attempts_of(session, job)
    assert attempt.id == bound.id
    assert (attempt.appliance_id, attempt.state) == (other.id, AttemptState.STARTING)
    assert attempt.placement["policy"] == "first_free_else_lru"


def test_a_job_that_can_go_nowhere_shows_every_rejection(session: Session, cast: Cast) -> None:
    for name, state in [("dgx-01", ApplianceState.LOST), ("dgx-02", ApplianceState.STALE)]:
        add_appliance(session, cast.acme, name).state = state
    job = submit(session, cast.alice)
    summary = dispatch(session, now=NOON)
    assert attempts_of(session, job) == []
    assert summary == {Action.UNPLACED: 1}
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_APPLIANCE)
    assert "dgx-02: no recent heartbeat" in job.message
    assert job.message.endswith("; dgx-01: lost.")


def test_a_waiting_job_writes_no_event_in_each_cycle(session: Session, cast: Cast) -> None:
    job = submit(session, cast.alice)
    for _ in range(3):
        dispatch(session, now=NOON)
    states = [event.state for event in job_events(session, scope_of(cast.alice), job.id)]
    assert states == [JobState.SUBMITTED, JobState.QUEUED]


def test_a_bound_job_whose_last_appliance_leaves_waits_unplaced(
    session: Session, cast: Cast
) -> None:
    running = start(session, cast, gpus=8)
    job = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    running.appliance.drained_at = NOON
    dispatch(session, now=NOON)
    assert attempts_of(session, job) == []
    assert job.reason is Reason.WAITING_FOR_APPLIANCE
    assert "dgx-01: drained" in job.message


def test_a_revoked_appliance_gets_no_jobs(session: Session, cast: Cast) -> None:
    add_appliance(session, cast.acme, "dgx-01").revoked_at = NOON
    job = submit(session, cast.alice)
    dispatch(session, now=NOON)
    assert attempts_of(session, job) == []


def test_an_appliance_whose_inventory_can_not_be_read_gets_no_jobs(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.acme, "dgx-01").inventory = {"gpus": "eight"}
    job = submit(session, cast.alice)
    dispatch(session, now=NOON)
    session.refresh(job)
    assert "dgx-01: has no executor" in job.message


def test_a_tenants_job_never_lands_on_another_tenants_appliance(
    session: Session, cast: Cast
) -> None:
    add_appliance(session, cast.globex, "dgx-01")
    job = submit(session, cast.alice)
    dispatch(session, now=NOON)
    assert attempts_of(session, job) == []
    assert "Enroll one" in job.message


def test_the_history_shows_every_state(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.RUNNING)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    states = [e.state for e in job_events(session, scope_of(cast.alice), attempt.job_id)]
    assert states == [
        JobState.SUBMITTED,
        JobState.STARTING,
        JobState.RUNNING,
        JobState.SUCCEEDED,
    ]


@pytest.mark.parametrize("change", ["stop the job", "drain the appliance", "retire the appliance"])
def test_a_change_between_decision_and_write_voids_the_decision(
    sessions: SessionFactory, cast: Cast, change: str
) -> None:
    with sessions.begin() as session:
        appliance = add_appliance(session, cast.acme, "dgx-01")
        job = submit(session, cast.alice)
    scope, transactions = scope_of(cast.alice), 0

    @contextmanager
    def transaction() -> Iterator[Session]:
        nonlocal transactions
        transactions += 1
        if transactions == LAST_OF_A_TURN:
            with sessions.begin() as session:
                if change == "stop the job":
                    stop_job(session, scope, job.id, now=NOON)
                elif change == "drain the appliance":
                    drain_appliance(session, scope, appliance.id, now=NOON)
                else:
                    retire_idle_appliance(session, scope, appliance.id, now=NOON)
        with sessions.begin() as session:
            yield session

    assert Dispatcher(transaction).cycle(now=NOON)[Action.ASSIGN] == 0
    assert transactions == LAST_OF_A_TURN
    with sessions() as session:
        assert session.scalars(select(Attempt)).all() == []


def test_dispatchers_at_the_same_time_never_give_a_gpu_twice(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        for name in ("dgx-01", "dgx-02"):
            add_appliance(session, cast.acme, name)
        for number in range(20):
            submit(session, cast.alice, f"job-{number}", gpus=1)

    def dispatch_once(_: int) -> int:
        return Dispatcher(sessions.begin).cycle(now=NOON)[Action.ASSIGN]

    with ThreadPoolExecutor(max_workers=4) as pool:
        assigned = sum(pool.map(dispatch_once, range(8)))
    with sessions() as session:
        held = [uuid for uuids in session.scalars(select(Attempt.gpu_uuids)) for uuid in uuids]
    assert assigned == len(held) == len(set(held)) == 16


def test_a_long_queue_of_one_tenant_delays_no_other_and_is_placed_to_its_end(
    sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "MAX_WRITTEN", 4)
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        add_appliance(session, cast.globex, "dgx-02")
        jobs = [submit(session, cast.alice, f"job-{number}", gpus=8) for number in range(30)]
        # The last one could start if it were considered.
        small = submit(session, cast.alice, "small", gpus=0)
    dispatcher = Dispatcher(sessions.begin)
    assert dispatcher.cycle(now=NOON).total() == 4
    assert dispatcher.is_behind
    with sessions.begin() as session:
        other = submit(session, cast.charlie, gpus=1)
    assert dispatcher.cycle(now=NOON)[Action.ASSIGN] == 1
    with sessions() as session:
        assert session.get_one(Job, other.id).state is JobState.STARTING
        assert session.get_one(Job, small.id).state is JobState.SUBMITTED
    for _ in range(10):
        dispatcher.cycle(now=NOON)
    with sessions() as session:
        assert session.get_one(Job, small.id).state is JobState.STARTING
        assert {session.get_one(Job, queued_job.id).state for queued_job in jobs[1:]} == {
            JobState.QUEUED
        }


@pytest.mark.parametrize(
    ("snapshot_seconds", "state"), [(0, JobState.STARTING), (100, JobState.QUEUED)]
)
def test_a_pass_over_a_long_queue_begins_anew_for_what_was_freed_unless_that_takes_long(
    sessions: SessionFactory,
    cast: Cast,
    monkeypatch: pytest.MonkeyPatch,
    snapshot_seconds: int,
    state: JobState,
) -> None:
    def read_slowly(session: Session, tenant_id: str, *, now: datetime) -> Snapshot:
        for _ in range(snapshot_seconds):
            next(seconds)
        return read_snapshot(session, tenant_id, now=now)

    monkeypatch.setattr(dispatching, "MAX_WRITTEN", 2)
    monkeypatch.setattr(dispatching, "read_snapshot", read_slowly)
    seconds = itertools.count()
    with sessions.begin() as session:
        running = start(session, cast, gpus=8)
        front = submit(session, cast.alice, "front", gpus=8)
        for number in range(20):
            submit(session, cast.alice, f"job-{number}", gpus=8)
    dispatcher = Dispatcher(sessions.begin, timer=lambda: float(next(seconds)))
    dispatcher.cycle(now=NOON)
    with sessions.begin() as session:
        report(session, session.get_one(Attempt, running.id), ObservedState.SUCCEEDED, exit_code=0)
    for _ in range(8):
        dispatcher.cycle(now=NOON)
    with sessions() as session:
        assert session.get_one(Job, front.id).state is state
        last = select(Job.state).order_by(Job.id.desc()).limit(1)
        assert session.scalar(last) is JobState.SUBMITTED
