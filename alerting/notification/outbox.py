"""The outbox: sends the notifications that were stored with their transition, at least once.

Each one is claimed by a guarded update that postpones its next attempt (the lease), sent outside
any transaction, and then marked. A crash in between causes another attempt, never a loss.

The notifications of one recipient are sent in order; `outbox_workers` serves many
recipients at once. A claim drops what its recipient was notified of already, or what is not true
any more, so that only current states are sent. Notifications of one group are sent as one message;
see `holds` for those that are held.

Messages above the budget of a tenant stay in the outbox with the reason, until it begins anew. Then
the state of that time is sent.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from sqlalchemy import ColumnElement, and_, case, func, not_, or_, select, update
from sqlalchemy.orm import Session, joinedload

from alerting.models import Receiver
from alerting.notification.acknowledgements import must_reopen, note_acknowledged
from alerting.notification.claims import Claim, confirm, drop, is_current, refute, start
from alerting.notification.deliveries import ABOUT_STATES, UNSENT
from alerting.notification.holds import Holds, current_holds
from alerting.notification.messages import MAX_LISTED, render, render_group
from alerting.notification.models import DeliveredAlert, Notification
from alerting.notification.senders.notify import DeliveryError, Sender
from alerting.states import NotificationPurpose, NotificationState, ReceiverKind
from core.clock import Clock
from core.db import SessionFactory, changed_one, transaction
from core.zones import zone_of
from tenants.lifecycle.message_budgets import (
    ALERTS,
    MESSAGES,
    MessageBudgets,
    count_message,
    full_until,
)
from tenants.models import User
from tenants.users.time_zones import zone_name_of

logger = logging.getLogger(__name__)

BATCH = 50
# Of reports, which are large: alerts don't wait for many of them.
FILE_BATCH = 5
# The rest of a larger group follows after the group's interval.
MAX_GROUP = 1_000
LEASE = timedelta(minutes=5)
FIRST_RETRY = timedelta(seconds=10)
LONGEST_RETRY = timedelta(hours=1)
RETRY_FOR = timedelta(hours=24)
UNLIMITED = MessageBudgets()
_KEY = func.coalesce(Notification.receiver_id, Notification.address)


@dataclass(frozen=True, slots=True)
class DueRecipient:
    """A receiver or an address that has due notifications; `tenant_id` is None for the platform."""

    key: str
    tenant_id: str | None


def due_recipients(
    sessions: SessionFactory,
    *,
    kinds: Collection[ReceiverKind] = tuple(ReceiverKind),
    now: datetime,
) -> list[DueRecipient]:
    """Return the recipients with due notifications, those that have waited longest first.

    A recipient that failed is left out until its next attempt, also for new notifications.
    """
    # Without a receiver it is an email.
    kind = func.coalesce(Receiver.kind, ReceiverKind.EMAIL)
    is_failing = and_(
        Notification.last_error != "", Notification.tries > 0, Notification.next_try_at > now
    )
    is_due = Notification.next_try_at <= now
    statement = (
        select(_KEY, Notification.tenant_id)
        .outerjoin(Receiver, Receiver.id == Notification.receiver_id)
        .where(Notification.state.in_(UNSENT), kind.in_(kinds), or_(is_due, is_failing))
        .group_by(_KEY, Notification.tenant_id)
        .having(func.sum(case((is_failing, 1), else_=0)) == 0)
        .order_by(func.min(Notification.next_try_at))
    )
    with transaction(sessions) as session:
        return [DueRecipient(key, tenant_id) for key, tenant_id in session.execute(statement)]


def drain_recipient(
    sessions: SessionFactory,
    senders: Mapping[ReceiverKind, Sender],
    recipient: DueRecipient,
    *,
    clock: Clock,
    may_send: Callable[[], bool] = lambda: True,
    budgets: MessageBudgets = UNLIMITED,
) -> int:
    """Send the due notifications of one recipient until one fails; return how many it got."""
    delivered = 0
    done: set[str] = set()
    due, holds = _due(sessions, recipient, now=clock())
    for notification_id in due:
        if notification_id in done:
            continue
        if not may_send():
            break
        if hold_over_budget(sessions, notification_id, budgets, now=clock()):
            continue
        group = _claim_group(sessions, notification_id, holds, now=clock())
        if not group:
            continue
        done.update(claim.notification.id for claim in group)
        rest = _rest_of_group(sessions, group)
        zone = _zone_of(sessions, group[0].notification)
        with transaction(sessions) as session:
            reopens = must_reopen(session, [claim.notification for claim in group])
        error = _send(senders, group, rest, zone=zone, reopens=reopens)
        with transaction(sessions) as session:
            if error is not None and error.is_final:
                _give_up(session, group, error)
                continue
            if error is not None:
                _mark_failed(session, group, error, now=clock())
                break
            delivered += len(group)
            count_sent(session, group[0].notification, now=clock())
            _mark_sent(session, group, rest, now=clock())
            if reopens:
                note_acknowledged(session, group[0].notification, at=None)
    return delivered


def retry_delay(tries: int) -> timedelta:
    """Return the exponential backoff after an attempt, from 10 s up to an hour."""
    doublings = min(max(tries, 1) - 1, 16)  # a timedelta must not overflow
    return min(FIRST_RETRY * (1 << doublings), LONGEST_RETRY)


def _of(recipient: DueRecipient) -> ColumnElement[bool]:
    is_tenant = Notification.tenant_id == recipient.tenant_id
    return and_(
        or_(Notification.receiver_id == recipient.key, Notification.address == recipient.key),
        Notification.tenant_id.is_(None) if recipient.tenant_id is None else is_tenant,
    )


def _due(
    sessions: SessionFactory, recipient: DueRecipient, *, now: datetime
) -> tuple[list[str], Holds]:
    statement = (
        select(Notification.id)
        .where(_of(recipient), Notification.state.in_(UNSENT), Notification.next_try_at <= now)
        .order_by(Notification.next_try_at, Notification.id)
    )
    alerts = statement.where(Notification.file_id.is_(None)).limit(BATCH)
    files = statement.where(Notification.file_id.is_not(None)).limit(FILE_BATCH)
    tenants = [] if recipient.tenant_id is None else [recipient.tenant_id]
    with transaction(sessions) as session:
        due = [*session.scalars(alerts), *session.scalars(files)]
        return due, current_holds(session, tenants, now=now)


def _claim_group(
    sessions: SessionFactory, notification_id: str, holds: Holds, *, now: datetime
) -> list[Claim]:
    """Claim a due notification and the others of its group, due or not; return those to send."""
    with transaction(sessions) as session:
        claim = (
            update(Notification)
            .where(
                Notification.id == notification_id,
                Notification.state.in_(UNSENT),
                Notification.next_try_at <= now,
            )
            .values(next_try_at=now + LEASE, tries=Notification.tries + 1)
        )
        if not changed_one(session, claim):
            return []
        notification = session.get_one(
            Notification, notification_id, options=[joinedload(Notification.file)]
        )
        first = _claimed(session, notification, holds, now=now)
        if first is None or not notification.group_key or not notification.about:
            return [] if first is None else [first]
        claims = [first]
        for other in _others_of_group(session, notification, now=now):
            other.next_try_at, other.tries = now + LEASE, other.tries + 1
            claimed = _claimed(session, other, holds, now=now)
            if claimed is not None:
                claims.append(claimed)
        return claims


def _claimed(
    session: Session, notification: Notification, holds: Holds, *, now: datetime
) -> Claim | None:
    """Return a leased notification as a claim, unless it is held or does not apply any more."""
    until = holds.until(notification, now=now)
    if until is not None:
        notification.state = NotificationState.SILENCED
        notification.next_try_at, notification.tries = until, 0
        return None
    if not is_current(session, notification):
        drop(session, notification)
        return None
    if notification.state is NotificationState.SILENCED:
        notification.state = NotificationState.WAITING
        notification.created_at = now  # its retries start now
    return start(session, notification)


def _others_of_group(
    session: Session, first: Notification, *, now: datetime
) -> Sequence[Notification]:
    """Return the other notifications of a group to send, and postpone those that are too many.

    Those whose silence has ended are sent with them.
    """
    is_waiting = Notification.state == NotificationState.WAITING
    of_group = and_(
        Notification.receiver_id == first.receiver_id,
        Notification.group_key == first.group_key,
        Notification.purpose.in_(ABOUT_STATES),
    )
    is_free = and_(
        Notification.state == NotificationState.SILENCED, Notification.next_try_at <= now
    )
    others = (
        select(Notification)
        .where(of_group, or_(is_waiting, is_free), Notification.id != first.id)
        .order_by(Notification.id)
        .limit(MAX_GROUP)
    )
    rows = session.scalars(others).all()
    if len(rows) == MAX_GROUP:
        next_at = now + timedelta(seconds=first.group_interval_seconds)
        session.execute(
            update(Notification)
            .where(of_group, is_waiting, Notification.id > rows[-1].id)
            .values(next_try_at=next_at)
        )
        rows = rows[:-1] if rows[-1].id > first.id else rows
    return rows


def _rest_of_group(sessions: SessionFactory, group: Sequence[Claim]) -> list[DeliveredAlert]:
    """Return the alerts of a group that go on as its receiver was notified of them."""
    first = group[0].notification
    if not first.group_key or not first.about:
        return []
    changed = {claim.notification.about for claim in group}
    statement = (
        select(DeliveredAlert)
        .where(
            DeliveredAlert.recipient == first.recipient,
            DeliveredAlert.group_key == first.group_key,
            DeliveredAlert.state.is_not(None),
        )
        .order_by(DeliveredAlert.id)
        .limit(MAX_LISTED)
    )
    with transaction(sessions) as session:
        return [row for row in session.scalars(statement) if row.alert_id not in changed]


def _zone_of(sessions: SessionFactory, notification: Notification) -> tzinfo:
    """Return the time zone of the user who receives an email; UTC for other receivers."""
    destination = notification.destination
    if destination.kind is not ReceiverKind.EMAIL:
        return UTC
    with transaction(sessions) as session:
        user = session.scalar(select(User).where(User.email == destination.target.lower()))
        return zone_of(zone_name_of(user)) if user else UTC


def _send(
    senders: Mapping[ReceiverKind, Sender],
    group: Sequence[Claim],
    rest: Sequence[DeliveredAlert],
    *,
    zone: tzinfo,
    reopens: bool,
) -> DeliveryError | None:
    """Return None after delivery, else the error."""
    notifications = [claim.notification for claim in group]
    notification = notifications[0]
    destination = notification.destination
    sender = senders.get(destination.kind)
    if sender is None:
        return DeliveryError(f"This server has no sender for {destination.kind.value}.")
    is_single = len(notifications) == 1 and not rest
    try:
        message = (
            render(notification, zone=zone)
            if is_single
            else render_group(notifications, [row.payload for row in rest], zone=zone)
        )
        sender.send(destination, replace(message, reopens=reopens))
    except DeliveryError as error:
        return error
    except Exception as error:  # a bug must not stop the other notifications
        logger.exception("sending notification %s failed", notification.id)
        return DeliveryError(f"Internal error: {type(error).__name__}: {error}")
    return None


def _mark_sent(
    session: Session, group: Sequence[Claim], rest: Sequence[DeliveredAlert], *, now: datetime
) -> None:
    session.execute(
        update(Notification)
        .where(Notification.id.in_([claim.notification.id for claim in group]))
        .values(state=NotificationState.SENT, sent_at=now, last_error="")
    )
    confirm(session, group, now=now)
    if rest:
        session.execute(
            update(DeliveredAlert)
            .where(DeliveredAlert.id.in_([row.id for row in rest]))
            .values(delivered_at=now)
        )


def _give_up(session: Session, group: Sequence[Claim], error: DeliveryError) -> None:
    """Note that the recipient refuses these notifications; others are still sent."""
    logger.warning("notifications were refused: %s", error.message)
    session.execute(
        update(Notification)
        .where(Notification.id.in_([claim.notification.id for claim in group]))
        .values(state=NotificationState.FAILED, last_error=error.message)
    )
    refute(session, group)


def _mark_failed(
    session: Session, group: Sequence[Claim], error: DeliveryError, *, now: datetime
) -> None:
    """Postpone all notifications of the recipient; those past the retry period have failed."""
    notification = group[0].notification
    asked = min(timedelta(seconds=error.retry_after_seconds), LONGEST_RETRY)
    retry_at = now + max(retry_delay(notification.tries), asked)
    logger.warning(
        "notification %s to %s failed at attempt %d: %s",
        notification.id,
        notification.destination.name,
        notification.tries,
        error.message,
    )
    recipient = DueRecipient(notification.recipient, notification.tenant_id)
    waiting = update(Notification).where(
        _of(recipient), Notification.state == NotificationState.WAITING
    )
    session.execute(
        waiting.where(Notification.id.in_([claim.notification.id for claim in group])).values(
            next_try_at=retry_at, last_error=error.message
        )
    )
    session.execute(
        waiting.where(Notification.next_try_at <= now).values(
            next_try_at=retry_at, last_error=error.message
        )
    )
    session.execute(
        waiting.where(Notification.created_at <= now - RETRY_FOR).values(
            state=NotificationState.FAILED, last_error=error.message
        )
    )
    if not error.may_have_arrived:
        refute(session, group)


def hold_over_budget(
    sessions: SessionFactory, notification_id: str, budgets: MessageBudgets, *, now: datetime
) -> bool:
    """Return whether a budget is used up; then all due messages of its kind wait for the next."""
    with transaction(sessions) as session:
        notification = session.get(Notification, notification_id)
        if notification is None or notification.tenant_id is None or _is_event(notification):
            return False
        subject, tenant_id = _subject(notification), notification.tenant_id
        ends_at = full_until(session, tenant_id, subject, budgets, now=now)
        if ends_at is None:
            return False
        has_alert = Notification.alert_id.is_not(None)
        session.execute(
            update(Notification)
            .where(
                Notification.tenant_id == tenant_id,
                Notification.purpose != NotificationPurpose.EVENT,
                Notification.state.in_(UNSENT),
                Notification.next_try_at <= now,
                has_alert if subject == ALERTS else not_(has_alert),
            )
            .values(
                next_try_at=ends_at,
                tries=0,
                last_error=f"The limit of {budgets.limit(subject)} messages within an hour is "
                "reached. It is sent when the next hour begins.",
            )
        )
    logger.warning("tenant %s has sent all its %s of this hour", tenant_id, subject)
    return True


def count_sent(session: Session, notification: Notification, *, now: datetime) -> None:
    """Count a message that was sent, whatever is left of the budget."""
    if notification.tenant_id is not None and not _is_event(notification):
        count_message(session, notification.tenant_id, _subject(notification), UNLIMITED, now=now)


def _is_event(notification: Notification) -> bool:
    """Return whether a message is for a program of the tenant, which sends it to nobody."""
    return notification.purpose is NotificationPurpose.EVENT


def _subject(notification: Notification) -> str:
    return MESSAGES if notification.alert_id is None else ALERTS
