"""New contracts: of customers that are admitted, about offers that can be taken."""

from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import begin_writing
from core.errors import ConflictError, NotFoundError, OverloadedError
from marketplace.accounts import account_of, require_customer
from marketplace.models import Contract, Offer
from marketplace.states import AccountState, ContractState, Listing, OfferState
from tenants.models import Tenant, TenantState
from tenants.scope import Scope

# Of a customer within a day: providers get an email about each.
MAX_NEW_CONTRACTS = 50
_OPEN = (ContractState.PROPOSED, ContractState.ACTIVE, ContractState.NOTICED)


def new_contract(
    session: Session, scope: Scope, offer_id: str, *, now: datetime
) -> tuple[Offer, Contract]:
    """Return a published offer, locked, and a new contract about it, which has no version yet."""
    customer = require_customer(session, scope)
    begin_writing(session)
    # A contract ends up in a state that no other one is made in meanwhile.
    statement = select(Offer).where(Offer.id == offer_id).with_for_update()
    offer = session.scalar(statement.execution_options(populate_existing=True))
    if offer is None or not is_available(session, offer):
        raise NotFoundError.of("offer", offer_id)
    if offer.tenant_id == customer.tenant_id:
        raise ConflictError("This is your own offer: your jobs use your appliances without it.")
    recent = select(func.count()).where(
        Contract.customer_id == customer.tenant_id, Contract.created_at > now - timedelta(days=1)
    )
    if (session.scalar(recent) or 0) >= MAX_NEW_CONTRACTS:
        raise OverloadedError(
            f"Your tenant made {MAX_NEW_CONTRACTS} contracts within a day. Try again later.",
            retry_after_seconds=3600,
        )
    same = select(Contract.id).where(
        Contract.offer_id == offer.id,
        Contract.customer_id == customer.tenant_id,
        Contract.state.in_(_OPEN),
    )
    if ident := session.scalar(same):
        raise ConflictError(
            f"Your tenant has the contract {ident} about this offer. Propose a version of it."
        )
    provider = account_of(session, offer.tenant_id)
    contract = Contract(
        offer_id=offer.id,
        offer_name=offer.name,
        provider_id=offer.tenant_id,
        provider_name=provider.public_name,
        customer_id=customer.tenant_id,
        customer_name=customer.public_name,
        state=ContractState.PROPOSED,
        created_at=now,
    )
    return offer, contract


def is_available(session: Session, offer: Offer) -> bool:
    """Return whether customers can take an offer: it is listed, and its provider admitted."""
    provider = session.get_one(Tenant, offer.tenant_id)
    account = account_of(session, offer.tenant_id)
    return (
        offer.state is OfferState.PUBLISHED
        and account.provider_state is AccountState.ACTIVE
        and account.listing is not Listing.HIDDEN
        and provider.state is TenantState.ACTIVE
    )
