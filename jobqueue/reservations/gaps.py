"""Gaps of bookings: the times in which a provider did not give what was booked of it.

An appliance may leave its offer, go offline or be drained, and its provider may be suspended. What
was booked stays booked, and is there again when the gap ends, but its time is not charged. A gap
that lasts too long ends the booking.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, and_, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.reservations.models import Booking, BookingGap, GapReason
from jobqueue.reservations.periods import Period
from jobqueue.usage.ledger import floor_hour
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, ApplianceState
from tenants.models.rentals import Grant, OfferedAppliance

MAX_GAP = timedelta(days=7)
Gaps = Mapping[str, list[tuple[datetime, datetime | None]]]


def follow_gaps(session: Session, contract_id: str, *, is_admitted: bool, now: datetime) -> None:
    """Begin and end the gaps of what is booked under a contract; end bookings after `MAX_GAP`.

    Args:
        session: the session; the contract is locked.
        contract_id: the contract.
        is_admitted: whether the provider may let jobs start.
        now: the time.
    """
    rows = session.execute(
        select(
            Booking,
            BookingGap,
            OfferedAppliance.offer_id.is_not(None).label("is_offered"),
            *_STATUS_COLUMNS,
        )
        .outerjoin(
            BookingGap, and_(BookingGap.booking_id == Booking.id, BookingGap.until.is_(None))
        )
        .outerjoin(Grant, Grant.contract_id == Booking.contract_id)
        .outerjoin(
            OfferedAppliance,
            and_(
                OfferedAppliance.appliance_id == Booking.appliance_id,
                OfferedAppliance.offer_id == Grant.offer_id,
            ),
        )
        .outerjoin(Appliance, Appliance.id == Booking.appliance_id)
        .where(
            Booking.contract_id == contract_id,
            or_(Booking.until.is_(None), Booking.charged_until > now),
        )
    )
    for row in rows:
        booking, gap = row.Booking, row.BookingGap
        reason = None if is_admitted else GapReason.SUSPENDED
        reason = reason or _reason(row)
        if reason is None:
            if gap is not None:
                gap.until = now
        elif gap is None:
            since = _since(row, reason, now=now)
            session.add(BookingGap(booking_id=booking.id, reason=reason, since=since))
        else:
            gap.reason = reason
            if now - gap.since > MAX_GAP:
                booking.until = booking.until or now
    session.flush()


def gaps_of(session: Session, bookings: Collection[Booking], *, after: datetime) -> Gaps:
    """Return the gaps of bookings that go on after a time, by booking."""
    gaps: dict[str, list[tuple[datetime, datetime | None]]] = {}
    for part in chunked(sorted({booking.id for booking in bookings})):
        statement = select(BookingGap).where(BookingGap.booking_id.in_(part))
        for gap in session.scalars(statement):
            if gap.until is None or gap.until > after:
                gaps.setdefault(gap.booking_id, []).append((gap.since, gap.until))
    return gaps


def open_gaps(session: Session, bookings: Collection[Booking]) -> dict[str, GapReason]:
    """Return why what is booked can't be used now, by booking; without what can be."""
    reasons: dict[str, GapReason] = {}
    for part in chunked(sorted({booking.id for booking in bookings})):
        statement = select(BookingGap.booking_id, BookingGap.reason).where(
            BookingGap.booking_id.in_(part), BookingGap.until.is_(None)
        )
        reasons |= {row[0]: row[1] for row in session.execute(statement)}
    return reasons


def usable_times(begin: datetime, end: datetime, gaps: Gaps, booking: Booking) -> Iterator[Period]:
    """Yield what of a time is outside a booking's gaps, which don't overlap each other."""
    for since, until in sorted(gaps.get(booking.id, ()), key=lambda gap: gap[0]):
        if begin < min(since, end):
            yield begin, min(since, end)
        begin = max(begin, until or end)
    if begin < end:
        yield begin, end


_STATUS_COLUMNS = (
    Appliance.state,
    Appliance.last_seen_at,
    Appliance.drained_at,
    Appliance.quarantined_at,
    Appliance.fenced_at,
    Appliance.retired_at,
    Appliance.revoked_at,
)


def _reason(row: Row[*tuple[Any, ...]]) -> GapReason | None:
    if row.state is not None and effective_status_of(row) is not EffectiveStatus.ONLINE:
        return GapReason.UNAVAILABLE
    return None if row.is_offered else GapReason.WITHDRAWN


def _since(row: Row[*tuple[Any, ...]], reason: GapReason, *, now: datetime) -> datetime:
    """Return when a gap began; at the earliest in this hour, as others may be charged already."""
    if reason is not GapReason.UNAVAILABLE or row.state is ApplianceState.ONLINE:
        return now
    since: datetime = max(row.last_seen_at or now, floor_hour(now), row.Booking.since)
    return min(now, since)
