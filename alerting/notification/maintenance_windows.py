"""Maintenance windows: silences that recur, by a schedule in a time zone.

Each occurrence is a silence of its own, made by the scheduler when the one before begins: until
then it is listed as pending, and expiring it skips that occurrence only.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Unpack

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from alerting.language.matchers import parse_matcher
from alerting.models import MaintenanceWindow, Silence
from alerting.notification.silences import expire_silence, matcher_errors
from alerting.rule_request import MAX_NAME_LENGTH, Errors, raise_errors
from core.db import changed_one
from core.errors import ConflictError
from core.paging import Columns, Page, Paging, list_page
from core.schedule_times import check_schedule, check_time_zone, next_time, times_between
from core.spec import About
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_WINDOWS = 100
MIN_DURATION = timedelta(minutes=5)
MAX_DURATION = timedelta(days=7)
WINDOW_SORTS: Columns = {
    "name": MaintenanceWindow.name,
    "next_at": MaintenanceWindow.next_at,
    "created_at": MaintenanceWindow.created_at,
}
# So many occurrences are checked to be apart.
_CHECKED = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """A maintenance window as a user writes it; its alerts are chosen as those of a silence."""

    name: str
    matchers: Annotated[Sequence[str], About("As those of silences.")]
    schedule: Annotated[str, About("When it begins: cron, or an ISO 8601 repeating interval.")]
    duration_seconds: float
    time_zone: str = "UTC"


def list_windows(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[MaintenanceWindow]:
    """Return the maintenance windows of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(MaintenanceWindow), MaintenanceWindow)
    ordered = statement.order_by(MaintenanceWindow.name, MaintenanceWindow.id)
    return list_page(session, ordered, WINDOW_SORTS, last=MaintenanceWindow.id, **paging)


def get_window(session: Session, scope: Scope, window_id: str) -> MaintenanceWindow:
    """Return a maintenance window of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, MaintenanceWindow, window_id, kind="maintenance window")


def create_window(
    session: Session, scope: Scope, request: WindowRequest, *, now: datetime
) -> MaintenanceWindow:
    """Add a maintenance window to the scope's tenant; an occurrence that goes on applies at once.

    Raises:
        InvalidInputError: with the errors by field.
        ConflictError: the tenant has `MAX_WINDOWS`.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    count = select(func.count()).where(MaintenanceWindow.tenant_id == tenant_id)
    if (session.scalar(count) or 0) >= MAX_WINDOWS:
        raise ConflictError(f"There are {MAX_WINDOWS} maintenance windows. Delete one first.")
    window = MaintenanceWindow(tenant_id=tenant_id, created_by=scope.user_id, created_at=now)
    return _save(session, window, request, now=now)


