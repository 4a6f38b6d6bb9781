"""Queues messages about alerts: each receiver is to be notified of the current state, once.

What a receiver was last notified of is a row of `delivered_alerts`, which the outbox writes. A
change replaces the messages about its alert that still wait; whoever was notified that an alert is
active is notified of every change until it has resolved, and nobody is notified that an alert has
resolved without having been notified of it before.

Source: docs/decisions/0023-notifications.md.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.orm import Session

from alerting.models import AlertTransition, Receiver, Rule
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.policies import Recipient, Routing
from alerting.states import AlertState, NotificationPurpose, NotificationState, Severity
from core.db import chunked

UNSENT = (NotificationState.WAITING, NotificationState.SILENCED)
# An alert that fired so often within an hour is flapping: its changes are sent less often.
FLAPPING_FIRINGS = 4
FLAPPING_SPAN = timedelta(hours=1)
FLAPPING_INTERVAL = timedelta(minutes=15)

ABOUT_STATES = (NotificationPurpose.CHANGE, NotificationPurpose.REPEAT)
_IS_WAITING = and_(Notification.state.in_(UNSENT), Notification.purpose.in_(ABOUT_STATES))

ByRecipient = dict[str, DeliveredAlert]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The state of an alert that its receivers are to be notified of.

    Attributes:
        alert_id: the alert.
        tags: of the alert.
        state: firing, resolved or no data.
        severity: of the alert.
        payload: of the message.
        is_new: whether the alert was added in this transaction: nobody was notified of it yet.
    """

    alert_id: str
    tags: dict[str, str]
    state: AlertState
    severity: Severity
    payload: dict[str, Any]
    is_new: bool = False


@dataclass(slots=True)
class DeliveryQueue:
    """Adds notifications about the alerts of one rule; the caller owns the transaction."""

    session: Session
    rule: Rule
    routing: Routing
    now: datetime
    count: int = 0
    _group_times: dict[tuple[str, str], datetime] = field(default_factory=dict)

    def add_changes(self, changes: Sequence[Change]) -> None:
        """Queue changes, instead of what waits about their alerts."""
        idents = [change.alert_id for change in changes if not change.is_new]
        delivered = delivered_alerts(self.session, idents)
        waiting = _waiting(self.session, idents)
        firings = recent_firings(self.session, idents, now=self.now)
        ended = {change.alert_id for change in changes if change.state is AlertState.RESOLVED}
        forget_without_resolved(self.session, [delivered.get(ident, {}) for ident in ended])
        for change in changes:
            count = firings.get(change.alert_id, 0)
            if count >= FLAPPING_FIRINGS:
                change.payload["firings_in_last_hour"] = count
            self._add_change(
                change, delivered.get(change.alert_id, {}), waiting.get(change.alert_id, {})
            )

    def add(
        self,
        change: Change,
        recipient: Recipient,
        *,
        replaces: Notification | None = None,
        purpose: NotificationPurpose = NotificationPurpose.CHANGE,
    ) -> None:
        """Queue one message, which is due when its group is, or the one that it replaces."""
        self.count += 1
        self.session.add(
            Notification(
                tenant_id=None if self.rule.platform_rule_id else self.rule.tenant_id,
                receiver_id=recipient.receiver_id,
                address=recipient.address,
                alert_id=change.alert_id,
                group_key=recipient.group_key,
                group_interval_seconds=recipient.route.group_interval_seconds,
                purpose=purpose,
                payload=change.payload,
                state=NotificationState.WAITING,
                tries=0 if replaces is None else replaces.tries,
                last_error="" if replaces is None else replaces.last_error,
                next_try_at=self._due_at(change, recipient, replaces),
                created_at=self.now,
            )
        )

    def _add_change(
        self, change: Change, delivered: ByRecipient, waiting: dict[str, Notification]
    ) -> None:
        # Silences of a message that is held may not match the one that takes its place.
        replaced = {
            key: notification
            for key, notification in waiting.items()
            if notification.state is NotificationState.WAITING
        }
        if waiting:
            self.session.execute(
                update(Notification)
                .where(Notification.alert_id == change.alert_id, _IS_WAITING)
                .values(state=NotificationState.SUPPRESSED)
            )
        has_ended = change.state is AlertState.RESOLVED
        if has_ended and not delivered:
            return
        recipients = self.routing.recipients(self.rule, change.tags, change.severity)
        if has_ended:
            recipients = {
                key: recipient for key, recipient in recipients.items() if key in delivered
            }
        for key, row in delivered.items():
            address = "" if row.receiver_id else row.recipient
            recipients.setdefault(key, Recipient(row.receiver_id, address))
        for key, recipient in recipients.items():
            before = delivered.get(key)
            # A message that is being sent waits until the end of its lease, others until they are
            # due or tried again: the new message takes their place.
            is_being_sent = before is not None and before.state is None
            self.add(
                change,
                recipient.staying(before),
                replaces=None if is_being_sent else replaced.get(key),
            )

    def _due_at(
        self, change: Change, recipient: Recipient, replaced: Notification | None
    ) -> datetime:
        due_at = self._group_at(recipient)
        if replaced is not None:
            due_at = max(self.now, replaced.next_try_at)
        if "firings_in_last_hour" in change.payload:
            sent_at: datetime | None = self.session.scalar(
                select(func.max(Notification.sent_at)).where(
                    Notification.alert_id == change.alert_id,
                    Notification.receiver_id == recipient.receiver_id,
                    Notification.address == recipient.address,
                )
            )
            due_at = max(due_at, sent_at + FLAPPING_INTERVAL) if sent_at else due_at
        return due_at

    def _group_at(self, recipient: Recipient) -> datetime:
        """Return when the next message of a group is due."""
        if not recipient.group_key:
            return self.now
        key = recipient.key, recipient.group_key
        if key not in self._group_times:
            self._group_times[key] = self._read_group_at(recipient)
        return self._group_times[key]

    def _read_group_at(self, recipient: Recipient) -> datetime:
        of_group = (
            Notification.receiver_id == recipient.receiver_id,
            Notification.group_key == recipient.group_key,
        )
        is_waiting = Notification.state == NotificationState.WAITING
        waiting: datetime | None = self.session.scalar(
            select(func.min(Notification.next_try_at)).where(*of_group, is_waiting)
        )
        if waiting is not None:
            return max(waiting, self.now)
        route = recipient.route
        starts_at = self.now + timedelta(seconds=route.group_wait_seconds)
        sent_at: datetime | None = self.session.scalar(
            select(func.max(Notification.sent_at)).where(*of_group)
        )
        if sent_at is None:
            return starts_at
        return max(starts_at, sent_at + timedelta(seconds=route.group_interval_seconds))


