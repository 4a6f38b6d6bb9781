"""Notifications to send again: undelivered ones of all tenants (operator), and a tenant's own."""

from datetime import datetime, timedelta
from typing import Unpack

from sqlalchemy import ColumnElement, Delete, Update, and_, case, delete, or_, select, update
from sqlalchemy.orm import Session

from alerting.notification.models import DeliveredAlert, Notification
from alerting.states import NotificationPurpose, NotificationState
from core.db import changed_one, changed_rows
from core.errors import ConflictError, NotFoundError
from core.paging import Columns, Page, Paging, list_page
from tenants.auditing.recording import record
from tenants.permissions import Permission
from tenants.scope import Scope

LISTED_AFTER = timedelta(minutes=10)
UNDELIVERED_SORTS: Columns = {
    "created_at": Notification.created_at,
    "next_try_at": Notification.next_try_at,
    "tries": Notification.tries,
    "state": Notification.state,
}


def list_undelivered(
    session: Session, scope: Scope, *, now: datetime, **paging: Unpack[Paging]
) -> Page[Notification]:
    """Return the undelivered notifications, newest first."""
    scope.require(Permission.OPERATE)
    waits_long = and_(
        Notification.state == NotificationState.WAITING,
        Notification.created_at < now - LISTED_AFTER,
    )
    statement = (
        select(Notification)
        .where(or_(Notification.state == NotificationState.FAILED, waits_long))
        .order_by(Notification.id.desc())
    )
    return list_page(session, statement, UNDELIVERED_SORTS, last=Notification.id, **paging)


def get_undelivered(session: Session, scope: Scope, notification_id: str) -> Notification:
    """Return a notification of any tenant."""
    scope.require(Permission.OPERATE)
    notification = session.get(Notification, notification_id)
    if notification is None:
        raise NotFoundError.of("notification", notification_id)
    return notification


def retry(session: Session, scope: Scope, notification_id: str, *, now: datetime) -> Notification:
    """Retry a notification now, with a new retry period.

    Raises:
        ConflictError: it was already sent.
    """
    notification = get_undelivered(session, scope, notification_id)
    _change(
        session,
        notification,
        _retried(_is_unsent(notification), now),
        "notification.retried",
        now=now,
    )
    session.refresh(notification)
    return notification


def redeliver(
    session: Session, scope: Scope, notification_id: str, *, now: datetime
) -> Notification:
    """Send a notification of the tenant again, with the same ID, that was sent or has failed.

    Raises:
        ConflictError: its delivery goes on.
    """
    scope.require(Permission.EDIT_ALERTS)
    notification = scope.get(session, Notification, notification_id, kind="notification")
    is_done = Notification.state.in_((NotificationState.SENT, NotificationState.FAILED))
    statement = _retried(and_(Notification.id == notification.id, is_done), now)
    is_change = Notification.purpose == NotificationPurpose.CHANGE
    purpose = case((is_change, NotificationPurpose.REPEAT), else_=Notification.purpose)
    group_key = _group_key(session, notification)
    values = {"group_key": group_key, "sent_at": None, "purpose": purpose}
    if not changed_one(session, statement.values(values)):
        text = "The notification is still to be delivered. Wait until it is sent or has failed."
        raise ConflictError(text, code="notification_pending")
    record(
        session,
        action="notification.redelivered",
        target_id=notification.id,
        target_name=notification.destination.name,
        tenant_id=notification.tenant_id,
        now=now,
    )
    session.refresh(notification)
    return notification


def discard(session: Session, scope: Scope, notification_id: str, *, now: datetime) -> None:
    """Delete an undelivered notification.

    Raises:
        ConflictError: it was already sent.
    """
    notification = get_undelivered(session, scope, notification_id)
    statement = delete(Notification).where(_is_unsent(notification))
    _change(session, notification, statement, "notification.discarded", now=now)


def retry_all(session: Session, scope: Scope, *, now: datetime) -> int:
    """Retry every failed notification; return the number."""
    failed = Notification.state == NotificationState.FAILED
    statement = _retried(failed, now)
    return _change_all(session, scope, statement, "notification.all_retried", now=now)


def discard_all(session: Session, scope: Scope, *, now: datetime) -> int:
    """Delete every failed notification; return the number."""
    statement = delete(Notification).where(Notification.state == NotificationState.FAILED)
    return _change_all(session, scope, statement, "notification.all_discarded", now=now)


def _retried(which: ColumnElement[bool], now: datetime) -> Update:
    values = {"state": NotificationState.WAITING, "next_try_at": now, "tries": 0, "created_at": now}
    return update(Notification).where(which).values(values)


def _is_unsent(notification: Notification) -> ColumnElement[bool]:
    return and_(Notification.id == notification.id, Notification.state != NotificationState.SENT)


def _group_key(session: Session, notification: Notification) -> str:
    """Return the group of the incident that a notification is about; others are sent alone."""
    if notification.purpose in {NotificationPurpose.NOTICE, NotificationPurpose.ACTION}:
        return ""
    current: str | None = session.scalar(
        select(DeliveredAlert.group_key).where(
            DeliveredAlert.alert_id == notification.alert_id,
            DeliveredAlert.recipient == notification.recipient,
        )
    )
    return notification.group_key if current is None else current


def _change(
    session: Session,
    notification: Notification,
    statement: Update | Delete,
    action: str,
    *,
    now: datetime,
) -> None:
    target_name, tenant_id = notification.destination.name, notification.tenant_id
    if not changed_one(session, statement):
        raise ConflictError("The notification was already sent.", code="notification_sent")
    record(
        session,
        action=action,
        target_kind="notification",
        target_id=notification.id,
        target_name=target_name,
        tenant_id=tenant_id,
        now=now,
    )


def _change_all(
    session: Session, scope: Scope, statement: Update | Delete, action: str, *, now: datetime
) -> int:
    scope.require(Permission.OPERATE)
    count = changed_rows(session, statement, synchronize_session=False)
    if count:
        record(
            session,
            action=action,
            target_kind="notification",
            target_name=f"{count} notifications",
            tenant_id=None,
            after={"messages": count},
            now=now,
        )
    return count
