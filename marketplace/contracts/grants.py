"""Grants: what usable contracts let their customers use, and how contracts end in time.

A grant is written with its contract, in the same transaction; once a minute its price and whether
it is open follow the time, and contracts whose end has come are ended.
"""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.holds.service import rental_hold
from jobqueue.reservations.bookings import close_contract
from jobqueue.reservations.gaps import follow_gaps
from marketplace.accounts import account_of
from marketplace.contracts.recording import email_sides, record_change, tenant_of
from marketplace.models import Contract, Offer
from marketplace.offers.calendar import is_open, windows_of
from marketplace.states import USABLE, AccountState, ContractState, Side
from tenants.models import Tenant, TenantState
from tenants.models.rentals import Grant


def write_grant(session: Session, contract: Contract, *, now: datetime) -> Grant | None:
    """Write what a contract grants now, or delete its grant; return it.

    The grant has the terms that apply now. It is closed outside the offer's calendar, and while
    one of both sides is not admitted to the marketplace.
    """
    grant = session.get(Grant, contract.id)
    terms = contract.terms_at(now) if contract.state in USABLE else None
    tenants = [session.get(Tenant, ident) for ident in (contract.customer_id, contract.provider_id)]
    if terms is None or None in tenants:
        if grant is not None:
            session.delete(grant)
            session.flush()
        return None
    provider = account_of(session, contract.provider_id)
    if grant is None:
        grant = Grant(
            contract_id=contract.id,
            tenant_id=contract.customer_id,
            provider_id=contract.provider_id,
            offer_id=contract.offer_id,
            offer_name=contract.offer_name,
            reputation=provider.reputation,
        )
    offer = session.get(Offer, contract.offer_id)
    today = now.date().isoformat()
    facts = (fact for fact in terms.facts if not fact.valid_until or today <= fact.valid_until)
    grant.is_open = (
        offer is not None
        and is_open(windows_of(offer.calendar), terms.time_zone, now)
        and all(_is_admitted(session, contract, side) for side in Side)
    )
    grant.price = terms.net_price_at(now)
    grant.highest_price = terms.net_prices()[1]
    grant.allows_slices = terms.allows_slices
    grant.region = terms.region
    grant.facts = sorted(fact.name for fact in facts)
    grant.availability_percent = terms.service_level.availability_percent
    limits = filter(None, (terms.max_gpus, provider.max_contract_gpus))
    grant.max_gpus, grant.min_seconds = min(limits, default=0), terms.min_seconds
    grant.placement_factor = provider.placement_factor
    grant.max_seconds, grant.cancellation_hours = terms.max_seconds, terms.cancellation_hours
    grant.ends_at, grant.refreshed_at = contract.ends_at, now
    session.add(grant)
    session.flush()
    return grant


def refresh_contract(session: Session, ident: str, *, now: datetime, mail_url: str = "") -> None:
    """End a contract whose end has come, or a side of which is gone or closed; write its grant."""
    statement = select(Contract).where(Contract.id == ident).with_for_update()
    contract = session.scalar(statement.execution_options(populate_existing=True))
    if contract is None:
        return
    tenants = [session.get(Tenant, tenant_of(contract, side)) for side in Side]
    is_gone = any(tenant is None or tenant.state is TenantState.CLOSED for tenant in tenants)
    is_over = is_gone or (contract.ends_at is not None and contract.ends_at <= now)
    if contract.state in USABLE and is_over:
        contract.state = ContractState.ENDED
        contract.ends_at = min(now, contract.ends_at or now)
        record_change(session, contract, "ended", None, now=now)
        email_sides(session, contract, "has ended", None, mail_url=mail_url, now=now)
    write_grant(session, contract, now=now)
    may_use = contract.state in USABLE and _is_admitted(session, contract, Side.CUSTOMER)
    if not may_use or rental_hold(session, contract.customer_id):
        close_contract(session, contract.id, now=now)
    else:
        is_admitted = _is_admitted(session, contract, Side.PROVIDER)
        follow_gaps(session, contract.id, is_admitted=is_admitted, now=now)


def _is_admitted(session: Session, contract: Contract, side: Side) -> bool:
    """Return whether a side is admitted to the marketplace and active."""
    tenant_id = tenant_of(contract, side)
    account, tenant = account_of(session, tenant_id), session.get(Tenant, tenant_id)
    state = account.provider_state if side is Side.PROVIDER else account.customer_state
    is_active = tenant is not None and tenant.state is TenantState.ACTIVE
    return is_active and state is AccountState.ACTIVE


def usable_contracts(session: Session) -> list[str]:
    """Return the ids of contracts that have a grant, or should have one."""
    usable = select(Contract.id).where(Contract.state.in_(USABLE))
    return sorted(session.scalars(usable.union(select(Grant.contract_id))))
