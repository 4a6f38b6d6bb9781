"""Which rules are due, and the ends of the windows that they are evaluated for.

Rules with the same name are due at the same moment of their interval, and other rules at other
moments. Tenants have many rules in common: evaluating all of them at once would delay writes.

Windows that nobody has read, as after an outage, are evaluated later, with their own times.
"""

import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta

from sqlalchemy import select

from alerting.models import Rule
from core.db import SessionFactory, chunked, transaction
from tenants.models import Tenant, TenantState

_EARLY_SHARE = 0.05
# A rule is due so soon after an evaluation at the earliest.
_LEAST_SHARE = 0.1
_LATE_SHARE = 0.1
# So many windows that were not read are evaluated later: the two oldest, and the newest.
_MAX_MISSED_WINDOWS = 20


def due_rules(sessions: SessionFactory, *, now: datetime) -> dict[str, list[Rule]]:
    """Return the enabled rules of active tenants whose interval has passed, by tenant."""
    statement = (
        select(Rule.id, Rule.name, Rule.interval_seconds, Rule.evaluated_at)
        .join(Tenant, Tenant.id == Rule.tenant_id)
        .where(Rule.is_enabled, Tenant.state == TenantState.ACTIVE)
        .order_by(Rule.id)
    )
    due_by_tenant: dict[str, list[Rule]] = {}
    with transaction(sessions) as session:
        # Most rules of hundreds of tenants are not due, and a whole one takes ten times as long.
        due = [
            key
            for key, name, interval, last_at in session.execute(statement)
            if is_due(name, interval, last_at, now)
        ]
        for ids in chunked(due):
            for rule in session.scalars(select(Rule).where(Rule.id.in_(ids)).order_by(Rule.id)):
                due_by_tenant.setdefault(rule.tenant_id, []).append(rule)
    return due_by_tenant


def is_due(name: str, interval_seconds: float, last_at: datetime | None, now: datetime) -> bool:
    """Return whether a rule's interval has passed, or the moment of its interval has come.

    A tick that comes a little early counts.
    """
    if last_at is None or not interval_seconds:
        return True
    passed = (now - last_at).total_seconds()
    if passed < interval_seconds * _LEAST_SHARE:
        return passed <= -interval_seconds
    if passed >= interval_seconds * (1 - _EARLY_SHARE):
        return True
    shift = zlib.crc32(name.encode()) % interval_seconds
    before, after = ((at.timestamp() + shift) // interval_seconds for at in (last_at, now))
    return before != after


def window_ends(rule: Rule, *, now: datetime) -> Iterator[datetime]:
    """Yield the ends of windows that no evaluation has read, as after an outage, and now."""
    window_seconds = max(rule.window_seconds, rule.interval_seconds)
    if rule.evaluated_at is not None:
        passed = (now - rule.evaluated_at).total_seconds()
        if passed > max(rule.window_seconds, rule.interval_seconds * (1 + _LATE_SHARE)):
            missed = int(passed / window_seconds)
            for number in range(missed, 0, -1):
                # While the portal was down, samples arrived only before and after.
                if number > missed - 2 or number <= _MAX_MISSED_WINDOWS - 2:
                    yield now - timedelta(seconds=number * window_seconds)
    yield now
