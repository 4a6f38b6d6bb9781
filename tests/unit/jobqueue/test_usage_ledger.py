"""The usage ledger: GPU time of attempts by hour, corrections of late samples, and its sums."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.models import Attempt, Job
from jobqueue.projects.models import Project
from jobqueue.usage.ledger import SETTLE, recompute, record_usage, recorded_until
from jobqueue.usage.live import Live, live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from jobqueue.usage.totals import UsageBy, UsageTotal, usage_csv, usage_sum, usage_totals
from protocol.attempts import AttemptObservation, ObservedState
from tenants.models import Tenant
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.builders import gpu_uuid, start
from timeseries.points import Point
from timeseries.store import Store, write

DAY = Period(NOON - timedelta(hours=12), NOON + timedelta(hours=12))
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MODEL = "NVIDIA H100 80GB HBM3"


def start_attempt(session: Session, cast: Cast) -> str:
    return start(session, cast, gpus=2).id


@pytest.fixture
def attempt(prefill: Callable[[Fill], str], sessions: SessionFactory) -> Attempt:
    """An attempt of alice's that has held two GPUs since noon."""
    ident = prefill(start_attempt)
    with sessions() as session:
        return session.get_one(Attempt, ident)


def end(sessions: SessionFactory, attempt: Attempt, *, after: timedelta) -> None:
    seen = AttemptObservation(
        attempt_id=attempt.id,
        state=ObservedState.SUCCEEDED,
        started_at_ns=to_ns(NOON),
        finished_at_ns=to_ns(NOON + after),
    )
    with sessions.begin() as session:
        apply_report(session, attempt.appliance_id, [seen], now=NOON + timedelta(hours=12))


def add_samples(
    store: Store,
    attempt: Attempt,
    gpu: int,
    *,
    percent: float,
    minutes: range,
    tenant: Tenant | None = None,
) -> None:
    """Add a sample of a GPU for each minute after noon, with 360 W."""
    tags = {
        "gpu": str(gpu),
        "uuid": gpu_uuid("dgx-01", gpu),
        "model": MODEL,
        "job": attempt.job_id,
    }
    fields = {"utilization_percent": percent, "power_watts": 360.0}
    points = [
        Point("gpu", tags, fields, to_ns(NOON) + minute * 60 * NS_PER_SECOND) for minute in minutes
    ]
    owner = attempt.tenant_id if tenant is None else tenant.id
    assert not write(store, points, identity={"tenant": owner, "appliance": attempt.appliance_id})


def total(sessions: SessionFactory, cast: Cast) -> UsageTotal:
    with sessions() as session:
        return usage_sum(session, scope_of(cast.alice), DAY, live=Live())


