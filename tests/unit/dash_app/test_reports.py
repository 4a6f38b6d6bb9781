"""Reports on a ledger, jobs, states and alerts that are small enough to compute by hand."""

import csv
import io
import zipfile
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition, Rule
from alerting.states import AlertState, Comparison, Severity
from core.db import SessionFactory
from core.errors import InvalidInputError
from dash_app.reports.availability import available_within
from dash_app.reports.builders import GROUPINGS, build, percentile_95
from dash_app.reports.files import MAX_PDF_ROWS, csv_file, pdf_file, xlsx_file
from dash_app.reports.report import Cell, Report, ReportBy, ReportKind, Request, Unit, shown
from jobqueue.models import Job
from jobqueue.states import JobKind, JobState
from jobqueue.usage.models import UsageEntry
from jobqueue.usage.totals import Period
from tenants.fleet.events import EventKind, add_event
from tenants.models import Appliance
from tests.cast import NOON, Cast, make_appliance, scope_of

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
DAY = Period(NOON - 12 * HOUR, NOON + 12 * HOUR)
NOW = NOON + 6 * HOUR
HOUR_MS = 3_600_000


@pytest.fixture
def appliances(sessions: SessionFactory, cast: Cast) -> tuple[Appliance, Appliance]:
    """acme's appliances in Lyon and Porto, enrolled a day before noon."""
    with sessions.begin() as session:
        early = NOON - timedelta(days=1)
        lyon = make_appliance(session, cast.acme, "dgx-01", now=early)
        porto = make_appliance(session, cast.acme, "dgx-02", now=early)
        lyon.site, porto.site = "Lyon", "Porto"
        return lyon, porto


def report(
    session: Session, cast: Cast, kind: ReportKind, by: ReportBy, **options: float
) -> Report:
    request = replace(Request(kind=kind, by=by, period=DAY), **options)  # type: ignore[arg-type]
    return build(session, scope_of(cast.alice), request, now=NOW)


def row(found: Report, name: str) -> dict[str, Cell]:
    values = next(one for one in found.rows if one[0] == name)
    return dict(zip([column.name for column in found.columns], values, strict=True))


def add_usage(session: Session, appliance: Appliance, user_id: str | None, **hours: float) -> None:
    """Add an hour of the ledger: GPU-hours by name, and the energy in kWh."""
    ident = f"{appliance.name}-{user_id}"[:36]
    session.add(
        UsageEntry(
            hour_at=NOON,
            tenant_id=appliance.tenant_id,
            user_id=user_id,
            job_id=ident,
            job_name="train",
            attempt_id=ident,
            appliance_id=appliance.id,
            gpu_model="H100",
            revision=0,
            allocated_milliseconds=int(hours["allocated"] * HOUR_MS),
            used_milliseconds=int(hours["used"] * HOUR_MS),
            idle_milliseconds=int(hours["idle"] * HOUR_MS),
            energy_joules=int(hours["energy"] * HOUR_MS),
            recorded_at=NOW,
        )
    )


def test_gpu_time_and_energy_are_those_of_the_ledger(
    sessions: SessionFactory, cast: Cast, appliances: tuple[Appliance, Appliance]
) -> None:
    lyon, porto = appliances
    with sessions.begin() as session:
        add_usage(session, lyon, cast.alice.id, allocated=8, used=5, idle=1, energy=4)
        add_usage(session, porto, cast.alice.id, allocated=2, used=1, idle=1, energy=1)
        add_usage(session, porto, None, allocated=1, used=0, idle=0, energy=0)
    with sessions() as session:
        by_user = report(
            session, cast, ReportKind.GPU_TIME, ReportBy.USER, price_per_kilowatt_hour=0.3
        )
        by_site = report(session, cast, ReportKind.GPU_TIME, ReportBy.SITE)
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
    assert [one[:2] for one in by_site.rows] == [("Lyon", 8.0), ("Porto", 3.0)]
    with sessions() as session:
        foreign = build(session, scope_of(cast.charlie), by_user.request, now=NOW)
    assert foreign.rows == []


