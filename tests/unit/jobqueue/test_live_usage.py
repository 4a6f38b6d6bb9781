"""GPU time that the ledger doesn't have: every figure counts up to now, and nothing twice."""

import random
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState
from jobqueue.usage.ledger import SETTLE, record_usage
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import (
    USAGE_SORTS,
    UsageBy,
    UsageTotal,
    allocated_by_tenant_and_day,
    allocated_now,
    usage_groups,
    usage_sum,
    usage_totals,
)
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from tests.unit.jobqueue.builders import gpu_uuid, start
from timeseries.points import Point
from timeseries.store import Store, write

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NOW = NOON + 2 * HOUR + 40 * MINUTE


def start_attempt(session: Session, cast: Cast) -> str:
    return start(session, cast, gpus=2).id


@pytest.fixture
def attempt(prefill: Callable[[Fill], str], sessions: SessionFactory) -> Attempt:
    """An attempt of alice's with two GPUs since noon."""
    ident = prefill(start_attempt)
    with sessions() as session:
        return session.get_one(Attempt, ident)


def add_samples(store: Store, attempt: Attempt, *, percent: float, minutes: range) -> None:
    """Add a sample of GPU 0 for each minute after noon."""
    tags = {"gpu": "0", "uuid": gpu_uuid("dgx-01", 0), "job": attempt.job_id}
    fields = {"utilization_percent": percent, "power_watts": 360.0}
    points = [
        Point("gpu", tags, fields, to_ns(NOON) + minute * 60 * NS_PER_SECOND) for minute in minutes
    ]
    identity = {"tenant": attempt.tenant_id, "appliance": attempt.appliance_id}
    assert not write(store, points, identity=identity)


def summed(session: Session, store: Store, cast: Cast, period: Period) -> UsageTotal:
    scope = scope_of(cast.alice)
    live = live_use(session, store, scope, period, now=NOW)
    return usage_sum(session, scope, period, live=live)


