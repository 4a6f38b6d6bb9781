"""The outbox as the operator looks after it: messages that were given up, or wait for long."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from alerting.models import Notification
from alerting.states import NotificationState
from core.errors import ConflictError, NotFoundError
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.audit import record
from tenants.permissions import Permission
from tenants.scope import Scope

WAITS_TOO_LONG = timedelta(minutes=10)
STUCK_SORTS: Columns = {
    "created_at": Notification.created_at,
    "next_try_at": Notification.next_try_at,
    "tries": Notification.tries,
    "state": Notification.state,
}


def list_stuck(
    session: Session,
    scope: Scope,
    *,
    now: datetime,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Notification]:
    """Return the messages that don't get out, of every tenant, the newest first."""
    scope.require(Permission.OPERATE)
    statement = select(Notification).where(_is_stuck(now)).order_by(Notification.id.desc())
    statement = sorted_by(statement, sort, STUCK_SORTS, last=Notification.id)
    return paginate(session, statement, number=page, size=page_size)


def get_message(session: Session, scope: Scope, notification_id: str) -> Notification:
    """Return a message of any tenant."""
    scope.require(Permission.OPERATE)
    found = session.get(Notification, notification_id)
    if found is None:
        raise NotFoundError.of("notification", notification_id)
    return found


def retry(session: Session, scope: Scope, notification_id: str, *, now: datetime) -> Notification:
    """Have a message tried again at once, for another day.

    Raises:
        ConflictError: it is sent already.
    """
    message = _stuck_one(session, scope, notification_id)
    moved: Any = session.execute(
        update(Notification)
        .where(Notification.id == message.id, Notification.state != NotificationState.SENT)
        .values(state=NotificationState.WAITING, next_try_at=now, tries=0, created_at=now)
    )
    if not moved.rowcount:
        raise _sent()
    _tell(session, message, "notification.retried", now=now)
    session.refresh(message)
    return message


def discard(session: Session, scope: Scope, notification_id: str, *, now: datetime) -> None:
    """Delete a message that was never delivered.

    Raises:
        ConflictError: it is sent already.
    """
    message = _stuck_one(session, scope, notification_id)
    gone: Any = session.execute(
        delete(Notification).where(
            Notification.id == message.id, Notification.state != NotificationState.SENT
        )
    )
    if not gone.rowcount:
        raise _sent()
    _tell(session, message, "notification.discarded", now=now)


def retry_all(session: Session, scope: Scope, *, now: datetime) -> int:
    """Have every message that was given up tried again; return how many."""
    return _all_failed(
        session, scope, "notification.all_retried", now=now,
        act=lambda failed: update(Notification).where(failed).values(
            state=NotificationState.WAITING, next_try_at=now, tries=0, created_at=now
        ),
    )  # fmt: skip


def discard_all(session: Session, scope: Scope, *, now: datetime) -> int:
    """Delete every message that was given up; return how many."""
    return _all_failed(
        session, scope, "notification.all_discarded", now=now,
        act=lambda failed: delete(Notification).where(failed),
    )  # fmt: skip


def _all_failed(
    session: Session,
    scope: Scope,
    action: str,
    *,
    act: Callable[[ColumnElement[bool]], Any],
    now: datetime,
) -> int:
    scope.require(Permission.OPERATE)
    statement = act(Notification.state == NotificationState.FAILED)
    done: Any = session.execute(statement, execution_options={"synchronize_session": False})
    count = int(done.rowcount)
    if count:
        record(
            session, action=action, target_kind="notification", target_id=None,
            target_name=f"{count} messages", tenant_id=None, after={"messages": count}, now=now,
        )  # fmt: skip
    return count


def _stuck_one(session: Session, scope: Scope, notification_id: str) -> Notification:
    found = get_message(session, scope, notification_id)
    if found.state is NotificationState.SENT:
        raise _sent()
    return found


def _is_stuck(now: datetime) -> ColumnElement[bool]:
    waits = and_(
        Notification.state == NotificationState.WAITING,
        Notification.created_at < now - WAITS_TOO_LONG,
    )
    return or_(Notification.state == NotificationState.FAILED, waits)


def _tell(session: Session, message: Notification, action: str, *, now: datetime) -> None:
    record(
        session, action=action, target_kind="notification", target_id=message.id,
        target_name=message.destination.name, tenant_id=message.tenant_id, now=now,
    )  # fmt: skip


def _sent() -> ConflictError:
    return ConflictError("The message is sent already.", code="notification_sent")