def add_job(
    session: Session, cast: Cast, state: JobState, *, wait: timedelta | None, run: timedelta
) -> None:
    started_at = NOON + wait if wait is not None else None
    session.add(
        Job(
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
    )


def test_jobs_are_counted_by_outcome_with_their_waits_and_runs(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        add_job(session, cast, JobState.SUCCEEDED, wait=MINUTE, run=HOUR)
        add_job(session, cast, JobState.SUCCEEDED, wait=3 * MINUTE, run=2 * HOUR)
        add_job(session, cast, JobState.FAILED, wait=2 * MINUTE, run=3 * HOUR)
        add_job(session, cast, JobState.LOST, wait=2 * MINUTE, run=2 * HOUR)
        add_job(session, cast, JobState.QUEUED, wait=None, run=HOUR)
    with sessions() as session:
        bob = row(report(session, cast, ReportKind.JOBS, ReportBy.USER), cast.bob.email)
    counts = [
        bob[name] for name in ("jobs", "succeeded", "failed", "stopped", "lost", "unfinished")
    ]
    assert counts == [5, 2, 1, 0, 1, 1]
    assert (bob["success_percent"], bob["mean_wait_seconds"]) == (50.0, 120.0)
    # Waits of 60, 120, 120 and 180 s: 95 % lies 0.85 of the way from the third to the fourth.
    assert bob["p95_wait_seconds"] == pytest.approx(171.0)
    assert bob["mean_run_seconds"] == 2 * 3600


def test_availability_leaves_out_the_time_without_heartbeats(
    sessions: SessionFactory, cast: Cast, appliances: tuple[Appliance, Appliance]
) -> None:
    with sessions.begin() as session:
        for at, before, after in (
            (NOON, "online", "stale"),
            (NOON + HOUR, "stale", "unreachable"),
            (NOON + 4 * HOUR, "unreachable", "online"),
        ):
            details = {"before": before, "after": after}
            add_event(session, appliances[0], EventKind.STATE, "", now=at, details=details)
    with sessions() as session:
        found = report(session, cast, ReportKind.AVAILABILITY, ReportBy.APPLIANCE)
    first = row(found, "dgx-01")
    # From midnight to 18:00, without three hours.
    assert first["available_percent"] == pytest.approx(100 * 15 / 18)
    assert (first["outages"], first["target_met"]) == (1, "no")
    assert first["longest_outage_seconds"] == 3 * 3600
    assert row(found, "dgx-02")["available_percent"] == 100.0
    assert found.totals[2] == pytest.approx(100 * 33 / 36)


def test_outages_at_the_ends_of_a_period_count_within_it() -> None:
    def at(hours: float) -> datetime:
        return NOON + hours * HOUR

    history = [(at(-5), "online"), (at(-1), "lost"), (at(1), "online"), (at(3), "lost")]
    found = available_within(history, since=at(0), until=at(4))
    assert (found.seconds, found.online_seconds) == (4 * 3600, 2 * 3600)
    assert (found.outages, found.longest_seconds) == (1, 3600)


def test_alerts_count_from_firing_to_their_end(sessions: SessionFactory, cast: Cast) -> None:
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
        for key, end_at in (("a", NOON + 10 * MINUTE), ("b", NOON + 30 * MINUTE), ("c", None)):
            _add_alert(session, rule, key, end_at)
    with sessions() as session:
        found = report(session, cast, ReportKind.ALERTS, ReportBy.RULE)
    hot = row(found, "GPU is hot")
    assert (hot["alerts"], hot["critical"], hot["resolved"]) == (3, 3, 2)
    assert (hot["mean_resolve_seconds"], hot["longest_resolve_seconds"]) == (1200.0, 1800.0)
    # The third has been firing for six hours.
    assert hot["firing_seconds"] == 2400.0 + 6 * 3600


def _add_alert(session: Session, rule: Rule, key: str, end_at: datetime | None) -> None:
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


def test_percentiles_lie_between_values() -> None:
    assert percentile_95([]) is None
    assert percentile_95([7.0]) == 7.0
    assert percentile_95([float(one) for one in range(101)]) == pytest.approx(95.0)


@pytest.mark.parametrize("kind", ReportKind)
def test_every_grouping_works_without_data_and_others_are_refused(
    session: Session, cast: Cast, kind: ReportKind
) -> None:
    for by in GROUPINGS[kind]:
        found = report(session, cast, kind, by)
        assert len(found.totals) == len(found.columns)
        assert pdf_file(found).startswith(b"%PDF")
    wrong = next(by for by in ReportBy if by not in GROUPINGS[kind])
    with pytest.raises(InvalidInputError) as error:
        report(session, cast, kind, wrong)
    assert "by" in error.value.errors


@pytest.fixture
def evil(session: Session, cast: Cast) -> Report:
    """A report with a formula, letters of other scripts, and more rows than a PDF has."""
    empty = report(session, cast, ReportKind.ALERTS, ReportBy.RULE)
    names = ["=1+1", "Ωmega Łódź 東京", *[f"rule {at}" for at in range(MAX_PDF_ROWS)]]
    return replace(empty, rows=[(name, 1, 0, 1, 60.5, 60.5, 60.5) for name in names])


def test_files_have_every_row_and_no_formula(evil: Report) -> None:
    rows = list(csv.reader(io.StringIO("".join(csv_file(evil)))))
    assert rows[0] == [column.name for column in evil.columns]
    assert len(rows) == 1 + len(evil.rows)
    assert rows[1] == ["'=1+1", "1", "0", "1", "60.5", "60.5", "60.5"]
    with zipfile.ZipFile(io.BytesIO(xlsx_file(evil))) as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
        texts = book.read("xl/sharedStrings.xml").decode()
    assert "<f>" not in sheet
    assert "=1+1" in texts
    assert "東京" in texts
    assert sheet.count("<v>60.5</v>") == 3 * len(evil.rows)
    document = pdf_file(evil)
    assert document.startswith(b"%PDF")
    assert document.count(b"/Type /Page\n") > 10


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.PERCENT, 99.95, "100.0 %"),
        (Unit.SECONDS, 5400.0, "1h 30m"),
        (Unit.COUNT, 12345, "12,345"),
        (Unit.HOURS, 1234.5, "1,234.50"),
        (Unit.COUNT, None, "-"),
    ],
)
def test_values_are_shown_with_their_unit(
    session: Session, cast: Cast, unit: Unit, value: Cell, text: str
) -> None:
    column = replace(report(session, cast, ReportKind.JOBS, ReportBy.USER).columns[1], unit=unit)
    assert shown(column, value) == text
