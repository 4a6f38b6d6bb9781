"""Charge what reservations kept of rented appliances and no job used.

An hour of an appliance costs the GPUs that were booked in it, but for gaps, less those that jobs of
the contract had there, at the price of the contract's terms less the discount. Like minimum times
it is compared again whenever the ledger of the hour changes; what differs is another line.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from sqlalchemy import func, insert, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.ids import new_id
from core.money import ZERO
from jobqueue.reservations.gaps import Gaps, gaps_of, usable_times
from jobqueue.reservations.models import Booking
from jobqueue.reservations.periods import Period, periods_until
from jobqueue.reservations.views import bookings_of
from jobqueue.usage.ledger import floor_hour
from jobqueue.usage.models import UsageEntry
from marketplace.charges.models import BillingLine, LineKind
from marketplace.charges.pricing import HOUR, MILLISECONDS_PER_HOUR, Pricing, Rate, Use, charge
from marketplace.models import Contract
from tenants.models.rentals import Grant

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
    """Return what was booked in hours, by place, with what jobs did not use.

    Where a reservation was changed, the larger of its bookings of an appliance counts.
    """
    first, last = min(hours), max(hours) + HOUR
    ends = or_(Booking.until.is_(None), Booking.until > first, Booking.charged_until > first)
    statement = (
        select(Booking, Contract.ends_at)
        .join(Contract, Contract.id == Booking.contract_id)
        .where(Booking.since < last, ends)
        .order_by(Booking.id)
    )
    rows = session.execute(statement).all()
    gaps = gaps_of(session, [booking for booking, _ in rows], after=first)
    places: dict[Place, Reserved] = {}
    parts_of: dict[tuple[Place, str], list[_Kept]] = defaultdict(list)
    for booking, ends_at in rows:
        end_at = min(booking.charged_until or booking.until or last, ends_at or last)
        for begin, end in _times(booking, first, min(end_at, last), gaps):
            for hour_at in hours:
                part = max(begin, hour_at), min(end, hour_at + HOUR)
                if part[0] < part[1]:
                    place = Place(booking.contract_id, booking.appliance_id, hour_at)
                    places.setdefault(place, Reserved(booking)).projects.add(booking.project_id)
                    parts_of[place, booking.reservation_id].append(_Kept(*part, booking.gpus))
    for (place, _), parts in parts_of.items():
        places[place].gpu_milliseconds += _gpu_milliseconds(parts)
    used = _used_in(session, places)
    for place, reserved in places.items():
        reserved.unused_milliseconds = max(0, reserved.gpu_milliseconds - used.get(place, 0))
    return places


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What is charged of a reservation if it is cancelled now, though nobody may use it then.

    Attributes:
        hours: of the contract in which it is charged, the longest of several.
        gpu_hours: that are reserved in this time.
        amount: what they cost.
    """

    hours: int = 0
    gpu_hours: float = 0.0
    amount: Decimal = ZERO


def cancellations(
    session: Session, reservation_ids: Collection[str], *, now: datetime
) -> dict[str, Cancellation]:
    """Return what is charged of reservations of rented appliances if they are cancelled now."""
    booked = bookings_of(session, reservation_ids)
    contract_ids = {row.contract_id for bookings in booked.values() for row in bookings}
    statement = select(Grant.contract_id, Grant.cancellation_hours, Grant.ends_at).where(
        Grant.contract_id.in_(sorted(contract_ids))
    )
    grants = {row.contract_id: row for row in session.execute(statement)}
    pricing = Pricing()
    pricing.read(session, (("", ident) for ident in grants))
    result = {}
    for ident, bookings in booked.items():
        hours, milliseconds, amount = 0, 0, ZERO
        for booking in bookings:
            grant = grants.get(booking.contract_id)
            if grant is None or not grant.cancellation_hours:
                continue
            hours = max(hours, grant.cancellation_hours)
            end_at = now + timedelta(hours=grant.cancellation_hours)
            for place, part in _hours(booking, now, min(end_at, grant.ends_at or end_at)):
                rate = rate_of(pricing, place, Reserved(booking))
                milliseconds += part
                amount += charge(rate.net_price, part) if rate else ZERO
        result[ident] = Cancellation(hours, milliseconds / MILLISECONDS_PER_HOUR, amount)
    return result


class _Kept(NamedTuple):
    begin: datetime
    end: datetime
    gpus: int


def _times(booking: Booking, first: datetime, end_at: datetime, gaps: Gaps) -> Iterator[Period]:
    """Yield when a booking kept its appliance until a time, without gaps."""
    for begin, end in periods_until(booking, end_at, now=first):
        yield from usable_times(max(begin, booking.since), min(end, end_at), gaps, booking)


def _hours(booking: Booking, now: datetime, end_at: datetime) -> Iterator[tuple[Place, int]]:
    """Yield the hours from now on in which a booking has GPUs, with their milliseconds."""
    for begin, end in _times(booking, now, end_at, {}):
        hour_at = floor_hour(at := max(begin, now))
        while at < end:
            until = min(end, hour_at + HOUR)
            place = Place(booking.contract_id, booking.appliance_id, hour_at)
            yield place, booking.gpus * ((until - at) // _MILLISECOND)
            at = hour_at = until


def _gpu_milliseconds(parts: Sequence[_Kept]) -> int:
    """Return the time of GPUs of parts; of those at the same time, the most GPUs count."""
    times = sorted({at for part in parts for at in (part.begin, part.end)})
    return sum(
        max((part.gpus for part in parts if part.begin <= begin and end <= part.end), default=0)
        * ((end - begin) // _MILLISECOND)
        for begin, end in pairwise(times)
    )


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
