"""What placement sees of reservations, of what customers have booked, and of contracts.

A *grant* is what a contract lets a tenant use of others.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime

from sqlalchemy import and_, exists, select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.holds.service import rental_hold
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import ReservationView
from jobqueue.projects.models import Project
from jobqueue.reservations.models import Booking, BookingGap, GapReason, Reservation
from jobqueue.reservations.periods import periods_of
from tenants.fleet.states import in_service
from tenants.models import Appliance, Tenant, TenantState
from tenants.models.rentals import Grant, OfferedAppliance

OTHER_CUSTOMER, PROVIDER = "another tenant", "its provider"


def reservation_views(session: Session, tenant_id: str, *, now: datetime) -> list[ReservationView]:
    """Return the reservations of a tenant as placement sees them.

    Those for an archived project keep nothing: nobody can submit jobs to it.
    """
    reservations = session.scalars(
        select(Reservation).where(Reservation.tenant_id == tenant_id)
    ).all()
    if not reservations:
        return []
    projects = session.execute(
        select(Project.id, Project.parent_id, Project.name, Project.archived_at).where(
            Project.tenant_id == tenant_id
        )
    ).all()
    archived = {project.id for project in projects if project.archived_at is not None}
    names = {project.id: project.name for project in projects}
    parents = {project.id: project.parent_id for project in projects}
    rented = [row.id for row in reservations if row.appliance_count]
    booked = bookings_of(session, rented) if rented else {}
    granted = set(session.scalars(select(Grant.contract_id).where(Grant.tenant_id == tenant_id)))
    return [
        ReservationView(
            name=reservation.name,
            project=names.get(reservation.project_id or "", ""),
            project_ids=_with_descendants(reservation.project_id, parents),
            appliance_ids=[
                *reservation.appliance_ids,
                *(
                    booking.appliance_id
                    for booking in booked.get(reservation.id, ())
                    if booking.contract_id in granted
                ),
            ],
            gpus=reservation.gpus,
            periods=periods_of(reservation, now=now),
        )
        for reservation in reservations
        if reservation.project_id not in archived
    ]


def read_grants(session: Session, tenant_id: str, *, now: datetime | None) -> dict[str, RentalView]:
    """Return what a tenant may use of others, the best grant of each offer, by offer."""
    # The agents of a suspended provider are blocked.
    granted = (
        select(Grant)
        .join(Tenant, Tenant.id == Grant.provider_id)
        .where(Grant.tenant_id == tenant_id, Tenant.state == TenantState.ACTIVE)
    )
    rows = session.scalars(granted).all()
    regions: set[str] = set()
    is_held = bool(rows and rental_hold(session, tenant_id))
    if rows:
        own = select(Appliance.region).where(Appliance.tenant_id == tenant_id, in_service())
        regions = {region.lower() for region in session.scalars(own.distinct())} - {""}
    grants: dict[str, RentalView] = {}
    for row in sorted(rows, key=lambda row: (not row.is_open, row.price, row.contract_id)):
        ends_in = row.ends_at - now if row.ends_at and now else None
        grants.setdefault(
            row.offer_id,
            RentalView(
                contract_id=row.contract_id,
                provider_id=row.provider_id,
                offer_name=row.offer_name,
                price=row.price,
                highest_price=max(row.price, row.highest_price),
                is_open=row.is_open
                and not is_held
                and (ends_in is None or ends_in.total_seconds() > 0),
                region=row.region,
                is_local=row.region.lower() in regions,
                facts=frozenset(fact.lower() for fact in row.facts),
                availability_percent=row.availability_percent,
                reputation=row.reputation,
                placement_factor=row.placement_factor,
                allows_slices=row.allows_slices,
                max_gpus=row.max_gpus,
                max_seconds=row.max_seconds,
                ends_at=row.ends_at,
                ends_in=ends_in,
            ),
        )
    return grants


def bookings_of(session: Session, reservation_ids: Collection[str]) -> dict[str, list[Booking]]:
    """Return what reservations have booked now, by reservation."""
    booked: dict[str, list[Booking]] = defaultdict(list)
    for part in chunked(sorted(reservation_ids)):
        statement = select(Booking).where(Booking.reservation_id.in_(part), Booking.until.is_(None))
        for booking in session.scalars(statement.order_by(Booking.id)):
            booked[booking.reservation_id].append(booking)
    return booked


def booked_views(
    session: Session,
    provider_ids: Collection[str],
    *,
    now: datetime,
    customer_id: str = "",
) -> list[ReservationView]:
    """Return what customers have booked of providers' appliances, as others see it.

    Nothing is kept of an appliance while it is out of the offer, or its provider suspended.

    Args:
        session: the session.
        provider_ids: the tenants of the appliances.
        now: the time.
        customer_id: whose own bookings are left out.
    """
    bookings = [
        booking
        for booking in active_bookings(session, provider_ids, are_kept=True)
        if booking.tenant_id != customer_id
    ]
    tenant_ids = {booking.tenant_id for booking in bookings}
    parents: dict[str, str | None] = {}
    for part in chunked(sorted(tenant_ids)):
        statement = select(Project.id, Project.parent_id).where(Project.tenant_id.in_(part))
        parents |= {row[0]: row[1] for row in session.execute(statement)}
    return [
        ReservationView(
            name="",
            project="",
            project_ids=_with_descendants(booking.project_id, parents),
            appliance_ids=[booking.appliance_id],
            gpus=booking.gpus,
            periods=periods_of(booking, now=now),
            holder=OTHER_CUSTOMER,
        )
        for booking in bookings
    ]


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


def _with_descendants(project_id: str | None, parents: Mapping[str, str | None]) -> frozenset[str]:
    """Return a project with all below it, by the parents of all projects; none for None."""
    if project_id is None:
        return frozenset()
    inside = {project_id}
    size = 0
    while len(inside) > size:
        size = len(inside)
        inside |= {ident for ident, parent in parents.items() if parent in inside}
    return frozenset(inside)
