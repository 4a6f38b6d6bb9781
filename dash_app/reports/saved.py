"""Saved reports: a name for a period, grouping and filter, and a schedule to email them on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack
from zoneinfo import ZoneInfo

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.paging import Columns, Page, Paging, list_page
from core.schedule_times import check_schedule, check_time_zone, next_time, times_between
from dash_app.custom.files import ChangeAction
from dash_app.reports.builders import GROUPINGS
from dash_app.reports.models import MAX_FILTER_LENGTH, MAX_NAME_LENGTH, ReportPeriod, SavedReport
from dash_app.reports.report import FileFormat, ReportBy, ReportKind, Request
from jobqueue.usage.measuring import Period
from tenants.models import Membership, User
from tenants.permissions import Permission
from tenants.saved_items import SavedItems
from tenants.scope import Scope

ITEMS = SavedItems(
    model=SavedReport,
    noun="saved report",
    own=Permission.SAVE_REPORTS,
    others=Permission.MANAGE_USERS,
    max_items=100,
)
MAX_RECIPIENTS = 50
MAX_PRICE = 1000.0
# Each run computes a report: more often than hourly, users would see no difference.
MAX_RUNS_PER_DAY = 24
SAVED_SORTS: Columns = {"name": SavedReport.name, "next_run_at": SavedReport.next_run_at}
_DAY = timedelta(days=1)
_DAYS = {
    ReportPeriod.YESTERDAY: 1,
    ReportPeriod.LAST_7_DAYS: 7,
    ReportPeriod.LAST_30_DAYS: 30,
    ReportPeriod.LAST_90_DAYS: 90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedReportRequest:
    """A report as a user saves it.

    Attributes:
        appliances: a filter; see `Request`.
        schedule: cron (`0 7 * * 1`) or an ISO 8601 repeating interval; empty emails nothing.
        time_zone: in which days begin and cron expressions count, such as `Europe/Oslo`.
        recipients: email addresses of users of the tenant.
    """

    name: str
    kind: ReportKind
    by: ReportBy
    period: ReportPeriod
    time_zone: str = "UTC"
    appliances: str = ""
    price_per_kilowatt_hour: float = 0.0
    target_percent: float = 99.0
    schedule: str = ""
    file_format: FileFormat = FileFormat.PDF
    recipients: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SavedReportChange:
    """A file's change of a saved report, planned or made."""

    name: str
    action: ChangeAction


