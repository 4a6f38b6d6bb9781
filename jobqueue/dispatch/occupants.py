"""What other tenants have of appliances, compared with a snapshot when its decisions are written.

The caller has locked the appliances, as every transaction does that places jobs on them. So what is
read here stays true until its end.
"""

from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import chunked
from jobqueue.models import Attempt
from jobqueue.placement.rentals import RentalView
from jobqueue.placement.views import ApplianceView
from jobqueue.states import ALLOCATED_STATES
from tenants.models.rentals import Grant, OfferedAppliance


def occupants_of(views: Iterable[ApplianceView]) -> dict[str, frozenset[str]]:
    """Return the attempts of other tenants on appliances, by appliance."""
    occupants = {
        view.id: frozenset(running.job_id for running in view.running if running.is_foreign)
        for view in views
    }
    return {ident: attempts for ident, attempts in occupants.items() if attempts}


def newly_occupied(
    session: Session,
    tenant_id: str,
    appliance_ids: Collection[str],
    occupants: Mapping[str, frozenset[str]],
) -> set[str]:
    """Return the appliances with attempts of other tenants that a snapshot doesn't have."""
    occupied: set[str] = set()
    for ids in chunked(sorted(appliance_ids)):
        there = select(Attempt.appliance_id, Attempt.id).where(
            Attempt.appliance_id.in_(ids),
            Attempt.state.in_(ALLOCATED_STATES),
            Attempt.tenant_id != tenant_id,
        )
        occupied.update(
            appliance_id
            for appliance_id, attempt_id in session.execute(there)
            if attempt_id not in occupants.get(appliance_id, ())
        )
    return occupied


def no_longer_rented(
    session: Session, tenant_id: str, assigned: Mapping[str, RentalView | None]
) -> set[str]:
    """Return the rented appliances whose grant has ended, closed or changed its price.

    One that ends at this moment isn't waited for: its attempts are stopped anyway.

    Args:
        session: the session.
        tenant_id: the customer.
        assigned: appliances, and how they were rented; None for own ones, which are left out.
    """
    rented = {ident: rental for ident, rental in assigned.items() if rental is not None}
    valid: set[str] = set()
    for ids in chunked(sorted(rented)):
        granted = (
            select(OfferedAppliance.appliance_id, Grant.contract_id, Grant.price)
            .join(Grant, Grant.offer_id == OfferedAppliance.offer_id)
            .where(
                OfferedAppliance.appliance_id.in_(ids), Grant.tenant_id == tenant_id, Grant.is_open
            )
        )
        valid.update(
            ident
            for ident, contract_id, price in session.execute(granted)
            if (contract_id, price) == (rented[ident].contract_id, rented[ident].price)
        )
    return rented.keys() - valid
