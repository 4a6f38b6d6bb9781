"""Saved reports: their periods, who may have and change them, and their emails."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from alerting.notification.messages import render
from alerting.notification.models import Notification, NotificationFile
from alerting.notification.senders.notify import EmailSender
from alerting.states import ReceiverKind
from core.db import SessionFactory
from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from dash_app.reports.emails import (
    FILE_LIFETIME,
    RETRY_AFTER,
    delete_files,
    email_due,
    email_now,
)
from dash_app.reports.models import ReportPeriod, SavedReport
from dash_app.reports.report import FileFormat, ReportBy, ReportKind
from dash_app.reports.saved import (
    ITEMS,
    SavedReportRequest,
    create_saved,
    delete_saved,
    enable_saved,
    get_saved,
    period_before,
    replace_saved,
)
from tenants.models import Appliance, Membership
from tests.cast import NOON, Cast, scope_of
from tests.e2e.inboxes import MailServer
from tests.unit.alerting.helpers import drain_outbox
from tests.unit.dash_app.lost_store import MESSAGE, LostStore
from tests.unit.dash_app.reporting import add_usage
from timeseries.store import Store

URL = "https://portal.example"
WEEKLY = SavedReportRequest(
    name="Weekly",
    kind=ReportKind.GPU_TIME,
    by=ReportBy.USER,
    period=ReportPeriod.LAST_7_DAYS,
    time_zone="Europe/Oslo",
    schedule="0 7 * * 1",
    file_format=FileFormat.CSV,
    recipients=["alice@acme.example", "BOB@acme.example"],
)
# NOON is on a Monday; 7:00 in Oslo is 6:00 UTC in winter.
NEXT = datetime(2026, 3, 9, 6, 0, tzinfo=UTC)


@pytest.fixture
def weekly(sessions: SessionFactory, cast: Cast) -> SavedReport:
    """Bob's weekly report on GPU time, to alice and him."""
    with sessions.begin() as session:
        return create_saved(session, scope_of(cast.bob), WEEKLY, now=NOON)


def emails(sessions: SessionFactory) -> list[str]:
    with sessions() as session:
        return sorted(session.scalars(select(Notification.address)))


@pytest.mark.parametrize(
    ("period", "since", "until"),
    [
        (ReportPeriod.YESTERDAY, "2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00"),
        (ReportPeriod.LAST_7_DAYS, "2026-03-23T00:00+01:00", "2026-03-30T00:00+02:00"),
        (ReportPeriod.LAST_30_DAYS, "2026-02-28T00:00+01:00", "2026-03-30T00:00+02:00"),
        (ReportPeriod.LAST_WEEK, "2026-03-23T00:00+01:00", "2026-03-30T00:00+02:00"),
        (ReportPeriod.LAST_MONTH, "2026-02-01T00:00+01:00", "2026-03-01T00:00+01:00"),
    ],
)
def test_periods_are_whole_days_of_the_time_zone(
    period: ReportPeriod, since: str, until: str
) -> None:
    # Half past midnight on a Monday in Oslo, the day after its clocks changed.
    now = datetime(2026, 3, 29, 22, 30, tzinfo=UTC)
    span = period_before(period, now, time_zone="Europe/Oslo")
    assert span.since == datetime.fromisoformat(since)
    assert span.until == datetime.fromisoformat(until)


