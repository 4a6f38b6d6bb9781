"""Decayed usage in the database is exact: nothing counts twice, and nothing is lost."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy.orm import Session

from core.db import SessionFactory, transaction
from jobqueue.fairshare import usage as charging
from jobqueue.fairshare.accounts import billed
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.settings import OrderSettings
from jobqueue.fairshare.usage import (
    Account,
    charge_ended,
    decay_factor,
    decayed_seconds,
    read_usage,
    tenants_to_charge,
)
from jobqueue.models import Attempt, Job
from jobqueue.queue.retention import delete_ended, delete_job, expire_jobs
from jobqueue.states import AttemptState, JobState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import GIB, add_appliance, submit

HALF_LIFE = timedelta(days=7)
HOUR = timedelta(hours=1)


@pytest.fixture
def appliance_id(session: Session, cast: Cast) -> str:
    return add_appliance(session, cast.acme, "dgx-01").id


def run(
    session: Session, cast: Cast, appliance_id: str, *, since: datetime, until: datetime | None
) -> Job:
    """Add a job of Alice's that has two GPUs from one instant to another, or still."""
    job = submit(session, cast.alice, gpus=2, memory_bytes=GIB)
    attempt = Attempt(
        job_id=job.id,
        tenant_id=cast.acme.id,
        appliance_id=appliance_id,
        number=1,
        state=AttemptState.RUNNING if until is None else AttemptState.SUCCEEDED,
        gpu_uuids=["GPU-a", "GPU-b"],
        bound_at=since,
        assigned_at=since,
        finished_at=until,
    )
    job.state = JobState.RUNNING if until is None else JobState.SUCCEEDED
    session.add(attempt)
    session.flush()
    return job


def gpu_seconds(session: Session, cast: Cast, *, now: datetime) -> float:
    usage = read_usage(session, cast.acme.id, half_life=HALF_LIFE, now=now)
    return usage[Account("", cast.alice.id)].gpus


def charge(session: Session, cast: Cast, *, now: datetime = NOON) -> int:
    return charge_ended(session, cast.acme.id, half_life=HALF_LIFE, now=now)


def exact(since: datetime, until: datetime, *, at: datetime) -> float:
    return 2 * decayed_seconds(since, until, at=at, half_life=HALF_LIFE)


def test_an_attempt_is_charged_once_and_counts_the_same_before_and_after(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    run(session, cast, appliance_id, since=NOON - 2 * HOUR, until=NOON - HOUR)
    run(session, cast, appliance_id, since=NOON - HOUR, until=None)
    later = NOON + timedelta(days=1)
    expected = exact(NOON - 2 * HOUR, later, at=later)
    assert gpu_seconds(session, cast, now=later) == pytest.approx(expected)
    assert tenants_to_charge(session) == [cast.acme.id]
    assert [charge(session, cast), charge(session, cast)] == [1, 0]
    assert tenants_to_charge(session) == []
    assert gpu_seconds(session, cast, now=later) == pytest.approx(expected)


def test_ends_in_any_order_and_a_clock_that_was_set_back_change_nothing(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    # The second end is reported a day late, and the clock stands before the first one.
    run(session, cast, appliance_id, since=NOON - HOUR, until=NOON)
    charge(session, cast, now=NOON)
    late = NOON - timedelta(days=1)
    run(session, cast, appliance_id, since=late - HOUR, until=late)
    charge(session, cast, now=NOON - timedelta(days=3))
    expected = exact(NOON - HOUR, NOON, at=NOON) + exact(late - HOUR, late, at=NOON)
    assert gpu_seconds(session, cast, now=NOON) == pytest.approx(expected)


def test_a_clock_that_was_years_ahead_leaves_usage_a_number() -> None:
    assert decay_factor(-HOUR, HOUR) == 2
    # The shortest half-life, and usage that was charged two months ahead.
    assert math.isfinite(decay_factor(timedelta(days=-60), HOUR) * 10**24 * 10**12)


def test_an_end_before_the_start_uses_nothing(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    run(session, cast, appliance_id, since=NOON, until=NOON - HOUR)
    charge(session, cast)
    assert gpu_seconds(session, cast, now=NOON) == 0


def test_a_change_of_the_half_life_applies_from_then_on(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    run(session, cast, appliance_id, since=NOON - HOUR, until=NOON)
    charge(session, cast)
    week, day = NOON + HALF_LIFE, timedelta(days=1)
    charge_ended(session, cast.acme.id, half_life=day, now=week)
    expected = exact(NOON - HOUR, NOON, at=week)
    assert gpu_seconds(session, cast, now=week) == pytest.approx(expected)
    assert gpu_seconds(session, cast, now=week + day) == pytest.approx(expected / 2)


def test_a_job_that_is_deleted_is_charged_before(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    job = run(session, cast, appliance_id, since=NOON - HOUR, until=NOON)
    delete_job(session, scope_of(cast.alice), job.id, now=NOON)
    assert gpu_seconds(session, cast, now=NOON) == pytest.approx(exact(NOON - HOUR, NOON, at=NOON))


def test_jobs_that_are_cleaned_up_are_charged_before(
    session: Session, cast: Cast, appliance_id: str
) -> None:
    cleaners = (
        partial(delete_ended, session, scope_of(cast.olivia), before=NOON + HOUR),
        partial(expire_jobs, session, retention_days=1),
    )
    for count, clean in enumerate(cleaners, 1):
        job = run(session, cast, appliance_id, since=NOON - HOUR, until=NOON)
        job.finished_at = NOON
        session.flush()
        assert clean(now=NOON + timedelta(days=2)) == 1
        used = count * exact(NOON - HOUR, NOON, at=NOON)
        assert gpu_seconds(session, cast, now=NOON) == pytest.approx(used)


def test_two_schedulers_charge_each_attempt_once(
    sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charging, "MAX_CHARGED", 3)
    with transaction(sessions) as session:
        appliance_id = add_appliance(session, cast.acme, "dgx-01").id
        for _ in range(20):
            run(session, cast, appliance_id, since=NOON - HOUR, until=NOON)

    def charge_all(_number: int) -> int:
        counts: list[int] = []
        while not counts or counts[-1]:
            with transaction(sessions) as session:
                counts.append(charge(session, cast))
        return sum(counts)

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(charge_all, range(2))) == 20
    with transaction(sessions) as session:
        used = gpu_seconds(session, cast, now=NOON)
    assert used == pytest.approx(20 * exact(NOON - HOUR, NOON, at=NOON))


def test_usage_is_billed_as_in_slurms_example() -> None:
    # Source: Slurm's multifactor priority, TRESBillingWeights=CPU=1.0,Mem=0.25G.
    settings = OrderSettings(gpu_usage_weight=0, cpu_usage_weight=1, memory_usage_weight=0.25)
    jobs = [Resources(0, cpus, gib * GIB) for cpus, gib in ((1, 60), (16, 1), (16, 60))]
    billed_units = [billed(job, settings, has_gpus=True) for job in jobs]
    assert billed_units == [16, 16.25, 31]


def test_gpus_alone_count_unless_there_are_none() -> None:
    job = Resources(2, 16, 60 * GIB)
    assert billed(job, OrderSettings(), has_gpus=True) == 2
    assert billed(job, OrderSettings(), has_gpus=False) == 16
