"""The demo's past: its jobs, attempts and ledger are those of its GPUs' samples."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from cli.demo_past import past_jobs
from core.clock import to_ns
from core.db import SessionFactory
from core.errors import NotFoundError
from jobqueue.models import Attempt, Job, JobEvent
from jobqueue.queue.past_jobs import add_past_jobs
from jobqueue.usage.ledger import SETTLE, record_usage, recorded_until
from jobqueue.usage.live import Live
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import UsageBy, usage_groups, usage_sum
from plugins.simulation.config import SimulationConfig
from plugins.simulation.history import history
from tenants.models import Appliance, AuditEntry
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.unit.jobqueue.builders import start
from timeseries.store import RangeQuery, Store, write

CONFIG = SimulationConfig(seed="acme/dgx-01", gpu_count=3)
HOUR = timedelta(hours=1)
PAST = Period(NOON - 12 * HOUR, NOON)


@pytest.fixture
def appliance(sessions: SessionFactory, store: Store, cast: Cast) -> Appliance:
    """A simulated appliance with the samples of its past, but no jobs yet."""
    with sessions.begin() as session:
        appliance = make_appliance(session, cast.acme, "dgx-02", now=NOON)
    identity = {"tenant": cast.acme.id, "appliance": appliance.id}
    points = history(CONFIG, start_at=PAST.since, end_at=PAST.until, step=timedelta(minutes=1))
    assert not write(store, list(points), identity=identity)
    return appliance


def add(sessions: SessionFactory, cast: Cast, appliance: Appliance) -> int:
    jobs = list(past_jobs(CONFIG, PAST.since, PAST.until))
    with sessions.begin() as session:
        return add_past_jobs(session, scope_of(cast.alice), appliance.id, jobs, now=NOON)


def test_gpus_work_while_a_job_runs_there_and_only_then(
    sessions: SessionFactory, store: Store, cast: Cast, appliance: Appliance
) -> None:
    count = add(sessions, cast, appliance)
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        start_ns=to_ns(PAST.since),
        end_ns=to_ns(PAST.until),
        step_ns=60 * 10**9,
        tenants=(cast.acme.id,),
        group_by=("uuid", "job"),
    )
    with sessions() as session:
        attempts = session.scalars(select(Attempt)).unique().all()
        spans = {
            (attempt.gpu_uuids[0], attempt.job_id): (attempt.started_at, attempt.finished_at)
            for attempt in attempts
        }
    assert count == len(spans) > 6
    seen = set()
    for series in store.query_range(query):
        key = series.tags["uuid"], series.tags.get("job", "")
        if not key[1]:
            assert max(series.values) == 0
            continue
        started_at, finished_at = spans[key]
        assert started_at is not None
        assert finished_at is not None
        assert to_ns(started_at) - 60 * 10**9 <= series.times_ns[0]
        assert series.times_ns[-1] < to_ns(finished_at)
        seen.add(key)
    assert seen == spans.keys()


@pytest.mark.parametrize(
    "first_at", [NOON, pytest.param(NOON - 14 * HOUR, marks=pytest.mark.nightly)]
)
def test_the_ledger_records_the_past_that_was_added_late(
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    appliance: Appliance,
    first_at: datetime,
) -> None:
    # The ledger has begun with another job, after or before that past.
    with sessions.begin() as session:
        start(session, cast, gpus=1).assigned_at = first_at
    later = NOON + HOUR + SETTLE
    record_usage(sessions, store, now=later)
    with sessions() as session:
        assert recorded_until(session) == NOON + HOUR
    add(sessions, cast, appliance)
    record_usage(sessions, store, now=later)
    assert record_usage(sessions, store, now=later) == 0
    with sessions() as session:
        attempts = session.scalars(
            select(Attempt).where(Attempt.appliance_id == appliance.id, Attempt.assigned_at < NOON)
        ).unique()
        allocated = {
            attempt.job_id: (attempt.finished_at - attempt.assigned_at).total_seconds()
            for attempt in attempts
            if attempt.finished_at and attempt.assigned_at
        }
        scope = scope_of(cast.alice)
        own = [appliance.id]
        groups = usage_groups(
            session, scope, PAST, by=UsageBy.JOB, live=Live(), appliances=own, limit=100
        )
        total = usage_sum(session, scope, PAST, live=Live(), appliances=own)
    recorded = {group.key: group.allocated_gpu_seconds for group in groups}
    assert recorded == pytest.approx(allocated, abs=0.02)
    # Minutes at the ends of jobs have no sample of their own window; all else was measured.
    assert total.unmeasured_gpu_seconds < 0.05 * total.allocated_gpu_seconds
    assert total.used_ratio is not None
    assert total.used_ratio > 0.5


def test_past_jobs_have_a_history_and_one_audit_entry(
    sessions: SessionFactory, cast: Cast, appliance: Appliance
) -> None:
    count = add(sessions, cast, appliance)
    with sessions() as session:
        job = session.scalars(select(Job).limit(1)).unique().one()
        events = session.scalars(
            select(JobEvent).where(JobEvent.job_id == job.id).order_by(JobEvent.at)
        ).all()
        entries = session.scalars(
            select(AuditEntry).where(AuditEntry.action == "past_jobs.added")
        ).all()
    assert [event.state.value for event in events] == ["submitted", "running", job.state.value]
    assert job.user_id == cast.alice.id
    assert [entry.after for entry in entries] == [{"jobs": count}]


def test_past_jobs_are_added_to_own_appliances_only(
    sessions: SessionFactory, cast: Cast, appliance: Appliance
) -> None:
    jobs = list(past_jobs(CONFIG, PAST.since, PAST.until))
    with sessions.begin() as session, pytest.raises(NotFoundError):
        add_past_jobs(session, scope_of(cast.charlie), appliance.id, jobs, now=NOON)
