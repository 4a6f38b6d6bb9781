"""Sums of billing lines."""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.money import PLACES
from marketplace.charges.models import BillingLine


def spent(
    session: Session,
    tenant_id: str,
    *,
    since: datetime,
    until: datetime,
    project_ids: tuple[str, ...] | None = None,
    user_id: str | None = None,
) -> Decimal:
    """Return what a tenant's lines of a period come to, in the currency of the portal.

    Args:
        session: the session.
        tenant_id: who pays.
        since: the first time.
        until: the time after the last.
        project_ids: only the lines of these projects; None for all.
        user_id: only those of a user; None for all.
    """
    total = select(func.coalesce(func.sum(BillingLine.amount), 0)).where(
        BillingLine.tenant_id == tenant_id, BillingLine.at >= since, BillingLine.at < until
    )
    if project_ids is not None:
        total = total.where(BillingLine.project_id.in_(project_ids))
    if user_id is not None:
        total = total.where(BillingLine.user_id == user_id)
    value = session.scalar(total)
    return value if isinstance(value, Decimal) else Decimal(value or 0).scaleb(-PLACES)
