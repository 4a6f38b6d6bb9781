"""Messages above the budget of a tenant, which wait until it begins anew.

They stay in the outbox with the reason. Then the state of that time is sent: changes replace what
waits, and claims drop what is not true any more.
"""

import logging
from datetime import datetime

from sqlalchemy import not_, update
from sqlalchemy.orm import Session

from alerting.notification.deliveries import UNSENT
from alerting.notification.models import Notification
from alerting.states import NotificationPurpose
from core.db import SessionFactory, transaction
from tenants.lifecycle.message_budgets import (
    ALERTS,
    MESSAGES,
    MessageBudgets,
    count_message,
    full_until,
)

logger = logging.getLogger(__name__)

UNLIMITED = MessageBudgets()


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
