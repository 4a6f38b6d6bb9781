"""Charge what reservations kept of rented appliances and no job used.

An hour of an appliance costs the GPUs that were booked in it, but for gaps, less those that jobs of
the contract had there, at the price of the contract's terms less the discount. Like minimum times
it is compared again whenever the ledger of the hour changes; what differs is another line.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import func, insert, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.ids import new_id
from core.money import ZERO
from jobqueue.reservations.gaps import gaps_of, usable_time
from jobqueue.reservations.models import Booking
from jobqueue.reservations.periods import periods_until
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import HOUR, Pricing, Rate, Use, charge
from marketplace.models import Contract

_MILLISECOND = timedelta(milliseconds=1)


class Place(NamedTuple):
    """An hour of an appliance under a contract."""

    contract_id: str
    appliance_id: str
    hour_at: datetime


@dataclass(slots=True)
class Reserved:
    """What was booked in an hour of an appliance, and what of it jobs did not use.

    `project_id` is None where several projects had it.
    """

    booking: Booking
    gpu_milliseconds: int = 0
    unused_milliseconds: int = 0
    projects: set[str | None] = field(default_factory=set)

    @property
    def project_id(self) -> str | None:
        """The project that had booked it."""
        return next(iter(self.projects)) if len(self.projects) == 1 else None


class Charged(NamedTuple):
    """What the lines of a place come to, and how many there are."""

    gpu_milliseconds: int
    amount: Decimal
    lines: int


def add_reserved(
    session: Session, pricing: Pricing, hours: Collection[datetime], *, now: datetime
) -> int:
    """Charge what was booked and not used in hours that have ended; return the lines added."""
    places = reserved_in(session, hours)
    charged = read_charged_places(session, hours)
    pricing.read(session, (("", place.contract_id) for place in places))
    lines = []
    for place, reserved in places.items():
        rate = rate_of(pricing, place, reserved)
        before = charged.get(place, Charged(0, ZERO, 0))
        if rate is None or reserved.unused_milliseconds == before.gpu_milliseconds:
            continue
        booking = reserved.booking
        lines.append(
            {
                "id": new_id(),
                "kind": LineKind.RESERVATION,
                "tenant_id": booking.tenant_id,
                "provider_id": rate.provider_id,
                "contract_id": place.contract_id,
                "version_number": rate.version_number,
                "source_id": f"{_source(place)}:{before.lines}",
                "at": place.hour_at,
                "recorded_at": now,
                "project_id": reserved.project_id,
                "appliance_id": place.appliance_id,
                "gpu_model": booking.gpu_model,
                "gpu_milliseconds": reserved.unused_milliseconds - before.gpu_milliseconds,
                "unit_price": rate.net_price,
                "amount": charge(rate.net_price, reserved.unused_milliseconds) - before.amount,
                "note": "",
                "created_by": "",
            }
        )
    if lines:
        session.execute(insert(BillingLine), lines)
    return len(lines)


def reserved_in(session: Session, hours: Collection[datetime]) -> dict[Place, Reserved]:
    """Return what was booked in hours, by place, with what jobs did not use."""
    first, last = min(hours), max(hours) + HOUR
    statement = (
        select(Booking, Contract.ends_at)
        .join(Contract, Contract.id == Booking.contract_id)
        .where(Booking.since < last, or_(Booking.until.is_(None), Booking.until > first))
        .order_by(Booking.id)
    )
    places: dict[Place, Reserved] = {}
    rows = session.execute(statement).all()
    gaps = gaps_of(session, [booking for booking, _ in rows], after=first)
    for booking, ends_at in rows:
        until = min(booking.until or last, ends_at or last)
        for period in periods_until(booking, last, now=first):
            begin, end = max(period[0], booking.since), min(period[1], until)
            for hour_at in hours:
                duration = usable_time(max(begin, hour_at), min(end, hour_at + HOUR), gaps, booking)
                if duration > timedelta(0):
                    place = Place(booking.contract_id, booking.appliance_id, hour_at)
                    reserved = places.setdefault(place, Reserved(booking))
                    reserved.gpu_milliseconds += booking.gpus * (duration // _MILLISECOND)
                    reserved.projects.add(booking.project_id)
    used = _used_in(session, places)
    for place, reserved in places.items():
        reserved.unused_milliseconds = max(0, reserved.gpu_milliseconds - used.get(place, 0))
    return places


def read_charged_places(session: Session, hours: Collection[datetime]) -> Mapping[Place, Charged]:
    """Return what was charged for unused reservations in hours, by place."""
    keys = BillingLine.contract_id, BillingLine.appliance_id, BillingLine.at
    statement = (
        select(
            *keys,
            func.sum(BillingLine.gpu_milliseconds),
            func.sum(BillingLine.amount),
            func.count(),
        )
        .where(BillingLine.at.in_(hours), BillingLine.kind == LineKind.RESERVATION)
        .group_by(*keys)
    )
    return {
        Place(str(contract), str(appliance), at): Charged(int(milliseconds), amount, count)
        for contract, appliance, at, milliseconds, amount, count in session.execute(statement)
    }


def rate_of(pricing: Pricing, place: Place, reserved: Reserved) -> Rate | None:
    """Return the rate of a place; None if its contract has no terms for it."""
    booking = reserved.booking
    use = Use(booking.tenant_id, place.contract_id, booking.gpu_model, place.hour_at)
    return pricing.rate(use)


def _used_in(session: Session, places: Collection[Place]) -> dict[Place, int]:
    """Return the milliseconds of GPUs that jobs of the contracts had in places."""
    used: dict[Place, int] = defaultdict(int)
    hours = sorted({place.hour_at for place in places})
    for contract_ids in chunked(sorted({place.contract_id for place in places})):
        keys = UsageEntry.contract_id, UsageEntry.appliance_id, UsageEntry.hour_at
        statement = (
            select(*keys, func.sum(UsageEntry.allocated_milliseconds))
            .where(UsageEntry.contract_id.in_(contract_ids), UsageEntry.hour_at.in_(hours))
            .group_by(*keys)
        )
        for contract_id, appliance_id, hour_at, milliseconds in session.execute(statement):
            used[Place(str(contract_id), appliance_id, hour_at)] = int(milliseconds)
    return used


def _source(place: Place) -> str:
    return f"reserved:{place.contract_id}:{place.appliance_id}:{place.hour_at:%Y%m%d%H}"
