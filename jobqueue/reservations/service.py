"""Reservations: list, create, change and delete them; and how placement sees them."""

from collections.abc import Collection
from datetime import datetime
from typing import Unpack

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import begin_writing, chunked
from core.errors import ConflictError, InvalidInputError
from core.ids import new_id
from core.paging import Columns, Page, Paging, list_page
from jobqueue.reservations.bookings import close_bookings, providers_of
from jobqueue.reservations.checks import ReservationRequest, checked
from jobqueue.reservations.models import Booking, Reservation
from tenants.models import Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_RESERVATIONS = 200
RESERVATION_SORTS: Columns = {
    "name": Reservation.name,
    "created_at": Reservation.created_at,
}


def list_reservations(
    session: Session, scope: Scope, **paging: Unpack[Paging]
) -> Page[Reservation]:
    """Return the reservations of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Reservation), Reservation)
    ordered = statement.order_by(Reservation.name, Reservation.id)
    return list_page(session, ordered, RESERVATION_SORTS, last=Reservation.id, **paging)


def get_reservation(session: Session, scope: Scope, reservation_id: str) -> Reservation:
    """Return a reservation of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, Reservation, reservation_id, kind="reservation")


def create_reservation(
    session: Session, scope: Scope, request: ReservationRequest, *, now: datetime
) -> Reservation:
    """Add a reservation to the scope's tenant; it applies from the next placement.

    Raises:
        InvalidInputError: with the errors by field; an overlap has the nearest free time.
        ConflictError: the tenant has `MAX_RESERVATIONS`, or others were changed at the same time.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    tenant_id = scope.require_tenant()
    count = select(func.count()).where(Reservation.tenant_id == tenant_id)
    if (session.scalar(count) or 0) >= MAX_RESERVATIONS:
        raise ConflictError(f"There are {MAX_RESERVATIONS} reservations. Delete one first.")
    reservation = Reservation(
        id=new_id(), tenant_id=tenant_id, created_by=scope.user_id, created_at=now
    )
    return _save(session, reservation, request, now=now)


def update_reservation(
    session: Session,
    scope: Scope,
    reservation_id: str,
    request: ReservationRequest,
    *,
    now: datetime,
) -> Reservation:
    """Change a reservation; it applies from the next placement.

    Raises:
        InvalidInputError: with the errors by field; an overlap has the nearest free time.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    reservation = get_reservation(session, scope, reservation_id)
    return _save(session, reservation, request, now=now)


def delete_reservation(
    session: Session, scope: Scope, reservation_id: str, *, now: datetime
) -> None:
    """Delete a reservation.

    What it kept of rented appliances until now is charged, and what it would have kept within the
    contract's time of cancellation.
    """
    scope.require(Permission.MANAGE_APPLIANCES)
    session.delete(get_reservation(session, scope, reservation_id))
    close_bookings(session, reservation_id, now=now)
    session.flush()


def _save(
    session: Session, reservation: Reservation, request: ReservationRequest, *, now: datetime
) -> Reservation:
    tenant_id = reservation.tenant_id
    owners = {tenant_id}
    if request.is_rented:
        owners |= providers_of(session, tenant_id, now=now)
    # Many times take a while to compare, so nobody waits for that.
    with session.no_autoflush:
        compared = _times(session, owners)
        columns, bookings, errors = checked(session, reservation, request, now=now)
    if errors:
        details = " ".join(message for messages in errors.values() for message in messages)
        raise InvalidInputError(f"The reservation was not saved. {details}", errors=errors)
    begin_writing(session)
    locked = select(Tenant.id).where(Tenant.id.in_(sorted(owners))).order_by(Tenant.id)
    session.execute(locked.with_for_update())
    with session.no_autoflush:
        if _times(session, owners) != compared:
            raise ConflictError("Another reservation was saved at the same time. Try again.")
    for name, value in columns.items():
        setattr(reservation, name, value)
    session.add(reservation)
    session.flush()
    close_bookings(session, reservation.id, replaced_by=bookings, now=now)
    session.add_all(bookings)
    session.flush()
    return reservation


def _times(session: Session, tenant_ids: Collection[str]) -> list[tuple[object, ...]]:
    """Return what is kept of tenants' appliances, and when."""
    times: list[tuple[object, ...]] = []
    for part in chunked(sorted(tenant_ids)):
        for table, owner, fields in (
            (Reservation, Reservation.tenant_id, Reservation.appliance_ids),
            (Booking, Booking.provider_id, Booking.until),
        ):
            columns = table.gpus, table.schedule, table.time_zone, table.duration_seconds, fields
            statement = select(table.id, *columns).where(owner.in_(part)).order_by(table.id)
            if table is Booking:
                statement = statement.where(Booking.until.is_(None))
            times += map(tuple, session.execute(statement))
    return times
