"""Service levels as both sides of a contract see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import SessionFactory
from marketplace.models import Contract
from marketplace.months import month_of
from marketplace.service_levels.detection import month_availability, promise_in
from marketplace.service_levels.models import ServiceBreach
from timeseries.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSoFar:
    """The availability of a contract's appliances in the current month.

    Attributes:
        month: such as `2026-11`.
        promised_percent: 0 for no promise.
        measured_percent: until now; None if nothing was measured.
        down_hours: in which appliances were not reachable.
        allowed_down_hours: that the promise leaves for the whole month.
    """

    month: str
    promised_percent: float
    measured_percent: float | None
    down_hours: float
    allowed_down_hours: float


def breaches_of(
    session: Session,
    contract: Contract,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Sequence[ServiceBreach]:
    """Return the breaches of a contract that began in a period, the latest first."""
    statement = select(ServiceBreach).where(ServiceBreach.contract_id == contract.id)
    if since is not None:
        statement = statement.where(ServiceBreach.since >= since)
    if until is not None:
        statement = statement.where(ServiceBreach.since < until)
    ordered = statement.order_by(ServiceBreach.since.desc(), ServiceBreach.id)
    return session.scalars(ordered).all()


def month_so_far(
    sessions: SessionFactory, store: Store, contract: Contract, *, now: datetime
) -> MonthSoFar:
    """Return what was measured in the current month, against what the contract promises.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    month_at = month_of(now)
    promise = promise_in(contract, month_at)
    promised = promise[0].service_level.availability_percent if promise else 0.0
    measured, hours = month_availability(sessions, store, contract, month_at, now=now)
    return MonthSoFar(
        month=f"{month_at:%Y-%m}",
        promised_percent=promised,
        measured_percent=measured.percent,
        down_hours=measured.down,
        allowed_down_hours=(1 - promised / 100) * hours if promised else 0.0,
    )