def test_an_hour_is_recorded_once_it_has_ended(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    add_samples(store, attempt, 0, percent=50.0, minutes=range(60))
    add_samples(store, attempt, 1, percent=0.0, minutes=range(30))
    assert record_usage(sessions, store, now=NOON + HOUR) == 0
    assert record_usage(sessions, store, now=NOON + HOUR + SETTLE) == 1
    assert record_usage(sessions, store, now=NOON + HOUR + SETTLE) == 0

    usage = total(sessions, cast)
    assert usage.allocated_gpu_seconds == 7200
    assert usage.used_gpu_seconds == 1800  # half of GPU 0's hour
    assert usage.idle_gpu_seconds == 1800 + 1800  # the other half, and what GPU 1 was measured
    assert usage.unmeasured_gpu_seconds == 1800
    assert usage.used_ratio == pytest.approx(1 / 3)
    assert usage.energy_kilowatt_hours == pytest.approx(0.36 * 1.5)
    with sessions() as session:
        assert recorded_until(session) == NOON + HOUR


def test_an_attempt_counts_from_its_assignment_to_its_end(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    add_samples(store, attempt, 0, percent=100.0, minutes=range(90))
    end(sessions, attempt, after=90 * MINUTE)
    # The scheduler was down: it goes on where it stopped.
    assert record_usage(sessions, store, now=NOON + 5 * HOUR) == 2
    usage = total(sessions, cast)
    assert usage.allocated_gpu_seconds == 2 * 5400
    assert usage.used_gpu_seconds == 5400


def test_late_samples_and_ends_are_appended_as_corrections(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    record_usage(sessions, store, now=NOON + 2 * HOUR + SETTLE)
    assert total(sessions, cast).used_gpu_seconds == 0
    add_samples(store, attempt, 0, percent=100.0, minutes=range(30))
    end(sessions, attempt, after=30 * MINUTE)

    # Six hours after each hour's end.
    appended = record_usage(sessions, store, now=NOON + 8 * HOUR)
    assert appended >= 2
    usage = total(sessions, cast)
    assert usage.allocated_gpu_seconds == 2 * 1800
    assert usage.used_gpu_seconds == 1800
    with sessions() as session:
        rows = session.scalars(
            select(UsageEntry.allocated_milliseconds)
            .where(UsageEntry.hour_at == NOON)
            .order_by(UsageEntry.revision)
        ).all()
    assert rows == [7_200_000, -3_600_000]  # what was written first is still there


def test_recomputing_gives_the_same_sum(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    add_samples(store, attempt, 0, percent=33.3, minutes=range(7, 170))
    add_samples(store, attempt, 1, percent=66.6, minutes=range(1, 100))
    end(sessions, attempt, after=161 * MINUTE)
    later = NOON + 4 * HOUR
    record_usage(sessions, store, now=later)
    before = total(sessions, cast)
    assert before.used_gpu_seconds > 0

    done = list(recompute(sessions, store, since=DAY.since, until=DAY.until, now=later))
    assert [hour for hour, _ in done] == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert [appended for _, appended in done] == [0, 0, 0]
    assert total(sessions, cast) == before
    # Any hour alone is measured as it was after the hours before it.
    alone = recompute(sessions, store, since=NOON + 2 * HOUR, until=DAY.until, now=later)
    assert list(alone) == [(NOON + 2 * HOUR, 0)]


def test_expired_samples_take_nothing_back(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    add_samples(store, attempt, 0, percent=50.0, minutes=range(60))
    later = NOON + 2 * HOUR
    record_usage(sessions, store, now=later)
    before = total(sessions, cast)
    store.delete_before(to_ns(later))
    hours = list(recompute(sessions, store, since=DAY.since, until=DAY.until, now=later))
    assert hours == [(NOON, 0)]
    assert total(sessions, cast) == before


def test_entries_outlive_their_job(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    with sessions.begin() as session:
        session.execute(delete(Job).where(Job.id == attempt.job_id))
    list(recompute(sessions, store, since=NOON, until=NOON + HOUR, now=NOON + 2 * HOUR))
    with sessions() as session:
        [job] = usage_totals(session, scope_of(cast.alice), DAY, by=UsageBy.JOB, live=Live()).items
    assert (job.key, job.name, job.allocated_gpu_seconds) == (attempt.job_id, "train", 7200)


def test_another_tenants_samples_do_not_count(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    # Senders choose all tags but tenant and appliance.
    add_samples(store, attempt, 0, percent=100.0, minutes=range(60), tenant=cast.globex)
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    assert total(sessions, cast).used_gpu_seconds == 0


@pytest.mark.parametrize(
    "named",
    [
        (UsageBy.TENANT, "Acme"),
        (UsageBy.USER, "alice@acme.example"),
        (UsageBy.JOB, "train"),
        (UsageBy.APPLIANCE, "dgx-01"),
        (UsageBy.GPU_MODEL, MODEL),
        (UsageBy.DAY, "2026-03-02"),
    ],
)
def test_sums_are_grouped_within_the_scope(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt, named: tuple[UsageBy, str]
) -> None:
    by, name = named
    add_samples(store, attempt, 0, percent=25.0, minutes=range(60))
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    with sessions() as session:
        for user in (cast.alice, cast.olivia):
            [group] = usage_totals(session, scope_of(user), DAY, by=by, live=Live()).items
            assert (group.name, group.used_gpu_seconds) == (name, 900)
        assert usage_totals(session, scope_of(cast.charlie), DAY, by=by, live=Live()).total == 0
        empty = Period(NOON + HOUR, DAY.until)
        assert usage_totals(session, scope_of(cast.alice), empty, by=by, live=Live()).total == 0


def test_sums_are_grouped_by_project_and_budget_label(
    sessions: SessionFactory, store: Store, cast: Cast, attempt: Attempt
) -> None:
    with sessions.begin() as session:
        project = Project(
            tenant_id=cast.acme.id, name="vision", budget_label="CC-1", created_at=NOON
        )
        session.add(project)
        session.flush()
        session.get_one(Job, attempt.job_id).project_id = project.id
    add_samples(store, attempt, 0, percent=50.0, minutes=range(60))

    def grouped(live: Live) -> dict[UsageBy, list[tuple[str, float]]]:
        with sessions() as session:
            return {
                by: [
                    (group.name, group.allocated_gpu_hours)
                    for group in usage_totals(
                        session, scope_of(cast.alice), DAY, by=by, live=live
                    ).items
                ]
                for by in (UsageBy.PROJECT, UsageBy.BUDGET_LABEL)
            }

    expected = {UsageBy.PROJECT: [("vision", 2.0)], UsageBy.BUDGET_LABEL: [("CC-1", 2.0)]}
    with sessions() as session:
        live = live_use(session, store, scope_of(cast.alice), DAY, now=NOON + HOUR)
    assert grouped(live) == expected
    end(sessions, attempt, after=HOUR)
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    assert grouped(Live()) == expected


def test_csv_has_every_group_and_no_formulas(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        start(session, cast, name="=1+1", gpus=1)
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    lines = "".join(
        usage_csv(sessions, scope_of(cast.alice), DAY, by=UsageBy.JOB, live=Live())
    ).splitlines()
    assert lines[0].startswith("job,name,allocated_gpu_seconds,")
    assert lines[1].split(",")[1:3] == ["'=1+1", "3600.000000"]
    assert len(lines) == 2


def test_jobs_without_gpus_are_not_in_the_ledger(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with sessions.begin() as session:
        start(session, cast)
    record_usage(sessions, store, now=NOON + HOUR + SETTLE)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(UsageEntry)) == 0