def test_the_current_hour_counts_before_the_ledger_has_it(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    add_samples(store, attempt, percent=50.0, minutes=range(160))
    with sessions() as session:
        unrecorded = summed(session, store, cast, Period(NOON - HOUR, NOW))
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    with sessions() as session:
        recorded = summed(session, store, cast, Period(NOON - HOUR, NOW))
    # Two GPUs for 160 minutes, of which one was measured and half used.
    assert recorded.allocated_gpu_seconds == 2 * 160 * 60
    assert recorded.used_gpu_seconds == recorded.idle_gpu_seconds == 80 * 60
    assert recorded == unrecorded


@pytest.mark.parametrize("since", [NOON - HOUR, NOON + 9 * MINUTE, NOON + HOUR])
def test_any_period_has_the_time_that_lies_in_it(
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    since: datetime,
) -> None:
    with sessions.begin() as session:
        start(session, cast, gpus=2)
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    for length in (20 * MINUTE, HOUR, 75 * MINUTE, 5 * HOUR):
        period = Period(since, since + length)
        within = max(timedelta(0), min(period.until, NOW) - max(since, NOON))
        with sessions() as session:
            usage = summed(session, store, cast, period)
        assert usage.allocated_gpu_seconds == 2 * within.total_seconds()


def test_a_period_is_so_far_until_the_ledger_has_it(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    assert attempt
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    scope = scope_of(cast.alice)
    with sessions() as session:
        states = [
            live_use(session, store, scope, Period(NOON, until), now=NOW).is_so_far
            for until in (NOON + 2 * HOUR, NOW, NOON + 9 * HOUR)
        ]
    assert states == [False, True, True]


def test_an_hour_that_is_recorded_meanwhile_counts_once(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    assert attempt
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    scope, period = scope_of(cast.alice), Period(NOON, NOW)
    with sessions() as session:
        live = live_use(session, store, scope, period, now=NOW)
        record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
        usage = usage_sum(session, scope, period, live=live)
        days = usage_groups(session, scope, period, by=UsageBy.DAY, live=live, limit=10)
    assert usage.allocated_gpu_seconds == 2 * 160 * 60
    assert sum(day.allocated_gpu_seconds for day in days) == usage.allocated_gpu_seconds


def test_without_the_store_allocated_time_still_counts(
    sessions: SessionFactory, cast: Cast, attempt: Attempt
) -> None:
    assert attempt
    scope, period = scope_of(cast.alice), Period(NOON, NOW)
    with sessions() as session:
        live = live_use(session, LostStore(), scope, period, now=NOW)  # type: ignore[arg-type]
        usage = usage_sum(session, scope, period, live=live)
    assert live.problem == MESSAGE
    assert usage.allocated_gpu_seconds == usage.unmeasured_gpu_seconds == 2 * 160 * 60


def test_live_use_stays_within_the_scope(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    period = Period(NOON, NOW)
    with sessions() as session:
        assert live_use(session, store, scope_of(cast.charlie), period, now=NOW).uses == ()
        assert live_use(session, store, scope_of(cast.olivia), period, now=NOW).uses
        elsewhere = live_use(
            session, store, scope_of(cast.alice), period, now=NOW, appliances=["another"]
        )
    assert elsewhere.uses == ()
    assert attempt.appliance_id


def test_gpus_allocated_now_are_those_of_attempts_that_hold_some(
    sessions: SessionFactory, cast: Cast, attempt: Attempt
) -> None:
    assert attempt
    with sessions() as session:
        assert allocated_now(session, scope_of(cast.alice)) == (2, 1)
        assert allocated_now(session, scope_of(cast.charlie)) == (0, 0)


def random_attempts(session: Session, cast: Cast, attempt: Attempt, *, count: int) -> None:
    """Add jobs that held the first GPU for random minutes of three hours; some hold it still."""
    dice = random.Random(7)  # noqa: S311 - not for security
    template = session.get_one(Job, attempt.job_id)
    columns = [column.key for column in Job.__table__.columns if column.key not in {"id", "name"}]
    for number in range(count):
        values = {column: getattr(template, column) for column in columns}
        job = Job(**values, name=f"job-{number}")
        session.add(job)
        session.flush()
        assigned_at = NOON + dice.randint(0, 150) * MINUTE
        ended_at = assigned_at + dice.randint(1, 90) * MINUTE
        is_over = ended_at < NOW
        session.add(
            Attempt(
                job_id=job.id,
                tenant_id=cast.acme.id,
                appliance_id=attempt.appliance_id,
                number=1,
                state=AttemptState.SUCCEEDED if is_over else AttemptState.RUNNING,
                gpu_uuids=[gpu_uuid("dgx-01", 0)],
                bound_at=assigned_at,
                assigned_at=assigned_at,
                finished_at=ended_at if is_over else None,
            )
        )


@pytest.mark.parametrize("sort", [*USAGE_SORTS, *(f"-{name}" for name in USAGE_SORTS)])
def test_pages_hold_every_group_once_in_order(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt, sort: str
) -> None:
    with sessions.begin() as session:
        random_attempts(session, cast, attempt, count=40)
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    scope, period = scope_of(cast.alice), Period(NOON + 25 * MINUTE, NOW)
    with sessions() as session:
        live = live_use(session, store, scope, period, now=NOW)
        pages = [
            usage_totals(
                session, scope, period, by=UsageBy.JOB, live=live, sort=sort, page=page, page_size=7
            )
            for page in range(1, 8)
        ]
        groups = usage_groups(session, scope, period, by=UsageBy.JOB, live=live, limit=100)
        total = usage_sum(session, scope, period, live=live)
    rows = [row for page in pages for row in page.items]
    name = sort.removeprefix("-")
    expected = sorted(
        groups, key=lambda row: (getattr(row, name), row.key), reverse=sort.startswith("-")
    )
    assert rows == expected
    assert {page.total for page in pages} == {len(groups)}
    assert sum(row.allocated_gpu_seconds for row in rows) == total.allocated_gpu_seconds


@pytest.mark.parametrize("by", list(UsageBy))
def test_groupings_add_up_to_the_sum(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt, by: UsageBy
) -> None:
    with sessions.begin() as session:
        random_attempts(session, cast, attempt, count=20)
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    scope, period = scope_of(cast.alice), Period(NOON + 25 * MINUTE, NOW)
    with sessions() as session:
        live = live_use(session, store, scope, period, now=NOW)
        groups = usage_groups(session, scope, period, by=by, live=live, limit=100)
        total = usage_sum(session, scope, period, live=live)
        days = allocated_by_tenant_and_day(session, scope, period, live=live)
    assert sum(row.allocated_gpu_seconds for row in groups) == total.allocated_gpu_seconds
    assert sum(days.values()) == pytest.approx(total.allocated_gpu_hours)