def delivered_alerts(session: Session, alert_ids: Collection[str]) -> dict[str, ByRecipient]:
    """Return what receivers were notified of alerts, by alert and recipient."""
    rows: dict[str, ByRecipient] = {}
    for part in chunked(list(alert_ids)):
        statement = select(DeliveredAlert).where(DeliveredAlert.alert_id.in_(part))
        for row in session.scalars(statement):
            rows.setdefault(row.alert_id, {})[row.recipient] = row
    return rows


def forget_without_resolved(session: Session, ended: Sequence[ByRecipient]) -> None:
    """Remove from ended alerts the receivers that are not notified that alerts have resolved.

    Nothing is stored of them, so that the next firing is news to them.
    """
    rows = [row for delivered in ended for row in delivered.values() if row.receiver_id]
    if not rows:
        return
    is_off = and_(
        Receiver.sends_resolved.is_(False), Receiver.id.in_({row.receiver_id for row in rows})
    )
    off = set(session.scalars(select(Receiver.id).where(is_off)))
    forgotten = [row.id for row in rows if row.receiver_id in off]
    for idents in chunked(forgotten):
        session.execute(delete(DeliveredAlert).where(DeliveredAlert.id.in_(idents)))
    for delivered in ended:
        for key in off & delivered.keys():
            del delivered[key]


def flapping_alerts(session: Session, alert_ids: Iterable[str], *, now: datetime) -> set[str]:
    """Return which alerts are flapping."""
    counts = recent_firings(session, alert_ids, now=now)
    return {ident for ident, count in counts.items() if count >= FLAPPING_FIRINGS}


def _waiting(session: Session, alert_ids: Iterable[str]) -> dict[str, dict[str, Notification]]:
    """Return the notifications about alerts that are not sent yet, by alert and recipient."""
    rows: dict[str, dict[str, Notification]] = {}
    for part in chunked(list(alert_ids)):
        statement = select(Notification).where(Notification.alert_id.in_(part), _IS_WAITING)
        for row in session.scalars(statement.order_by(Notification.id)):
            rows.setdefault(row.about, {})[row.recipient] = row
    return rows


def recent_firings(session: Session, alert_ids: Iterable[str], *, now: datetime) -> dict[str, int]:
    """Return how often alerts began to fire within the last hour."""
    counts: dict[str, int] = {}
    for part in chunked(list(alert_ids)):
        statement = (
            select(AlertTransition.alert_id, func.count())
            .where(
                AlertTransition.alert_id.in_(part),
                AlertTransition.to_state == AlertState.FIRING,
                AlertTransition.from_state != AlertState.FIRING,
                AlertTransition.at > now - FLAPPING_SPAN,
            )
            .group_by(AlertTransition.alert_id)
        )
        counts.update((ident, count) for ident, count in session.execute(statement))
    return counts
