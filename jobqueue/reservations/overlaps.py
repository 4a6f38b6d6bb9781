"""What reservations of any tenant keep of appliances, and when too little is left of them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, exists, select
from sqlalchemy.orm import Session

from core.db import chunked
from core.errors import InvalidInputError
from jobqueue.reservations.models import Booking, BookingGap, GapReason, Reservation
from jobqueue.reservations.periods import Period, periods_until
from tenants.models.rentals import Grant, OfferedAppliance

# How often all may begin that have an appliance in common; comparing a thousand takes a second.
MAX_COMPARED = 5000
OTHER_CUSTOMER, PROVIDER = "another tenant", "its provider"


@dataclass(frozen=True, slots=True)
class KeptTimes:
    """GPUs of an appliance that a reservation keeps; `gpus` is None for all of them."""

    holder: str
    gpus: int | None
    periods: Sequence[Period]


def kept_on(
    session: Session,
    reservation: Reservation,
    providers: Mapping[str, str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return what other reservations keep, by appliance.

    Args:
        session: the session.
        reservation: the one that is to be saved, which does not count.
        providers: the tenants of the appliances.
        now: the time.
        until: periods that begin later don't count.

    Raises:
        InvalidInputError: they begin too often to be compared.
    """
    others = _others(session, reservation, providers)
    return _kept_times(others, providers.keys(), now=now, until=until)


def kept_under(
    session: Session,
    reservation: Reservation,
    contract_ids: Collection[str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return what other reservations have booked under contracts, by contract.

    Args:
        session: the session.
        reservation: the one that is to be saved, which does not count.
        contract_ids: the contracts.
        now: the time.
        until: periods that begin later don't count.

    Raises:
        InvalidInputError: they begin too often to be compared.
    """
    bookings = [
        booking
        for part in chunked(sorted(contract_ids))
        for booking in session.scalars(
            select(Booking).where(
                Booking.contract_id.in_(part),
                Booking.until.is_(None),
                Booking.reservation_id != reservation.id,
            )
        )
    ]
    others = ((booking, "another reservation", (booking.contract_id,)) for booking in bookings)
    return _kept_times(others, contract_ids, now=now, until=until)


def active_bookings(
    session: Session, provider_ids: Collection[str], *, are_kept: bool = False
) -> list[Booking]:
    """Return what is booked of providers' appliances under contracts that still last.

    Args:
        session: the session.
        provider_ids: the tenants of the appliances.
        are_kept: only what keeps its appliance now: that is on offer, its provider not suspended.
    """
    statement = (
        select(Booking)
        .join(Grant, Grant.contract_id == Booking.contract_id)
        .where(Booking.until.is_(None))
        .order_by(Booking.id)
    )
    if are_kept:
        is_suspended = exists().where(
            BookingGap.booking_id == Booking.id,
            BookingGap.until.is_(None),
            BookingGap.reason == GapReason.SUSPENDED,
        )
        statement = statement.join(
            OfferedAppliance,
            and_(
                OfferedAppliance.appliance_id == Booking.appliance_id,
                OfferedAppliance.offer_id == Grant.offer_id,
            ),
        ).where(~is_suspended)
    return [
        booking
        for part in chunked(sorted(provider_ids))
        for booking in session.scalars(statement.where(Booking.provider_id.in_(part)))
    ]


def busy_periods(
    total: int, others: Sequence[KeptTimes], gpus: int | None
) -> Iterator[tuple[Period, str]]:
    """Yield when an appliance has too few GPUs left, with who has the last of them.

    Args:
        total: the GPUs of the appliance.
        others: what is kept of it.
        gpus: so many are needed; None for all.
    """
    total = max(1, total)
    left = total - (total if gpus is None else gpus)
    changes = sorted(
        (at, sign * (other.gpus or total), other.holder)
        for other in others
        for period in other.periods
        for at, sign in zip(period, (1, -1), strict=True)
    )
    reserved, since, holder = 0, None, ""
    for at, change, changed_by in changes:
        before, reserved = reserved, reserved + change
        if before <= left < reserved:
            since, holder = at, changed_by
        elif since is not None and reserved <= left < before:
            yield (since, at), holder


def _kept_times(
    others: Iterable[tuple[Reservation | Booking, str, Sequence[str]]],
    wanted: Collection[str],
    *,
    now: datetime,
    until: datetime,
) -> dict[str, list[KeptTimes]]:
    """Return the times of reservations with their holders, by those ids of theirs that matter."""
    times: dict[str, list[KeptTimes]] = defaultdict(list)
    remaining = MAX_COMPARED
    for other, holder, idents in others:
        shared = set(wanted).intersection(idents)
        if not shared:
            continue
        periods = periods_until(other, until, now=now, max_count=remaining + 1)
        remaining -= len(periods)
        if remaining < 0:
            often = f"The reservations of these appliances begin more than {MAX_COMPARED:,} times"
            problem = f"{often}. Choose fewer times, each for longer."
            raise InvalidInputError(problem, errors={"schedule": [problem]})
        for ident in shared:
            times[ident].append(KeptTimes(holder, other.gpus, periods))
    return times


def _others(
    session: Session, reservation: Reservation, providers: Mapping[str, str]
) -> Iterator[tuple[Reservation | Booking, str, Sequence[str]]]:
    """Yield other reservations and bookings, with their holder and appliances."""
    tenant_id, owners = reservation.tenant_id, set(providers.values())
    for part in chunked(sorted(owners)):
        of_owners = select(Reservation).where(
            Reservation.tenant_id.in_(part), Reservation.id != reservation.id
        )
        for other in session.scalars(of_owners):
            is_own = other.tenant_id == tenant_id
            yield other, repr(other.name) if is_own else PROVIDER, other.appliance_ids
    for booking in active_bookings(session, owners):
        if booking.reservation_id != reservation.id:
            is_own = booking.tenant_id == tenant_id
            holder = "another reservation" if is_own else OTHER_CUSTOMER
            yield booking, holder, (booking.appliance_id,)