def test_a_report_is_emailed_at_its_time_with_the_file_and_the_totals(
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    weekly: SavedReport,
    appliances: tuple[Appliance, Appliance],
) -> None:
    assert weekly.next_run_at == NEXT
    with sessions.begin() as session:
        add_usage(
            session, appliances[0], cast.alice.id, at=NOON, allocated=8, used=5, idle=1, energy=4
        )
        inactive = select(Membership).where(Membership.user_id == cast.bob.id)
        session.scalars(inactive).one().is_active = False
    assert email_due(sessions, store, public_url=URL, now=NEXT - timedelta(seconds=1)) == 0
    assert email_due(sessions, store, public_url=URL, now=NEXT) == 1
    assert email_due(sessions, store, public_url=URL, now=NEXT) == 0
    with sessions() as session:
        sent = session.scalars(select(Notification)).one()
        message = render(sent)
        assert sent.address == cast.alice.email
        assert "Allocated 8.00 GPU-hours" in message.text
        assert f"{URL}/reports/saved/{weekly.id}" in message.text
        after = session.get_one(SavedReport, weekly.id)
        assert (after.last_run_at, after.last_error) == (NEXT, "")
        assert after.next_run_at == datetime(2026, 3, 16, 6, 0, tzinfo=UTC)
    with MailServer() as mail:
        senders = {ReceiverKind.EMAIL: EmailSender(mail.url, "vedette@example.com")}
        assert drain_outbox(sessions, senders, kinds={ReceiverKind.WEBHOOK}, now=NEXT) == 0
        assert drain_outbox(sessions, senders, now=NEXT) == 1
        received = mail.messages[0]
    attached = list(received.walk())[-1]
    assert attached.get_filename() == "gpu-time_by_user_20260302_20260309.csv"
    data = attached.get_payload(decode=True)
    assert isinstance(data, bytes)
    lines = data.decode().splitlines()
    assert lines[0].startswith("user,allocated_gpu_hours,used_gpu_hours")
    assert lines[1].startswith("alice@acme.example,8.0,5.0,1.0,2.0")


def test_times_that_passed_while_no_scheduler_ran_are_one_email(
    sessions: SessionFactory, store: Store, weekly: SavedReport
) -> None:
    assert weekly.next_run_at is not None
    late = weekly.next_run_at + timedelta(weeks=3, hours=1)
    assert email_due(sessions, store, public_url=URL, now=late) == 2
    assert email_due(sessions, store, public_url=URL, now=late) == 0


