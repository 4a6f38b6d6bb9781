"""Schedules submit their jobs when they are due, by their policies."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, InvalidInputError, NotFoundError
from jobqueue.models import Job, JobSchedule, ScheduleRun
from jobqueue.queue.schedule_runs import MAX_RUNS, run_now, submit_due
from jobqueue.queue.schedules import (
    ScheduleRequest,
    create_schedule,
    delete_schedule,
    enable_schedule,
    get_schedule,
    list_runs,
    replace_schedule,
)
from jobqueue.queue.stopping import stop_job
from jobqueue.states import JobState, Missed, Overlap
from protocol.job_spec import JobKind, JobRequest
from tenants.models import User
from tests.cast import BOX, NOON, Cast, scope_of

Create = Callable[..., JobSchedule]
EVAL = JobRequest(name="eval", image="acme/eval:1", secrets={"TOKEN": "x"})
FIRST_RUN = NOON + timedelta(hours=1)


def wanted(**changes: Any) -> ScheduleRequest:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {"name": "hourly", "schedule": "0 * * * *", "job": EVAL}
    return ScheduleRequest(**(fields | changes))


@pytest.fixture
def create(session: Session, cast: Cast) -> Create:
    return lambda **changes: create_schedule(
        session, scope_of(cast.bob), wanted(**changes), box=BOX, now=NOON
    )


def outcomes(session: Session, schedule: JobSchedule) -> list[tuple[int, str]]:
    """Return the hour and outcome of each run, oldest first."""
    runs = select(ScheduleRun).where(ScheduleRun.schedule_id == schedule.id)
    return [
        (run.due_at.hour, run.outcome.value)
        for run in session.scalars(runs.order_by(ScheduleRun.id)).unique()
    ]


def due(session: Session, at: datetime) -> int:
    return submit_due(session, box=BOX, now=at)


def test_a_job_is_submitted_each_time_and_once(
    session: Session, cast: Cast, create: Create
) -> None:
    schedule = create()
    assert due(session, FIRST_RUN - timedelta(seconds=1)) == 0
    assert (due(session, FIRST_RUN), due(session, FIRST_RUN)) == (1, 0)
    (job,) = session.scalars(select(Job)).unique()
    assert (job.name, job.user_id, job.secret_names) == ("eval", cast.bob.id, ["TOKEN"])
    session.refresh(schedule)
    assert schedule.next_run_at == FIRST_RUN + timedelta(hours=1)
    stop_job(session, scope_of(cast.bob), job.id, now=FIRST_RUN)
    due(session, FIRST_RUN + timedelta(hours=1))
    assert outcomes(session, schedule) == [(13, "submitted"), (14, "submitted")]
    assert delete_schedule(session, scope_of(cast.bob), schedule.id) == "hourly"
    assert len(session.scalars(select(Job)).unique().all()) == 2


@pytest.mark.parametrize(
    ("overlap", "expected", "states"),
    [
        (Overlap.SKIP, "overlapped", ["submitted"]),
        (Overlap.ALLOW, "submitted", ["submitted", "submitted"]),
        (Overlap.REPLACE, "submitted", ["stopped", "submitted"]),
    ],
)
def test_a_run_that_has_not_ended_is_treated_by_policy(
    session: Session, create: Create, overlap: Overlap, expected: str, states: list[str]
) -> None:
    schedule = create(overlap=overlap)
    due(session, FIRST_RUN)
    due(session, FIRST_RUN + timedelta(hours=1))
    assert outcomes(session, schedule) == [(13, "submitted"), (14, expected)]
    jobs = session.scalars(select(Job).order_by(Job.id)).unique()
    assert [job.state.value for job in jobs] == states


@pytest.mark.parametrize(
    ("missed", "at", "expected"),
    [
        (Missed.SKIP, timedelta(hours=3, minutes=30), [(15, "missed")]),
        (Missed.RUN_ONCE, timedelta(hours=3, minutes=30), [(15, "submitted")]),
        # The last time is due just now.
        (Missed.SKIP, timedelta(hours=4), [(15, "missed"), (16, "submitted")]),
    ],
)
def test_times_of_an_outage_are_treated_by_policy(
    *,
    session: Session,
    create: Create,
    missed: Missed,
    at: timedelta,
    expected: list[tuple[int, str]],
) -> None:
    schedule = create(missed=missed)
    due(session, NOON + at)
    assert outcomes(session, schedule) == expected
    session.refresh(schedule)
    assert schedule.next_run_at is not None
    assert schedule.next_run_at > NOON + at


def test_a_run_that_can_not_be_submitted_is_listed_with_the_reason(
    session: Session, cast: Cast, create: Create
) -> None:
    schedule = create()
    session.get_one(User, cast.bob.id).is_active = False
    session.flush()
    due(session, FIRST_RUN)
    alice = scope_of(cast.alice)
    (run,) = list_runs(session, alice, schedule.id).items
    assert (run.outcome.value, run.job_id) == ("failed", None)
    assert "deactivated" in run.message
    with pytest.raises(NotFoundError):
        list_runs(session, scope_of(cast.charlie), schedule.id)


def test_a_disabled_schedule_waits_and_does_not_catch_up(
    session: Session, cast: Cast, create: Create
) -> None:
    schedule, bob = create(missed=Missed.RUN_ONCE), scope_of(cast.bob)
    enable_schedule(session, bob, schedule.id, is_enabled=False, now=NOON)
    assert due(session, FIRST_RUN) == 0
    assert run_now(session, bob, schedule.id, box=BOX, now=FIRST_RUN).outcome.value == "submitted"
    later = NOON + timedelta(hours=5, minutes=30)
    enable_schedule(session, bob, schedule.id, is_enabled=True, now=later)
    assert get_schedule(session, bob, schedule.id).next_run_at == NOON + timedelta(hours=6)


def test_a_schedule_is_replaced_and_retains_its_secrets(
    session: Session, cast: Cast, create: Create
) -> None:
    schedule, bob = create(), scope_of(cast.bob)
    changed = wanted(schedule="30 * * * *", job=JobRequest(name="eval", image="acme/eval:2"))
    replaced = replace_schedule(session, bob, schedule.id, changed, box=BOX, now=NOON)
    assert replaced.next_run_at == NOON + timedelta(minutes=30)
    assert replaced.secret_names == ["TOKEN"]
    with pytest.raises(ConflictError, match="another user"):
        replace_schedule(session, scope_of(cast.alice), schedule.id, changed, box=BOX, now=NOON)


def test_every_error_of_a_schedule_is_reported(create: Create) -> None:
    create()
    with pytest.raises(ConflictError, match="already"):
        create()
    service = JobRequest(name="eval", image="UPPER", kind=JobKind.SERVICE, after_ok=["x"])
    with pytest.raises(InvalidInputError) as caught:
        create(name="", schedule="daily", time_zone="Mars", job=service)
    assert caught.value.errors.keys() == {
        *("name", "schedule", "time_zone", "kind", "after_ok", "image")
    }


def test_an_array_runs_as_a_whole_and_old_runs_are_deleted(
    session: Session, cast: Cast, create: Create
) -> None:
    schedule = create(job=JobRequest(name="eval", image="acme/eval:1", array="0-1"))
    due(session, FIRST_RUN)
    tasks = session.scalars(select(Job).order_by(Job.id)).unique().all()
    stop_job(session, scope_of(cast.bob), tasks[0].id, now=FIRST_RUN)
    due(session, FIRST_RUN + timedelta(hours=1))
    assert outcomes(session, schedule) == [(13, "submitted"), (14, "overlapped")]
    assert tasks[1].state is JobState.SUBMITTED
    session.add_all(
        ScheduleRun(
            schedule_id=schedule.id, tenant_id=schedule.tenant_id, due_at=NOON, outcome="missed"
        )
        for _ in range(MAX_RUNS)
    )
    session.flush()
    due(session, FIRST_RUN + timedelta(hours=2))
    assert len(outcomes(session, schedule)) == MAX_RUNS
