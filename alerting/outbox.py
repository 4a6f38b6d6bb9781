"""The outbox: messages are written with their transition and sent from here, at least once.

Each message is claimed by a guarded update that puts its next try off for a while (the lease),
sent outside any transaction, then marked. A crash in between means one more try, never a loss.
"""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from alerting.messages import render
from alerting.models import Notification
from alerting.notify import DeliveryError, Sender
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction

logger = logging.getLogger(__name__)

BATCH = 50
LEASE = timedelta(minutes=5)
FIRST_RETRY = timedelta(seconds=10)
LONGEST_RETRY = timedelta(hours=1)
GIVE_UP_AFTER = timedelta(hours=24)


def drain_outbox(
    sessions: SessionFactory, senders: Mapping[ReceiverKind, Sender], *, now: datetime
) -> int:
    """Send the messages that are due; return how many were delivered.

    A receiver that fails is not tried again in the same round, so that one dead server delays the
    others by one timeout at most.
    """
    delivered = 0
    failed: set[str] = set()
    for notification_id in _due(sessions, now=now):
        notification = _claim(sessions, notification_id, failed, now=now)
        if notification is None:
            continue
        error = _send(senders, notification)
        with transaction(sessions) as session:
            if error is None:
                delivered += 1
                _mark_sent(session, notification, now=now)
            else:
                failed.add(notification.receiver_id or notification.address)
                _mark_failed(session, notification, error, now=now)
    return delivered


def retry_delay(tries: int) -> timedelta:
    """Return how long to wait after this many tries: doubling from 10 s up to an hour."""
    doublings = min(max(tries, 1) - 1, 16)  # beyond that a timedelta would overflow some day
    return min(FIRST_RETRY * (1 << doublings), LONGEST_RETRY)


def _due(sessions: SessionFactory, *, now: datetime) -> list[str]:
    statement = (
        select(Notification.id)
        .where(Notification.state == NotificationState.WAITING, Notification.next_try_at <= now)
        .order_by(Notification.next_try_at, Notification.id)
        .limit(BATCH)
    )
    with transaction(sessions) as session:
        return list(session.scalars(statement))


def _claim(
    sessions: SessionFactory, notification_id: str, failed: set[str], *, now: datetime
) -> Notification | None:
    with transaction(sessions) as session:
        claimed = session.execute(
            update(Notification)
            .where(
                Notification.id == notification_id,
                Notification.state == NotificationState.WAITING,
                Notification.next_try_at <= now,
                func.coalesce(Notification.receiver_id, Notification.address).not_in(failed),
            )
            .values(next_try_at=now + LEASE, tries=Notification.tries + 1)
        )
        if not claimed.rowcount:  # type: ignore[attr-defined] # an UPDATE gives a CursorResult
            return None
        return session.get_one(Notification, notification_id)


def _send(senders: Mapping[ReceiverKind, Sender], notification: Notification) -> str | None:
    """Return None when it is delivered, else why not."""
    destination = notification.destination
    sender = senders.get(destination.kind)
    if sender is None:
        return f"This server sends no messages by {destination.kind.value}."
    try:
        sender.send(destination, render(notification))
    except DeliveryError as error:
        return error.message
    except Exception as error:  # a fault of ours must not stop the other messages
        logger.exception("message %s could not be sent", notification.id)
        return f"Internal error: {type(error).__name__}: {error}"
    return None


def _mark_sent(session: Session, notification: Notification, *, now: datetime) -> None:
    session.execute(
        update(Notification)
        .where(Notification.id == notification.id)
        .values(state=NotificationState.SENT, sent_at=now, last_error="")
    )


def _mark_failed(
    session: Session, notification: Notification, error: str, *, now: datetime
) -> None:
    """Put the message off, and with it all that wait for the same receiver; give up old ones."""
    retry_at = now + retry_delay(notification.tries)
    logger.warning(
        "message %s to %s was not delivered at try %d: %s",
        notification.id, notification.destination.name, notification.tries, error,
    )  # fmt: skip
    waiting = update(Notification).where(
        Notification.receiver_id == notification.receiver_id,
        Notification.address == notification.address,
        Notification.state == NotificationState.WAITING,
    )
    session.execute(
        waiting.where(Notification.id == notification.id).values(
            next_try_at=retry_at, last_error=error
        )
    )
    session.execute(waiting.where(Notification.next_try_at <= now).values(next_try_at=retry_at))
    session.execute(
        waiting.where(Notification.created_at <= now - GIVE_UP_AFTER).values(
            state=NotificationState.FAILED, last_error=error
        )
    )
