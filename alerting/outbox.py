"""The outbox: sends the notifications that were stored with their transition, at least once.

Each one is claimed by a guarded update that postpones its next attempt (the lease), sent outside
any transaction, and then marked. A crash in between causes another attempt, never a loss.
Notifications of one group are sent as one message; see `alerting.holds` for those that are held.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, joinedload

from alerting.holds import NO_HOLDS, Holds, current_holds
from alerting.messages import render, render_group
from alerting.models import Notification, Receiver
from alerting.notify import DeliveryError, Sender
from alerting.silences import still_applies
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from core.guarded_update import changed_one
from core.zones import zone_of
from tenants.models import User
from tenants.users.time_zones import zone_name_of

logger = logging.getLogger(__name__)

BATCH = 50
# Of reports, which are large: alerts don't wait for many of them.
FILE_BATCH = 5
MAX_GROUP = 200
LEASE = timedelta(minutes=5)
FIRST_RETRY = timedelta(seconds=10)
LONGEST_RETRY = timedelta(hours=1)
RETRY_FOR = timedelta(hours=24)
_UNSENT = (NotificationState.WAITING, NotificationState.SILENCED)


def drain_outbox(
    sessions: SessionFactory,
    senders: Mapping[ReceiverKind, Sender],
    *,
    kinds: Collection[ReceiverKind] = tuple(ReceiverKind),
    now: datetime,
) -> int:
    """Send the due notifications to receivers of some kinds; return the number of delivered ones.

    After a failure its receiver is skipped until the next run, so that an unavailable server delays
    the others by one timeout only.
    """
    delivered = 0
    failed: set[str] = set()
    sent: set[str] = set()
    due, holds = _due(sessions, kinds, now=now)
    for notification_id in due:
        if notification_id in sent:
            continue
        notification = _claim(sessions, notification_id, failed, holds, now=now)
        if notification is None:
            continue
        group = [notification, *_claim_group(sessions, notification, holds, now=now)]
        sent.update(one.id for one in group)
        error = _send(senders, group, zone=_zone_of(sessions, notification))
        with transaction(sessions) as session:
            if error is None:
                delivered += len(group)
                _mark_sent(session, group, now=now)
            else:
                failed.add(notification.receiver_id or notification.address)
                _mark_failed(session, group, error, now=now)
    return delivered


def retry_delay(tries: int) -> timedelta:
    """Return the exponential backoff after an attempt, from 10 s up to an hour."""
    doublings = min(max(tries, 1) - 1, 16)  # a timedelta must not overflow
    return min(FIRST_RETRY * (1 << doublings), LONGEST_RETRY)


def _due(
    sessions: SessionFactory, kinds: Collection[ReceiverKind], *, now: datetime
) -> tuple[list[str], Holds]:
    # Without a receiver it is an email.
    kind = func.coalesce(Receiver.kind, ReceiverKind.EMAIL)
    statement = (
        select(Notification.id, Notification.tenant_id)
        .outerjoin(Receiver, Receiver.id == Notification.receiver_id)
        .where(Notification.state.in_(_UNSENT), Notification.next_try_at <= now, kind.in_(kinds))
        .order_by(Notification.next_try_at, Notification.id)
    )
    alerts = statement.where(Notification.file_id.is_(None)).limit(BATCH)
    files = statement.where(Notification.file_id.is_not(None)).limit(FILE_BATCH)
    with transaction(sessions) as session:
        due = [*session.execute(alerts), *session.execute(files)]
        if not due:
            return [], NO_HOLDS
        tenant_ids = {tenant_id for _, tenant_id in due if tenant_id is not None}
        return [ident for ident, _ in due], current_holds(session, tenant_ids, now=now)


def _claim(
    sessions: SessionFactory,
    notification_id: str,
    failed: set[str],
    holds: Holds,
    *,
    now: datetime,
) -> Notification | None:
    with transaction(sessions) as session:
        claim = (
            update(Notification)
            .where(
                Notification.id == notification_id,
                Notification.state.in_(_UNSENT),
                Notification.next_try_at <= now,
                func.coalesce(Notification.receiver_id, Notification.address).not_in(failed),
            )
            .values(next_try_at=now + LEASE, tries=Notification.tries + 1)
        )
        if not changed_one(session, claim):
            return None
        notification = session.get_one(
            Notification, notification_id, options=[joinedload(Notification.file)]
        )
        until = holds.until(notification, now=now)
        if until is not None:
            _hold(notification, until)
            return None
        if notification.state is NotificationState.SILENCED:
            if not still_applies(session, notification):
                notification.state = NotificationState.SUPPRESSED
                notification.tries = 0
                return None
            notification.state = NotificationState.WAITING
            notification.created_at = now  # its retries start now
        return notification


def _claim_group(
    sessions: SessionFactory,
    first: Notification,
    holds: Holds,
    *,
    now: datetime,
) -> list[Notification]:
    """Claim the other waiting notifications of a claimed one's group, due or not."""
    if not first.group_key:
        return []
    waiting = (
        select(Notification)
        .where(
            Notification.receiver_id == first.receiver_id,
            Notification.group_key == first.group_key,
            Notification.state == NotificationState.WAITING,
            Notification.id != first.id,
        )
        .order_by(Notification.id)
        .limit(MAX_GROUP)
    )
    claimed = []
    with transaction(sessions) as session:
        for one in session.scalars(waiting).all():
            until = holds.until(one, now=now)
            if until is not None:
                _hold(one, until)
                continue
            one.next_try_at, one.tries = now + LEASE, one.tries + 1
            claimed.append(one)
    return claimed


