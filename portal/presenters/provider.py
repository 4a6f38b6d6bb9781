"""What the provider area shows: appliances on offer, and what they earn."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from marketplace.charges.models import BillingLine
from marketplace.models import Contract, Offer
from marketplace.states import ContractState
from portal.presenters.contracts import MILLISECONDS_PER_HOUR, as_amount
from portal.presenters.market import month_of
from tenants.models import Appliance
from tenants.models.rentals import OfferedAppliance

MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class OfferedRow:
    """An appliance on offer, and the names of it and of the offer."""

    offered: OfferedAppliance
    name: str
    offer_name: str


@dataclass(frozen=True, slots=True)
class Earning:
    """What a contract earns with a GPU model in a month."""

    contract_id: str | None
    offer_name: str
    customer_name: str
    gpu_model: str
    gpu_hours: float
    amount: Decimal


def offered_appliances(session: Session, tenant_id: str) -> Sequence[OfferedRow]:
    """Return appliances of a provider that are on offer now, by name."""
    statement = (
        select(OfferedAppliance, Appliance.name, Offer.name)
        .join(Appliance, Appliance.id == OfferedAppliance.appliance_id)
        .join(Offer, Offer.id == OfferedAppliance.offer_id)
        .where(OfferedAppliance.provider_id == tenant_id)
        .order_by(Appliance.name)
        .limit(MAX_SHOWN)
    )
    return [OfferedRow(*row) for row in session.execute(statement)]


def provider_contracts(session: Session, tenant_id: str) -> Sequence[Contract]:
    """Return contracts of a provider that have not ended, the newest first."""
    states = [state for state in ContractState if not state.is_final]
    statement = (
        select(Contract)
        .where(Contract.provider_id == tenant_id, Contract.state.in_(states))
        .order_by(Contract.created_at.desc(), Contract.id.desc())
        .limit(MAX_SHOWN)
    )
    return session.scalars(statement).all()


def earnings(session: Session, tenant_id: str, *, now: datetime) -> list[Earning]:
    """Return what each contract has earned this month, the largest first."""
    start, end = month_of(now)
    statement = (
        select(
            BillingLine.contract_id,
            BillingLine.gpu_model,
            func.coalesce(func.sum(BillingLine.gpu_milliseconds), 0),
            func.coalesce(func.sum(BillingLine.amount), 0),
        )
        .where(BillingLine.provider_id == tenant_id, BillingLine.at >= start, BillingLine.at < end)
        .group_by(BillingLine.contract_id, BillingLine.gpu_model)
    )
    contracts = {
        row.id: row
        for row in session.execute(
            select(Contract.id, Contract.offer_name, Contract.customer_name).where(
                Contract.provider_id == tenant_id
            )
        )
    }
    rows = []
    for contract_id, gpu_model, milliseconds, amount in session.execute(statement):
        contract = contracts.get(contract_id or "")
        rows.append(
            Earning(
                contract_id=contract_id if contract else None,
                offer_name=contract.offer_name if contract else "",
                customer_name=contract.customer_name if contract else "",
                gpu_model=gpu_model,
                gpu_hours=int(milliseconds) / MILLISECONDS_PER_HOUR,
                amount=as_amount(amount),
            )
        )
    return sorted(rows, key=lambda row: row.amount, reverse=True)