def update_window(
    session: Session, scope: Scope, window_id: str, request: WindowRequest, *, now: datetime
) -> MaintenanceWindow:
    """Change a maintenance window; its current occurrence and the next one are made anew.

    Raises:
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.EDIT_ALERTS)
    window = get_window(session, scope, window_id)
    _end_silences(session, scope, window, now=now)
    return _save(session, window, request, now=now)


def delete_window(session: Session, scope: Scope, window_id: str, *, now: datetime) -> None:
    """Delete a maintenance window, and end its current occurrence."""
    scope.require(Permission.EDIT_ALERTS)
    window = get_window(session, scope, window_id)
    _end_silences(session, scope, window, now=now)
    session.delete(window)
    session.flush()


def add_occurrences(session: Session, *, now: datetime) -> int:
    """Make the silences of occurrences that have begun, and of the next one of each window."""
    due = select(MaintenanceWindow).where(MaintenanceWindow.next_at <= now)
    return sum(_add_silences(session, window, now=now) for window in session.scalars(due).all())


def _save(
    session: Session, window: MaintenanceWindow, request: WindowRequest, *, now: datetime
) -> MaintenanceWindow:
    errors = _errors(request, now=now)
    same = select(MaintenanceWindow.id).where(
        MaintenanceWindow.tenant_id == window.tenant_id,
        MaintenanceWindow.name == request.name.strip(),
    )
    with session.no_autoflush:
        if session.scalar(same) not in {None, window.id}:
            errors["name"] = [
                f"A maintenance window named {request.name.strip()!r} already exists."
            ]
    raise_errors("maintenance window", errors)
    for name, value in asdict(request).items():
        setattr(window, name, value)
    window.name = request.name.strip()
    window.matchers = [str(parse_matcher(text)) for text in request.matchers]
    window.next_at = None
    session.add(window)
    session.flush()
    _add_silences(session, window, now=now)
    session.refresh(window)
    return window


def _add_silences(session: Session, window: MaintenanceWindow, *, now: datetime) -> int:
    """Add the occurrence that goes on, if there is one without a silence, and the next one."""
    duration = timedelta(seconds=window.duration_seconds)
    last_at, added = window.next_at, 0
    after = max(now - duration, last_at or now - duration)
    while after <= now:
        start_at = next_time(window.schedule, window.time_zone, after=after)
        claim = update(MaintenanceWindow).where(
            MaintenanceWindow.id == window.id,
            MaintenanceWindow.next_at.is_not_distinct_from(last_at),
        )
        if not changed_one(session, claim.values(next_at=start_at)) or start_at is None:
            break
        session.add(
            Silence(
                tenant_id=window.tenant_id,
                window_id=window.id,
                matchers=window.matchers,
                starts_at=start_at,
                ends_at=start_at + duration,
                comment=window.name,
                created_by=window.created_by,
                created_at=now,
            )
        )
        added += 1
        last_at = after = start_at
    session.flush()
    return added


def _end_silences(
    session: Session, scope: Scope, window: MaintenanceWindow, *, now: datetime
) -> None:
    own = select(Silence).where(Silence.window_id == window.id, Silence.ends_at > now)
    for silence in session.scalars(own.where(Silence.starts_at <= now)).unique().all():
        expire_silence(session, scope, silence.id, now=now)
        silence.window_id = None  # the changed window may begin at the same time
    session.flush()
    session.execute(delete(Silence).where(Silence.window_id == window.id, Silence.starts_at > now))


def _errors(request: WindowRequest, *, now: datetime) -> Errors:
    errors: Errors = {"matchers": matcher_errors(request.matchers)}
    if not 1 <= len(request.name.strip()) <= MAX_NAME_LENGTH:
        errors["name"] = [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    for field, check in (("time_zone", check_time_zone), ("schedule", check_schedule)):
        try:
            check(getattr(request, field))
        except ValueError as error:
            errors[field] = [str(error)]
    # Also of numbers that no timedelta can have, such as infinity.
    seconds = max(0, min(request.duration_seconds, 2 * MAX_DURATION.total_seconds()))
    duration = timedelta(seconds=seconds)
    if not MIN_DURATION <= duration <= MAX_DURATION:
        limits = f"{MIN_DURATION.seconds // 60} minutes to {MAX_DURATION.days} days"
        errors["duration_seconds"] = [f"A maintenance window lasts from {limits}."]
    elif not errors.keys() & {"schedule", "time_zone"}:
        errors["schedule"] = _schedule_errors(request, duration, now=now)
    return {name: messages for name, messages in errors.items() if messages}


def _schedule_errors(request: WindowRequest, duration: timedelta, *, now: datetime) -> list[str]:
    first = next_time(request.schedule, request.time_zone, after=now.astimezone(UTC) - duration)
    if first is None:
        return ["The schedule has no time in the future."]
    times = times_between(
        request.schedule,
        request.time_zone,
        first=first,
        until=datetime.max.replace(tzinfo=UTC),
        max_count=_CHECKED,
    )
    if any(after - before < duration for before, after in pairwise(times)):
        return ["It begins again before it ends. Choose fewer times or a shorter duration."]
    return []
