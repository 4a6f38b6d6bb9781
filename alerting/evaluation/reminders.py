"""Messages about alerts besides those of their transitions.

- Corrections: whoever is to be notified of an alert and was notified of another state, or of none,
  such as a receiver that was added while the alert fires.
- Repeats: a firing alert is sent again after its route's repeat interval.
- Escalations: to `escalate_to`, once, after `escalate_after`.

The last two stop when the alert is acknowledged, of which paging services are notified.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.evaluation.recorder import Recorder, view_of
from alerting.models import Alert
from alerting.notification.acknowledgements import add_acknowledgements
from alerting.notification.deliveries import (
    UNSENT,
    ByRecipient,
    delivered_alerts,
    forget_without_resolved,
)
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.policies import Recipient
from alerting.notification.routes import Route
from alerting.states import AlertState, NotificationPurpose, NotificationState
from core.db import SessionFactory, chunked, transaction

_ACTIVE = (AlertState.FIRING, AlertState.NO_DATA)
_PENDING = (*UNSENT, NotificationState.FAILED)
Pair = tuple[str, str]
"""An alert and the key of a recipient."""


@dataclass(frozen=True, slots=True)
class _Reminder:
    """A message to queue."""

    recipient: Recipient
    purpose: NotificationPurpose


def send_reminders(sessions: SessionFactory, *, now: datetime, public_url: str = "") -> int:
    """Queue the messages that are due; return how many."""
    active = select(Alert.tenant_id).where(Alert.state.in_(_ACTIVE))
    delivered = select(Alert.tenant_id).join(DeliveredAlert, DeliveredAlert.alert_id == Alert.id)
    with transaction(sessions) as session:
        tenants = sorted({*session.scalars(active.distinct()), *session.scalars(delivered)})
    queued = 0
    for tenant_id in tenants:
        with transaction(sessions) as session:
            queued += _remind(session, tenant_id, now=now, public_url=public_url)
    return queued


def _remind(session: Session, tenant_id: str, *, now: datetime, public_url: str) -> int:
    of_tenant = select(Alert).where(Alert.tenant_id == tenant_id).order_by(Alert.id)
    is_delivered = Alert.id.in_(select(DeliveredAlert.alert_id))
    alerts = session.scalars(of_tenant.where(Alert.state.in_(_ACTIVE) | is_delivered)).all()
    delivered = delivered_alerts(session, [alert.id for alert in alerts])
    pending = _pending(session, alerts)
    recorders: dict[str, Recorder] = {}
    for alert in alerts:
        recorder = recorders.setdefault(
            alert.rule_id, Recorder(session, alert.rule, now, public_url)
        )
        rows = delivered.get(alert.id, {})
        is_active = alert.state in _ACTIVE
        if not is_active:
            forget_without_resolved(session, [rows])
        for reminder in _due(recorder, alert, rows) if is_active else _ended(rows):
            if (alert.id, reminder.recipient.key) not in pending:
                state = alert.state if is_active else AlertState.RESOLVED
                change = recorder.change_of(alert, view_of(alert), state)
                recipient = reminder.recipient.staying(rows.get(reminder.recipient.key))
                recorder.queue.add(change, recipient, purpose=reminder.purpose)
    queued = add_acknowledgements(session, alerts, delivered, now=now)
    return queued + sum(recorder.notifications for recorder in recorders.values())


def _due(recorder: Recorder, alert: Alert, delivered: ByRecipient) -> Iterator[_Reminder]:
    """Yield what is due of an active alert."""
    routing, now = recorder.queue.routing, recorder.now
    routed = routing.recipients(alert.rule, alert.tags, alert.severity)
    for key, recipient in (_as_recipients(delivered) | routed).items():
        row = delivered.get(key)
        if row is None or (row.state, row.severity) != (alert.state, alert.severity):
            yield _Reminder(recipient, NotificationPurpose.CHANGE)
        elif _is_repeat_due(alert, row, recipient.route, now=now):
            yield _Reminder(recipient, NotificationPurpose.REPEAT)
    if alert.state is AlertState.FIRING and alert.acknowledged_at is None:
        for recipient in _escalations(recorder, alert):
            if recipient.key not in delivered and recipient.key not in routed:
                yield _Reminder(recipient, NotificationPurpose.CHANGE)


def _ended(delivered: ByRecipient) -> Iterator[_Reminder]:
    """Yield a message to each receiver that was not notified that an alert has resolved."""
    for recipient in _as_recipients(delivered).values():
        yield _Reminder(recipient, NotificationPurpose.CHANGE)


def _as_recipients(delivered: ByRecipient) -> dict[str, Recipient]:
    return {
        key: Recipient(row.receiver_id, "" if row.receiver_id else row.recipient)
        for key, row in delivered.items()
    }


def _is_repeat_due(alert: Alert, row: DeliveredAlert, route: Route, *, now: datetime) -> bool:
    return (
        route.repeat_seconds > 0
        and alert.state is AlertState.FIRING
        and alert.acknowledged_at is None
        and row.delivered_at is not None
        and now - row.delivered_at >= timedelta(seconds=route.repeat_seconds)
    )


def _escalations(recorder: Recorder, alert: Alert) -> Iterator[Recipient]:
    routing = recorder.queue.routing
    if alert.rule.platform_rule_id is not None or alert.fired_at is None:
        return
    labels = routing.alert_labels(alert.rule, alert.tags, alert.severity)
    for route in routing.policy.matching(labels):
        after = timedelta(seconds=route.escalate_after_seconds)
        if route.escalate_to and recorder.now - alert.fired_at >= after:
            for name in route.escalate_to:
                if name in routing.receivers:
                    yield Recipient(routing.receivers[name])


def _pending(session: Session, alerts: Sequence[Alert]) -> set[Pair]:
    """Return the pairs that have a message which waits, or that was given up as it would be."""
    by_id = {alert.id: alert for alert in alerts}
    pairs = set()
    for idents in chunked(list(by_id)):
        statement = select(Notification).where(
            Notification.alert_id.in_(idents), Notification.state.in_(_PENDING)
        )
        for row in session.scalars(statement):
            is_given_up = row.state is NotificationState.FAILED
            if row.about and not (is_given_up and _is_outdated(row, by_id[row.about])):
                pairs.add((row.about, row.recipient))
    return pairs


def _is_outdated(row: Notification, alert: Alert) -> bool:
    """Return whether a message is about an earlier state of its alert."""
    if alert.fired_at is not None and row.created_at < alert.fired_at:
        return True
    if alert.state not in _ACTIVE:
        return bool(row.payload["state"] != AlertState.RESOLVED)
    return (alert.state, alert.severity) != (row.payload["state"], row.payload["severity"])