@pytest.mark.usefixtures("weekly", "cast")
def test_two_schedulers_email_each_run_once(sessions: SessionFactory, store: Store) -> None:
    barrier, counts = Barrier(2), []

    def run() -> None:
        barrier.wait()
        counts.append(email_due(sessions, store, public_url=URL, now=NEXT))

    threads = [Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 2
    assert emails(sessions) == ["alice@acme.example", "bob@acme.example"]


def test_a_report_that_fails_says_why_and_does_not_stop_others(
    sessions: SessionFactory, store: Store, cast: Cast, weekly: SavedReport
) -> None:
    with sessions.begin() as session:
        create_saved(session, scope_of(cast.alice), replace(WEEKLY, name="Other"), now=NOON)
        # A grouping that an earlier version had.
        session.get_one(SavedReport, weekly.id).by = ReportBy.RULE
    assert email_due(sessions, store, public_url=URL, now=NEXT) == 2
    with sessions() as session:
        assert "rule" in session.get_one(SavedReport, weekly.id).last_error
    with pytest.raises(InvalidInputError):
        email_now(sessions, store, scope_of(cast.bob), weekly.id, public_url=URL, now=NEXT)


def test_a_report_without_its_samples_is_tried_again_and_does_not_stop_others(
    sessions: SessionFactory, store: Store, cast: Cast, weekly: SavedReport
) -> None:
    of_samples = replace(WEEKLY, name="Network", kind=ReportKind.NETWORK, by=ReportBy.SITE)
    with sessions.begin() as session:
        network_id = create_saved(session, scope_of(cast.alice), of_samples, now=NOON).id
    lost: Store = LostStore()  # type: ignore[assignment] # the queries of the report
    assert email_due(sessions, lost, public_url=URL, now=NEXT) == 2
    with sessions() as session:
        assert session.get_one(SavedReport, weekly.id).last_error == ""
        failed = session.get_one(SavedReport, network_id)
        assert failed.last_error == f"{MESSAGE} It is tried again."
        assert failed.next_run_at == NEXT + RETRY_AFTER
    assert email_due(sessions, store, public_url=URL, now=NEXT) == 0
    assert email_due(sessions, store, public_url=URL, now=NEXT + RETRY_AFTER) == 2
    with sessions() as session:
        retried = session.get_one(SavedReport, network_id)
        assert (retried.last_error, retried.next_run_at) == ("", NEXT + timedelta(weeks=1))


def test_paused_reports_are_not_emailed_but_on_demand(
    sessions: SessionFactory, store: Store, cast: Cast, weekly: SavedReport
) -> None:
    bob = scope_of(cast.bob)
    with sessions.begin() as session:
        assert enable_saved(session, bob, weekly.id, is_enabled=False, now=NOON).next_run_at is None
    assert email_due(sessions, store, public_url=URL, now=NEXT) == 0
    assert email_now(sessions, store, bob, weekly.id, public_url=URL, now=NOON) == 2
    with sessions.begin() as session:
        resumed = enable_saved(session, bob, weekly.id, is_enabled=True, now=NOON)
        assert resumed.next_run_at == NEXT
        silent = replace(WEEKLY, schedule="", recipients=())
        assert replace_saved(session, bob, weekly.id, silent, now=NOON).next_run_at is None
    with pytest.raises(ConflictError):
        email_now(sessions, store, bob, weekly.id, public_url=URL, now=NOON)


def test_files_are_deleted_when_nobody_can_retry_them(
    sessions: SessionFactory, store: Store, cast: Cast, weekly: SavedReport
) -> None:
    email_now(sessions, store, scope_of(cast.bob), weekly.id, public_url=URL, now=NOON)
    files = select(func.count()).select_from(NotificationFile)
    delete_files(sessions, now=NOON + FILE_LIFETIME - timedelta(seconds=1))
    with sessions() as session:
        assert session.scalar(files) == 1
    delete_files(sessions, now=NOON + FILE_LIFETIME)
    with sessions() as session:
        assert session.scalar(files) == 0
        assert session.scalars(select(Notification.file_id)).all() == [None, None]


def test_only_its_user_and_admins_change_a_report(
    session: Session, cast: Cast, weekly: SavedReport
) -> None:
    alice, charlie = scope_of(cast.alice), scope_of(cast.charlie)
    with pytest.raises(NotFoundError):
        get_saved(session, charlie, weekly.id)
    named = replace(WEEKLY, name="Renamed")
    assert replace_saved(session, alice, weekly.id, named, now=NOON).name == "Renamed"
    mine = create_saved(session, alice, replace(WEEKLY, name="Mine"), now=NOON)
    with pytest.raises(ForbiddenError):
        delete_saved(session, scope_of(cast.bob), mine.id)
    with pytest.raises(ForbiddenError):
        create_saved(session, scope_of(cast.olivia), WEEKLY, now=NOON)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"by": ReportBy.RULE}, "by"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"schedule": "7 o'clock"}, "schedule"),
        ({"schedule": "*/30 * * * *"}, "schedule"),
        ({"schedule": "R1/2020-01-01T00:00Z/P1D"}, "schedule"),
        ({"recipients": ()}, "recipients"),
        ({"recipients": ["charlie@globex.example"]}, "recipients"),
        ({"price_per_kilowatt_hour": float("nan")}, "price_per_kilowatt_hour"),
        ({"target_percent": 101.0}, "target_percent"),
        ({"appliances": 201 * "x"}, "appliances"),
    ],
)
def test_an_invalid_report_names_the_field(
    session: Session, cast: Cast, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInputError) as error:
        create_saved(session, scope_of(cast.alice), replace(WEEKLY, **changes), now=NOON)
    assert list(error.value.errors) == [field]


def test_a_schedule_may_begin_at_the_end_of_the_calendar(session: Session, cast: Cast) -> None:
    late = replace(WEEKLY, schedule="R/9999-12-31T23:00Z/PT1H")
    assert create_saved(session, scope_of(cast.alice), late, now=NOON).next_run_at is not None


def test_names_are_unique_and_their_number_is_limited(session: Session, cast: Cast) -> None:
    alice = scope_of(cast.alice)
    for number in range(ITEMS.max_items):
        create_saved(session, alice, replace(WEEKLY, name=f"report {number}"), now=NOON)
    with pytest.raises(ConflictError) as taken:
        create_saved(session, alice, replace(WEEKLY, name="report 7"), now=NOON)
    assert "name" in taken.value.errors
    with pytest.raises(ConflictError):
        create_saved(session, alice, replace(WEEKLY, name="one more"), now=NOON)
