"""Warnings before the quotas of samples are full, which grow with what agents send.

A *level* is a percentage of the quota. Admins are warned once when usage reaches a level, and again
only after it was clearly below.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from tenants.lifecycle.usage import SampleCounts, latest_usage, sample_counts
from tenants.models import FillingQuota, QuotaWarning, Tenant, TenantState
from tenants.quotas import UNLIMITED, all_limits

LEVELS_PERCENT = (80, 95)
# Usage must fall this far below a level before it is reported again.
CLEARLY_BELOW_PERCENT = 5


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tenant's usage of a quota reached a level."""

    tenant_id: str
    quota: FillingQuota
    level_percent: int
    used: int
    limit: int


def update_quota_warnings(
    session: Session, *, defaults: Mapping[FillingQuota, int], now: datetime
) -> list[Crossing]:
    """Return the levels reached since the last call, the highest of each quota.

    `defaults` apply to tenants without a quota of their own; 0 is unlimited.
    """
    stored = {(row.tenant_id, row.quota): row for row in session.scalars(select(QuotaWarning))}
    crossings = []
    for tenant_id, quota, used, limit in _uses(session, defaults, now=now):
        row = stored.get((tenant_id, quota))
        before = 0 if row is None else row.level_percent
        percent = 100 * used / limit if limit else 100.0
        level = level_of(percent, before=before)
        if level == before:
            continue
        if row is None:
            row = QuotaWarning(tenant_id=tenant_id, quota=quota)
            session.add(row)
        row.level_percent, row.changed_at = level, now
        if level > before:
            crossings.append(Crossing(tenant_id, quota, level, used, limit))
    session.flush()
    return crossings


def level_of(percent: float, *, before: int) -> int:
    """Return the level of a percentage, which persists until it is clearly below; 0 is none."""
    reached = [
        level
        for level in LEVELS_PERCENT
        if percent >= level - (CLEARLY_BELOW_PERCENT if level <= before else 0)
    ]
    return max(reached, default=0)


def _uses(
    session: Session, defaults: Mapping[FillingQuota, int], *, now: datetime
) -> Iterator[tuple[str, FillingQuota, int, int]]:
    """Yield the usage of active tenants against these quotas."""
    limits, usage = all_limits(session), latest_usage(session)
    counts = sample_counts(session, now=now)
    active = select(Tenant.id).where(Tenant.state == TenantState.ACTIVE).order_by(Tenant.id)
    for tenant_id in session.scalars(active).all():
        own = limits.get(tenant_id, UNLIMITED)
        if own.max_storage_bytes is not None and tenant_id in usage:
            used = usage[tenant_id].storage_bytes
            yield tenant_id, FillingQuota.STORAGE, used, own.max_storage_bytes
        counted = counts.get(tenant_id, SampleCounts())._asdict()
        for quota in (FillingQuota.SERIES, FillingQuota.MEASUREMENTS, FillingQuota.FIELDS):
            limit = getattr(own, f"max_{quota}")
            limit = (defaults.get(quota) or None) if limit is None else limit
            if limit is not None:
                yield tenant_id, quota, counted[quota.value], limit