def _hold(notification: Notification, until: datetime) -> None:
    notification.state = NotificationState.SILENCED
    notification.next_try_at, notification.tries = until, 0


def _zone_of(sessions: SessionFactory, notification: Notification) -> tzinfo:
    """Return the time zone of the user who receives an email; UTC for other receivers."""
    destination = notification.destination
    if destination.kind is not ReceiverKind.EMAIL:
        return UTC
    with transaction(sessions) as session:
        user = session.scalar(select(User).where(User.email == destination.target.lower()))
        return zone_of(zone_name_of(user)) if user else UTC


def _send(
    senders: Mapping[ReceiverKind, Sender], group: Sequence[Notification], *, zone: tzinfo
) -> DeliveryError | None:
    """Return None after delivery, else the error."""
    notification = group[0]
    destination = notification.destination
    sender = senders.get(destination.kind)
    if sender is None:
        return DeliveryError(f"This server has no sender for {destination.kind.value}.")
    try:
        is_single = len(group) == 1
        message = render(notification, zone=zone) if is_single else render_group(group, zone=zone)
        sender.send(destination, message)
    except DeliveryError as error:
        return error
    except Exception as error:  # a bug must not stop the other notifications
        logger.exception("sending notification %s failed", notification.id)
        return DeliveryError(f"Internal error: {type(error).__name__}: {error}")
    return None


def _mark_sent(session: Session, group: Sequence[Notification], *, now: datetime) -> None:
    session.execute(
        update(Notification)
        .where(Notification.id.in_([one.id for one in group]))
        .values(state=NotificationState.SENT, sent_at=now, last_error="")
    )


def _mark_failed(
    session: Session, group: Sequence[Notification], error: DeliveryError, *, now: datetime
) -> None:
    """Postpone all notifications of the receiver; those past the retry period have failed."""
    notification = group[0]
    asked = min(timedelta(seconds=error.retry_after_seconds), LONGEST_RETRY)
    retry_at = now + max(retry_delay(notification.tries), asked)
    logger.warning(
        "notification %s to %s failed at attempt %d: %s",
        notification.id,
        notification.destination.name,
        notification.tries,
        error.message,
    )
    waiting = update(Notification).where(
        Notification.receiver_id == notification.receiver_id,
        Notification.address == notification.address,
        Notification.state == NotificationState.WAITING,
    )
    session.execute(
        waiting.where(Notification.id.in_([one.id for one in group])).values(
            next_try_at=retry_at, last_error=error.message
        )
    )
    session.execute(waiting.where(Notification.next_try_at <= now).values(next_try_at=retry_at))
    session.execute(
        waiting.where(Notification.created_at <= now - RETRY_FOR).values(
            state=NotificationState.FAILED, last_error=error.message
        )
    )
