"""Builders for tests of costs and budgets: lines, contracts with a price, attempts under them."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from core.ids import new_id
from marketplace.budgets.models import Budget, BudgetTarget
from marketplace.budgets.requests import BudgetRequest
from marketplace.budgets.service import create_budget
from marketplace.charges.models import BillingLine, LineKind
from marketplace.models import Contract, ContractVersion
from marketplace.states import ContractState, Side, VersionState
from marketplace.terms import Terms, terms_hash
from tenants.models import Tenant, User
from tenants.models.rentals import Grant
from tests.cast import NOON, scope_of

MARCH = datetime.fromisoformat("2026-03-01T00:00:00+00:00")
MODEL = "NVIDIA H100 80GB HBM3"


def add_line(
    session: Session, tenant: Tenant, amount: str, at: datetime = NOON, **changes: Any
) -> BillingLine:
    """Add a billing line of a tenant's own use."""
    fields: dict[str, Any] = {
        "id": new_id(),
        "tenant_id": tenant.id,
        "kind": LineKind.USAGE,
        "at": at,
        "recorded_at": at,
        "gpu_model": MODEL,
        "amount": Decimal(amount),
    }
    line = BillingLine(**(fields | changes))
    session.add(line)
    session.flush()
    return line


def add_contract(
    session: Session, provider: Tenant, customer: Tenant, price: str, **changes: Any
) -> Contract:
    """Add an active contract from March on, with its grant."""
    terms = Terms(currency="EUR", price=Decimal(price), **changes)
    contract = Contract(
        offer_id=new_id(),
        offer_name="H100 in Oslo",
        provider_id=provider.id,
        provider_name=provider.name,
        customer_id=customer.id,
        customer_name=customer.name,
        state=ContractState.ACTIVE,
        created_at=MARCH,
        starts_at=MARCH,
    )
    contract.versions.append(
        ContractVersion(
            number=1,
            state=VersionState.ACCEPTED,
            terms=msgspec.to_builtins(terms),
            terms_hash=terms_hash(terms),
            proposed_side=Side.PROVIDER,
            proposed_by="provider@example.com",
            proposed_at=MARCH,
            applies_from=MARCH,
        )
    )
    session.add(contract)
    session.flush()
    session.add(
        Grant(
            contract_id=contract.id,
            tenant_id=customer.id,
            provider_id=provider.id,
            offer_id=contract.offer_id,
            offer_name=contract.offer_name,
            price=Decimal(price),
            refreshed_at=MARCH,
        )
    )
    session.flush()
    return contract


def add_budget(session: Session, user: User, amount: str, **changes: Any) -> Budget:
    """Add a budget of a user's tenant, or with other fields."""
    request = BudgetRequest(**({"target": BudgetTarget.TENANT, "amount": amount} | changes))
    return create_budget(session, scope_of(user), request, now=NOON - timedelta(hours=12))
