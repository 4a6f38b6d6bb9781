"""Budgets of outgoing messages: how many a user and a tenant may send within an hour.

A user's budget is of messages that the user causes: tests of receivers, invitations, messages sent
again, reports emailed at once. A tenant's is of all messages but those about alerts, which have a
reserve of their own, so that nothing else delays them. Each is a row with the start of its hour.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db import changed_one
from core.errors import OverloadedError
from core.settings import ServerSettings
from tenants.models import MessageCount
from tenants.scope import Scope

PERIOD = timedelta(hours=1)
# Subjects of a tenant's counts beside its users' IDs.
MESSAGES, ALERTS = "messages", "alerts"


@dataclass(frozen=True, slots=True)
class MessageBudgets:
    """Messages within an hour; 0 is without limit."""

    of_user: int = 0
    of_tenant: int = 0
    of_alerts: int = 0

    @classmethod
    def of(cls, settings: ServerSettings) -> "MessageBudgets":
        """Return the budgets in the settings."""
        return cls(
            settings.max_messages_per_user_per_hour,
            settings.max_messages_per_tenant_per_hour,
            settings.max_alert_messages_per_tenant_per_hour,
        )

    def limit(self, subject: str) -> int:
        """Return the budget of a subject."""
        return {MESSAGES: self.of_tenant, ALERTS: self.of_alerts}.get(subject, self.of_user)


def charge_user(session: Session, scope: Scope, budgets: MessageBudgets, *, now: datetime) -> None:
    """Count a message that a user of a tenant causes; the outbox counts the tenant's when it sends.

    Raises:
        OverloadedError: a budget is used up; the message names it.
    """
    if scope.tenant_id is None:
        return
    ends_at = full_until(session, scope.tenant_id, MESSAGES, budgets, now=now)
    if ends_at is not None:
        raise _used_up("Your tenant", budgets.of_tenant, ends_at, now=now)
    ends_at = count_message(session, scope.tenant_id, scope.user_id, budgets, now=now)
    if ends_at is not None:
        raise _used_up("You", budgets.of_user, ends_at, now=now)


def full_until(
    session: Session, tenant_id: str, subject: str, budgets: MessageBudgets, *, now: datetime
) -> datetime | None:
    """Return when a budget that is used up begins anew; None if it is not used up."""
    limit = budgets.limit(subject)
    row = session.get(MessageCount, (tenant_id, subject)) if limit else None
    if row is None or row.count < limit or row.started_at <= now - PERIOD:
        return None
    return row.started_at + PERIOD


def count_message(
    session: Session, tenant_id: str, subject: str, budgets: MessageBudgets, *, now: datetime
) -> datetime | None:
    """Count a message; return when the next may be sent if the budget is used up, else None."""
    limit, is_own = budgets.limit(subject), (MessageCount.tenant_id == tenant_id)
    row = update(MessageCount).where(is_own, MessageCount.subject == subject)
    within = row.where(MessageCount.started_at > now - PERIOD)
    if limit:
        within = within.where(MessageCount.count < limit)
    restart = row.where(MessageCount.started_at <= now - PERIOD)
    if changed_one(session, within.values(count=MessageCount.count + 1)):
        return None
    if changed_one(session, restart.values(started_at=now, count=1)):
        return None
    started_at = session.scalar(
        select(MessageCount.started_at).where(is_own, MessageCount.subject == subject)
    )
    if started_at is not None:
        return started_at + PERIOD
    values = {"tenant_id": tenant_id, "subject": subject, "started_at": now, "count": 1}
    try:
        with session.begin_nested():
            session.execute(insert(MessageCount).values(values))
    except IntegrityError:  # another process was first
        return count_message(session, tenant_id, subject, budgets, now=now)
    return None


def sent_messages(session: Session, *, now: datetime) -> dict[tuple[str, str], int]:
    """Return the messages within the current hours, by tenant and subject."""
    rows = session.execute(
        select(MessageCount.tenant_id, MessageCount.subject, MessageCount.count).where(
            MessageCount.started_at > now - PERIOD
        )
    )
    return {(tenant_id, subject): count for tenant_id, subject, count in rows}


def _used_up(whose: str, limit: int, ends_at: datetime, *, now: datetime) -> OverloadedError:
    seconds = max(1, ceil((ends_at - now).total_seconds()))
    has = "have" if whose == "You" else "has"
    return OverloadedError(
        f"{whose} {has} sent {limit} messages within an hour, which is the limit. "
        f"Try again in {ceil(seconds / 60)} min.",
        retry_after_seconds=seconds,
    )