def list_saved(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[SavedReport]:
    """Return the saved reports of the tenant."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(SavedReport), SavedReport).order_by(SavedReport.name)
    return list_page(session, statement, SAVED_SORTS, last=SavedReport.id, **paging)


def get_saved(session: Session, scope: Scope, report_id: str) -> SavedReport:
    """Return a saved report; another tenant's is not found."""
    return ITEMS.get(session, scope, report_id)


def create_saved(
    session: Session, scope: Scope, request: SavedReportRequest, *, now: datetime
) -> SavedReport:
    """Save a report of the current user.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or the tenant has too many.
    """
    scope.require(Permission.SAVE_REPORTS)
    tenant_id = scope.require_tenant()
    values = _checked(session, scope, request, but="", now=now)
    ITEMS.check_room(session, scope)
    saved = SavedReport(
        tenant_id=tenant_id, user_id=scope.user_id, is_enabled=True, created_at=now, **values
    )
    saved.next_run_at = following(saved, now)
    session.add(saved)
    session.flush()
    session.refresh(saved)
    return saved


def replace_saved(
    session: Session, scope: Scope, report_id: str, request: SavedReportRequest, *, now: datetime
) -> SavedReport:
    """Replace a saved report of the current user, or as an admin another user's."""
    saved = ITEMS.changeable(session, scope, report_id)
    for name, value in _checked(session, scope, request, but=saved.id, now=now).items():
        setattr(saved, name, value)
    saved.next_run_at, saved.last_error = following(saved, now), ""
    session.flush()
    return saved


def apply_saved(
    session: Session, scope: Scope, requests: Sequence[SavedReportRequest], *, now: datetime
) -> list[SavedReportChange]:
    """Create and update saved reports by name; on an error, the caller must undo those before it.

    Raises:
        InvalidInputError: with the errors of all reports, by `reports.NUMBER.FIELD`.
        ConflictError: the tenant has too many.
        ForbiddenError: a report is another user's.
    """
    scope.require(Permission.SAVE_REPORTS)
    current = {row.name: row for row in session.scalars(ITEMS.select(scope)).unique()}
    counts = Counter(request.name.strip() for request in requests)
    errors: dict[str, list[str]] = {}
    changes = []
    for number, request in enumerate(requests):
        name = request.name.strip()
        if counts[name] > 1:
            text = f"The file has several reports {name!r}. Rename all but one."
            errors[f"reports.{number}.name"] = [text]
            continue
        try:
            action = _apply(session, scope, current.get(name), request, now=now)
        except InvalidInputError as error:
            errors |= {f"reports.{number}.{key}": texts for key, texts in error.errors.items()}
        else:
            changes.append(SavedReportChange(name, action))
    if errors:
        details = " ".join(f"{key}: {text}" for key, texts in errors.items() for text in texts)
        raise InvalidInputError(f"No report was saved. {details}", errors=errors)
    return changes


def enable_saved(
    session: Session, scope: Scope, report_id: str, *, is_enabled: bool, now: datetime
) -> SavedReport:
    """Resume or pause the emails of a saved report; times in between are not caught up on."""
    saved = ITEMS.changeable(session, scope, report_id)
    saved.is_enabled = is_enabled
    saved.next_run_at = following(saved, now)
    session.flush()
    return saved


def delete_saved(session: Session, scope: Scope, report_id: str) -> str:
    """Delete a saved report; return its name."""
    saved = ITEMS.changeable(session, scope, report_id)
    session.delete(saved)
    session.flush()
    return saved.name


def following(saved: SavedReport, now: datetime) -> datetime | None:
    """Return when a saved report is emailed next; None if it is not."""
    if not saved.schedule or not saved.is_enabled:
        return None
    try:
        return next_time(saved.schedule, saved.time_zone, after=now)
    except ValueError:
        # Its time zone is gone from the database of time zones.
        return None


def request_of(saved: SavedReport, now: datetime) -> Request:
    """Return what a saved report reports now."""
    return Request(
        kind=saved.kind,
        by=saved.by,
        period=period_before(saved.period, now, time_zone=saved.time_zone),
        price_per_kilowatt_hour=saved.price_per_kilowatt_hour,
        target_percent=saved.target_percent,
        appliances=saved.appliances,
        time_zone=saved.time_zone,
    )


def period_before(period: ReportPeriod, now: datetime, *, time_zone: str) -> Period:
    """Return the whole days of a period before today."""
    zone = ZoneInfo(time_zone)
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    until = today
    if period is ReportPeriod.LAST_MONTH:
        until = today.replace(day=1)
        since = (until - _DAY).replace(day=1)
    elif period is ReportPeriod.LAST_WEEK:
        until = today - today.weekday() * _DAY
        since = until - 7 * _DAY
    else:
        since = today - _DAYS[period] * _DAY
    return Period(*(day.replace(tzinfo=zone).astimezone(UTC) for day in (since, until)))


def active_members(session: Session, tenant_id: str) -> dict[str, User]:
    """Return the users of a tenant who may receive its reports, by id."""
    statement = (
        select(User)
        .join(Membership, Membership.user_id == User.id)
        .where(
            Membership.tenant_id == tenant_id,
            Membership.is_active.is_(True),
            User.is_active.is_(True),
        )
        .order_by(User.email)
    )
    return {user.id: user for user in session.scalars(statement).unique()}


def _apply(
    session: Session,
    scope: Scope,
    before: SavedReport | None,
    request: SavedReportRequest,
    *,
    now: datetime,
) -> ChangeAction:
    if before is None:
        create_saved(session, scope, request, now=now)
        return ChangeAction.CREATE
    values = _checked(session, scope, request, but=before.id, now=now)
    if all(getattr(before, name) == value for name, value in values.items()):
        return ChangeAction.KEEP
    replace_saved(session, scope, before.id, request, now=now)
    return ChangeAction.UPDATE


def _checked(
    session: Session, scope: Scope, request: SavedReportRequest, *, but: str, now: datetime
) -> dict[str, Any]:
    tenant_id, name = scope.require_tenant(), request.name.strip()
    users = {user.email.casefold(): user.id for user in active_members(session, tenant_id).values()}
    wanted = list(dict.fromkeys(address.strip().casefold() for address in request.recipients))
    errors = _errors(request, name, now) | _recipient_errors(request, wanted, users)
    if errors:
        details = " ".join(error for of_field in errors.values() for error in of_field)
        raise InvalidInputError(f"The report was not saved. {details}", errors=errors)
    ITEMS.check_name(session, name, tenant_id=tenant_id, user_id=None, but=but)
    values = {column.name: getattr(request, column.name) for column in fields(request)}
    return values | {
        "name": name,
        "appliances": request.appliances.strip(),
        "schedule": request.schedule.strip(),
        "recipients": [users[address] for address in wanted],
    }


def _errors(request: SavedReportRequest, name: str, now: datetime) -> dict[str, list[str]]:
    errors: dict[str, list[str]] = {}
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        errors["name"] = [f"{name!r} is not a name; use up to {MAX_NAME_LENGTH} characters."]
    if request.by not in GROUPINGS[request.kind]:
        groupings = ", ".join(GROUPINGS[request.kind])
        errors["by"] = [f"Use {groupings} for a report on {request.kind}, not {request.by}."]
    for field, maximum in (("price_per_kilowatt_hour", MAX_PRICE), ("target_percent", 100.0)):
        if not 0 <= getattr(request, field) <= maximum:
            errors[field] = [f"{getattr(request, field)} is not a number from 0 to {maximum:g}."]
    if len(request.appliances) > MAX_FILTER_LENGTH:
        errors["appliances"] = [f"Use up to {MAX_FILTER_LENGTH} characters."]
    try:
        check_time_zone(request.time_zone)
    except ValueError as error:
        return errors | {"time_zone": [str(error)]}
    schedule = request.schedule.strip()
    try:
        if schedule:
            _check_runs(schedule, request.time_zone, now)
    except ValueError as error:
        errors["schedule"] = [str(error)]
    return errors


def _check_runs(schedule: str, time_zone: str, now: datetime) -> None:
    check_schedule(schedule)
    first = next_time(schedule, time_zone, after=now)
    if first is None:
        raise ValueError(f"{schedule!r} is never due again.")
    max_count = MAX_RUNS_PER_DAY + 1
    # The end of the calendar is no reason to fail.
    last = min(first, datetime.max.replace(tzinfo=UTC) - _DAY) + _DAY - timedelta(seconds=1)
    times = times_between(schedule, time_zone, first=first, until=last, max_count=max_count)
    if len(list(times)) == max_count:
        raise ValueError(f"{schedule!r} is due more than {MAX_RUNS_PER_DAY} times a day.")


def _recipient_errors(
    request: SavedReportRequest, wanted: Sequence[str], users: dict[str, str]
) -> dict[str, list[str]]:
    errors = [
        f"{address!r} is not an active user of this tenant."
        for address in wanted
        if address not in users
    ]
    if len(wanted) > MAX_RECIPIENTS:
        errors = [f"{len(wanted)} recipients are more than {MAX_RECIPIENTS}."]
    if request.schedule.strip() and not wanted:
        errors = ["A schedule needs at least one recipient."]
    return {"recipients": errors} if errors else {}
