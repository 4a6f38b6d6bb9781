"""Quotas that fill up by themselves: who gets near the end of one is told once, in good time.

Storage and series grow with what agents send, and nobody is asked at the moment. Their use is
compared with the quota now and then. A *level* is a share of the quota that is worth a word; it is
crossed once, and again only after the use has fallen clearly below it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.customers.quotas import UNLIMITED, all_limits
from tenants.customers.series import series_counts
from tenants.customers.usage import latest_usage
from tenants.models import FillingQuota, QuotaWarning, Tenant, TenantState

LEVELS_PERCENT = (80, 95)
# So far below a level the use has to fall before the level can be crossed again.
CLEARLY_BELOW_PERCENT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """That a tenant's use of a quota reached a level."""

    tenant_id: str
    quota: FillingQuota
    level_percent: int
    used: int
    most: int


def note_crossings(
    session: Session, *, default_max_series: int | None, now: datetime
) -> list[Crossing]:
    """Return the levels that were crossed since the last call, the highest of each quota.

    Args:
        session: the database session.
        default_max_series: how many series a tenant without a quota of its own may have.
        now: the present instant.
    """
    told = {(row.tenant_id, row.quota): row for row in session.scalars(select(QuotaWarning))}
    crossings = []
    for tenant_id, quota, used, most in _uses(session, default_max_series, now=now):
        row = told.get((tenant_id, quota))
        before = 0 if row is None else row.level_percent
        percent = 100 * used / most if most else 100.0
        level = level_of(percent, before=before)
        if level == before:
            continue
        if row is None:
            row = QuotaWarning(tenant_id=tenant_id, quota=quota)
            session.add(row)
        row.level_percent, row.changed_at = level, now
        if level > before:
            crossings.append(
                Crossing(
                    tenant_id=tenant_id, quota=quota, level_percent=level, used=used, most=most
                )
            )
    session.flush()
    return crossings


def level_of(percent: float, *, before: int) -> int:
    """Return the level that a share is at, which it keeps until it is clearly below; 0 is none."""
    reached = [
        level
        for level in LEVELS_PERCENT
        if percent >= level - (CLEARLY_BELOW_PERCENT if level <= before else 0)
    ]
    return max(reached, default=0)


def _uses(
    session: Session, default_max_series: int | None, *, now: datetime
) -> Iterator[tuple[str, FillingQuota, int, int]]:
    """Yield what active tenants have against the quotas that fill up by themselves."""
    limits, usage = all_limits(session), latest_usage(session)
    series = series_counts(session, now=now)
    active = select(Tenant.id).where(Tenant.state == TenantState.ACTIVE).order_by(Tenant.id)
    for tenant_id in session.scalars(active).all():
        own = limits.get(tenant_id, UNLIMITED)
        if own.max_storage_bytes is not None and tenant_id in usage:
            used = usage[tenant_id].storage_bytes
            yield tenant_id, FillingQuota.STORAGE, used, own.max_storage_bytes
        most = default_max_series if own.max_series is None else own.max_series
        if most is not None:
            yield tenant_id, FillingQuota.SERIES, series.get(tenant_id, 0), most
