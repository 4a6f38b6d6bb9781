"""Reports on a ledger, jobs, states and alerts that are small enough to compute by hand."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition, Rule
from alerting.rules.service import acknowledge_alert
from alerting.states import AlertState, Comparison, Severity
from core.db import SessionFactory
from dash_app.reports.availability import available_within
from dash_app.reports.jobs import percentile_95
from dash_app.reports.report import ReportBy, ReportKind
from jobqueue.models import Job
from jobqueue.states import JobState
from protocol.job_spec import JobKind
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance
from tests.cast import NOON, Cast, scope_of
from tests.unit.dash_app.reporting import HOUR, MINUTE, BuildReport, add_usage, row


def test_gpu_time_and_energy_are_those_of_the_ledger(
    sessions: SessionFactory,
    cast: Cast,
    appliances: tuple[Appliance, Appliance],
    build_report: BuildReport,
) -> None:
    lyon, porto = appliances
    with sessions.begin() as session:
        add_usage(session, lyon, cast.alice.id, allocated=8, used=5, idle=1, energy=4)
        add_usage(session, porto, cast.alice.id, allocated=2, used=1, idle=1, energy=1)
        add_usage(session, porto, None, allocated=1, used=0, idle=0, energy=0)
    by_user = build_report(ReportKind.GPU_TIME, ReportBy.USER, price_per_kilowatt_hour=0.3)
    by_site = build_report(ReportKind.GPU_TIME, ReportBy.SITE)
    alice = row(by_user, cast.alice.email)
    # 10 GPU-hours, of which 6 were used and 2 idle; 6 of 8 measured; 5 kWh at 0.3.
    assert alice == {
        "user": cast.alice.email,
        "allocated_gpu_hours": 10.0,
        "used_gpu_hours": 6.0,
        "idle_gpu_hours": 2.0,
        "unmeasured_gpu_hours": 2.0,
        "used_percent": 75.0,
        "energy_kilowatt_hours": 5.0,
        "energy_cost": 1.5,
    }
    assert row(by_user, "(none)")["used_percent"] is None
    assert list(by_user.totals[:4]) == ["Total", 11.0, 6.0, 2.0]
    assert [cells[:2] for cells in by_site.rows] == [("Lyon", 8.0), ("Porto", 3.0)]
    in_lyon = build_report(ReportKind.GPU_TIME, ReportBy.USER, appliances="lyon DGX")
    assert [list(cells[:2]) for cells in in_lyon.rows] == [[cast.alice.email, 8.0]]
    assert in_lyon.totals[1] == 8.0
    assert build_report(ReportKind.GPU_TIME, ReportBy.USER, cast.charlie).rows == []


def test_a_report_names_its_period_in_its_time_zone(build_report: BuildReport) -> None:
    report = build_report(ReportKind.GPU_TIME, ReportBy.DAY, time_zone="Asia/Kolkata")
    assert "2026-03-02 05:30 IST to 2026-03-03 05:30 IST" in report.subtitle
    assert report.columns[0].label == "Day (UTC)"


def add_job(
    session: Session, cast: Cast, state: JobState, *, wait: timedelta | None, run: timedelta
) -> str:
    started_at = NOON + wait if wait is not None else None
    job = Job(
        tenant_id=cast.acme.id,
        user_id=cast.bob.id,
        name="train",
        kind=JobKind.BATCH,
        image="pytorch",
        memory_bytes=1,
        state=state,
        submitted_at=NOON,
        queue_at=NOON,
        started_at=started_at,
        finished_at=started_at + run if started_at and state.is_final else None,
    )
    session.add(job)
    session.flush()
    return job.id


def test_jobs_are_counted_by_outcome_with_their_waits_and_runs(
    sessions: SessionFactory,
    cast: Cast,
    appliances: tuple[Appliance, Appliance],
    build_report: BuildReport,
) -> None:
    with sessions.begin() as session:
        job_id = add_job(session, cast, JobState.SUCCEEDED, wait=MINUTE, run=HOUR)
        add_usage(session, appliances[0], job_id=job_id, allocated=2, used=1, idle=0.6, energy=0)
        add_job(session, cast, JobState.SUCCEEDED, wait=3 * MINUTE, run=2 * HOUR)
        add_job(session, cast, JobState.FAILED, wait=2 * MINUTE, run=3 * HOUR)
        add_job(session, cast, JobState.LOST, wait=2 * MINUTE, run=2 * HOUR)
        add_job(session, cast, JobState.QUEUED, wait=None, run=HOUR)
    bob = row(build_report(ReportKind.JOBS, ReportBy.USER), cast.bob.email)
    counts = [
        bob[name] for name in ("jobs", "succeeded", "failed", "stopped", "lost", "unfinished")
    ]
    assert counts == [5, 2, 1, 0, 1, 1]
    assert (bob["success_percent"], bob["mean_wait_seconds"]) == (50.0, 120.0)
    # Waits of 60, 120, 120 and 180 s: 95 % lies 0.85 of the way from the third to the fourth.
    assert bob["p95_wait_seconds"] == pytest.approx(171.0)
    assert bob["mean_run_seconds"] == 2 * 3600
    # 1 of 1.6 measured GPU-hours.
    assert bob["efficiency_percent"] == pytest.approx(62.5)


def test_availability_leaves_out_the_time_without_heartbeats(
    sessions: SessionFactory, appliances: tuple[Appliance, Appliance], build_report: BuildReport
) -> None:
    with sessions.begin() as session:
        for at, before, after in (
            (NOON, "online", "stale"),
            (NOON + HOUR, "stale", "unreachable"),
            (NOON + 4 * HOUR, "unreachable", "online"),
        ):
            details = {"before": before, "after": after}
            add_event(session, appliances[0], EventKind.STATE, "", now=at, details=details)
    report = build_report(ReportKind.AVAILABILITY, ReportBy.APPLIANCE)
    first = row(report, "dgx-01")
    # From midnight to 18:00, without three hours.
    assert first["available_percent"] == pytest.approx(100 * 15 / 18)
    assert (first["outages"], first["target_met"]) == (1, "no")
    assert first["longest_outage_seconds"] == 3 * 3600
    assert row(report, "dgx-02")["available_percent"] == 100.0
    assert report.totals[2] == pytest.approx(100 * 33 / 36)


def test_outages_at_the_ends_of_a_period_count_within_it() -> None:
    def at(hours: float) -> datetime:
        return NOON + hours * HOUR

    history = [(at(-5), "online"), (at(-1), "lost"), (at(1), "online"), (at(3), "lost")]
    availability = available_within(history, since=at(0), until=at(4))
    assert (availability.seconds, availability.online_seconds) == (4 * 3600, 2 * 3600)
    # The outage that began before counts, too.
    assert (availability.outages, availability.longest_seconds) == (2, 3600)


@pytest.mark.parametrize(
    ("history", "outages", "longest_seconds", "seconds"),
    [
        # Six seconds from the enrollment to the first connection are no outage.
        ([(0, "enrolled"), (6, "online")], 0, 0, 3594),
        ([(0, "enrolled")], 0, 0, 0),
        # One outage, however many states it has.
        ([(-60, "online"), (600, "stale"), (660, "unreachable"), (900, "lost")], 1, 2940, 3600),
        # A state of no length.
        ([(-60, "online"), (600, "unreachable"), (600, "online")], 0, 0, 3600),
    ],
)
def test_an_outage_that_is_not_counted_has_no_length(
    history: list[tuple[int, str]], outages: int, longest_seconds: int, seconds: int
) -> None:
    changes = [(NOON + timedelta(seconds=at), state) for at, state in history]
    availability = available_within(changes, since=NOON, until=NOON + HOUR)
    assert (availability.outages, availability.longest_seconds) == (outages, longest_seconds)
    assert availability.seconds == seconds
    assert (availability.outages == 0) == (availability.online_seconds == availability.seconds)


def test_figures_have_no_remains_of_fractions(
    sessions: SessionFactory,
    cast: Cast,
    appliances: tuple[Appliance, Appliance],
    build_report: BuildReport,
) -> None:
    # 0.3 - 0.1 - 0.2 is -2.8e-17 as floats.
    with sessions.begin() as session:
        add_usage(
            session, appliances[0], cast.alice.id, allocated=0.3, used=0.1, idle=0.2, energy=0
        )
    report = build_report(ReportKind.GPU_TIME, ReportBy.USER)
    [cell] = [
        cell
        for column, cell in zip(report.columns, report.rows[0], strict=True)
        if column.name == "unmeasured_gpu_hours"
    ]
    assert str(cell) == "0.0"


def test_alerts_count_from_firing_to_their_end(
    sessions: SessionFactory, cast: Cast, build_report: BuildReport
) -> None:
    with sessions.begin() as session:
        rule = Rule(
            tenant_id=cast.acme.id,
            name="GPU is hot",
            measurement="gpu",
            field="temperature_celsius",
            aggregate="max",
            window_seconds=60,
            comparison=Comparison.ABOVE,
            warning_threshold=80.0,
            created_at=NOON,
        )
        session.add(rule)
        session.flush()
        ids = [
            _add_alert(session, rule, key, end_at)
            for key, end_at in (("a", NOON + 10 * MINUTE), ("b", NOON + 30 * MINUTE), ("c", None))
        ]
    with sessions.begin() as session:
        acknowledge_alert(session, scope_of(cast.alice), ids[1], now=NOON + 5 * MINUTE)
        acknowledge_alert(session, scope_of(cast.alice), ids[2], now=NOON + 15 * MINUTE)
    report = build_report(ReportKind.ALERTS, ReportBy.RULE)
    hot = row(report, "GPU is hot")
    assert (hot["alerts"], hot["critical"], hot["resolved"]) == (3, 3, 2)
    assert (hot["mean_resolve_seconds"], hot["longest_resolve_seconds"]) == (1200.0, 1800.0)
    # The third has been firing for six hours.
    assert hot["firing_seconds"] == 2400.0 + 6 * 3600
    assert (hot["acknowledged"], hot["mean_acknowledge_seconds"]) == (2, 600.0)


def _add_alert(session: Session, rule: Rule, key: str, end_at: datetime | None) -> str:
    alert = Alert(
        rule_id=rule.id,
        tenant_id=rule.tenant_id,
        group_key=key,
        state=AlertState.FIRING,
        severity=Severity.CRITICAL,
        observed_at=NOON,
        updated_at=NOON,
    )
    session.add(alert)
    session.flush()
    steps = [(AlertState.INACTIVE, AlertState.FIRING, NOON)]
    steps += [(AlertState.FIRING, AlertState.RESOLVED, end_at)] if end_at else []
    for before, after, at in steps:
        session.add(
            AlertTransition(
                alert_id=alert.id,
                tenant_id=rule.tenant_id,
                from_state=before,
                to_state=after,
                severity=Severity.CRITICAL,
                at=at,
            )
        )
    return alert.id


def test_percentiles_lie_between_values() -> None:
    assert percentile_95([]) is None
    assert percentile_95([7.0]) == 7.0
    assert percentile_95([float(number) for number in range(101)]) == pytest.approx(95.0)
