"""The fee of a provider in a month: its own or the portal's, and the points for its score."""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.money import ZERO
from marketplace.invoices.models import ProviderFee
from marketplace.models import Account
from marketplace.months import month_of

_HUNDRED = Decimal(100)


def fee_percent_of(
    session: Session, provider_id: str, at: datetime, *, default: Decimal
) -> Decimal:
    """Return the percentage of a provider's earnings in the month of a time, 0 to 100.

    Args:
        session: the session.
        provider_id: the provider, which may have been removed.
        at: a time of the month.
        default: the portal's percentage, for providers without one of their own.
    """
    account = session.get(Account, provider_id)
    fee = session.get(ProviderFee, (provider_id, month_of(at)))
    points = ZERO if fee is None else fee.points
    return _percent(None if account is None else account.fee_percent, points, default)


def fee_percents(
    session: Session, *, since: datetime, default: Decimal
) -> Callable[[str, datetime], Decimal]:
    """Return what returns the percentage of any provider in any month from a time on."""
    own = dict(session.execute(select(Account.tenant_id, Account.fee_percent)).all())
    rows = session.scalars(select(ProviderFee).where(ProviderFee.month_at >= month_of(since)))
    points = {(row.provider_id, row.month_at): row.points for row in rows}

    def percent_of(provider_id: str, at: datetime) -> Decimal:
        added = points.get((provider_id, month_of(at)), ZERO)
        return _percent(own.get(provider_id), added, default)

    return percent_of


def _percent(own: Decimal | None, points: Decimal, default: Decimal) -> Decimal:
    return min(max((default if own is None else own) + points, ZERO), _HUNDRED)
