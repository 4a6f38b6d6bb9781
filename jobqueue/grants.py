"""What a tenant may use of others: the grants of its contracts."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.holds.service import rental_hold
from jobqueue.placement.rentals import RentalView
from tenants.fleet.states import in_service
from tenants.models import Appliance, Tenant, TenantState
from tenants.models.rentals import Grant


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
