"""Notifies paging services that a user works on an alert, so that they stop paging others.

An incident of a group is acknowledged once all of its active alerts are. If one of them becomes
worse, or another joins them, the incident is opened anew: an acknowledged one does not page.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.orm import Session

from alerting.models import Alert, Receiver
from alerting.notification.messages import ACKNOWLEDGEMENT
from alerting.notification.models import DeliveredAlert, Notification
from alerting.states import (
    PAGING_KINDS,
    AlertState,
    NotificationPurpose,
    NotificationState,
)

_ACTIVE = (AlertState.FIRING, AlertState.NO_DATA)
_QUEUED = (NotificationState.WAITING, NotificationState.SILENCED, NotificationState.FAILED)


def add_acknowledgements(
    session: Session,
    alerts: Sequence[Alert],
    delivered: Mapping[str, Mapping[str, DeliveredAlert]],
    *,
    now: datetime,
) -> int:
    """Queue the acknowledgements that paging services lack; return how many.

    Args:
        session: the session.
        alerts: all alerts of a tenant of which receivers were notified.
        delivered: what they were notified of, by alert and recipient.
        now: the time.
    """
    active = [alert for alert in alerts if alert.state in _ACTIVE]
    if not any(alert.acknowledged_at for alert in active):
        return 0
    paged = set(session.scalars(select(Receiver.id).where(Receiver.kind.in_(PAGING_KINDS))))
    incidents: dict[tuple[str, str], list[tuple[Alert, DeliveredAlert]]] = {}
    for alert in active:
        for key, row in delivered.get(alert.id, {}).items():
            if key in paged:
                incidents.setdefault((key, row.group_key or alert.id), []).append((alert, row))
    added = 0
    for pairs in incidents.values():
        (alert, row), *_ = pairs
        if _is_acknowledged(pairs) and not _is_queued(session, alert, row):
            session.add(_acknowledgement(row, now=now))
            added += 1
    return added


def is_acknowledgement_due(session: Session, notification: Notification) -> bool:
    """Return whether the incident of an acknowledgement is open, and its alert is acknowledged."""
    alert = session.get(Alert, notification.payload["alert_id"])
    is_open = select(DeliveredAlert.id).where(_same_incident(notification)).limit(1)
    is_acknowledged = alert is not None and alert.acknowledged_at is not None
    return is_acknowledged and session.scalar(is_open) is not None


def note_acknowledged(session: Session, notification: Notification, *, at: datetime | None) -> None:
    """Note that the incident of a notification was acknowledged, or opened anew."""
    same = update(DeliveredAlert).where(_same_incident(notification))
    session.execute(same.values(acknowledged_at=at))


def must_reopen(session: Session, notifications: Sequence[Notification]) -> bool:
    """Return whether notifications must reach those who acknowledged their incident."""
    first = notifications[0]
    if first.destination.kind not in PAGING_KINDS or not first.about:
        return False
    acknowledged = select(DeliveredAlert.id).where(
        _same_incident(first), DeliveredAlert.acknowledged_at.is_not(None)
    )
    if session.scalar(acknowledged.limit(1)) is None:
        return False
    news = select(Alert.id).where(
        Alert.id.in_([notification.about for notification in notifications]),
        Alert.state.in_(_ACTIVE),
        Alert.acknowledged_at.is_(None),
    )
    return session.scalar(news.limit(1)) is not None


def _is_acknowledged(pairs: Sequence[tuple[Alert, DeliveredAlert]]) -> bool:
    """Return whether all alerts are acknowledged, and the paging service does not know that."""
    has_all = all(alert.acknowledged_at and row.state is not None for alert, row in pairs)
    return has_all and any(row.acknowledged_at is None for _, row in pairs)


def _is_queued(session: Session, alert: Alert, row: DeliveredAlert) -> bool:
    queued = select(Notification.id).where(
        Notification.alert_id == alert.id,
        Notification.receiver_id == row.receiver_id,
        Notification.purpose == NotificationPurpose.ACKNOWLEDGEMENT,
        Notification.state.in_(_QUEUED),
        Notification.created_at >= alert.acknowledged_at,
    )
    return session.scalar(queued.limit(1)) is not None


def _acknowledgement(row: DeliveredAlert, *, now: datetime) -> Notification:
    return Notification(
        tenant_id=row.tenant_id,
        receiver_id=row.receiver_id,
        alert_id=row.alert_id,
        group_key=row.group_key,
        purpose=NotificationPurpose.ACKNOWLEDGEMENT,
        payload=row.payload | {"kind": ACKNOWLEDGEMENT},
        state=NotificationState.WAITING,
        next_try_at=now,
        created_at=now,
    )


def _same_incident(notification: Notification) -> ColumnElement[bool]:
    """Return the condition for the alerts of a notification's incident."""
    group_key = notification.group_key
    same_alerts = (
        DeliveredAlert.group_key == group_key
        if group_key
        else DeliveredAlert.alert_id == notification.payload["alert_id"]
    )
    return and_(DeliveredAlert.recipient == notification.recipient, same_alerts)
