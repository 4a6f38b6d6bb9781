"""Builders for tests of renting: grants of offers, and rented appliances as placement sees them."""

# ruff: noqa: ANN401 - builders pass any field on

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from jobqueue.placement.rentals import RentalNeed, RentalView
from jobqueue.placement.views import ApplianceView
from tenants.models import Appliance, Tenant
from tenants.models.rentals import Grant, OfferedAppliance
from tests.cast import NOON
from tests.unit.jobqueue.builders import appliance


def rental(offer: str = "pool", price: str = "2.50", **changes: Any) -> RentalView:
    """An open grant of an offer of Globex's."""
    fields: dict[str, Any] = {
        "contract_id": f"contract-{offer}",
        "provider_id": "globex",
        "offer_name": offer,
        "price": Decimal(price),
    }
    return RentalView(**(fields | changes))


def rented(name: str, grant: RentalView, **changes: Any) -> ApplianceView:
    """A rented appliance like those of `appliance`."""
    return replace(appliance(name, **changes), name=grant.title, rental=grant)


def paying(max_price: str = "10", **changes: Any) -> RentalNeed:
    """What a job asks that pays up to a price."""
    return RentalNeed(**({"max_price": Decimal(max_price)} | changes))


def offer(session: Session, appliances: Sequence[Appliance], *, name: str = "pool") -> None:
    """Put appliances of one provider on offer; the id of the offer is its name."""
    for row in appliances:
        offered = OfferedAppliance(
            appliance_id=row.id,
            provider_id=row.tenant_id,
            offer_id=name,
            is_open=True,
            price=Decimal("2.5"),
            refreshed_at=NOON,
        )
        session.add(offered)
    session.flush()


def grant(
    session: Session, customer: Tenant, provider: Tenant, *, name: str = "pool", **changes: Any
) -> Grant:
    """Let a customer use an offer for 2.50 an hour; the id of the contract names both."""
    fields: dict[str, Any] = {
        "contract_id": f"{name}-{customer.slug}",
        "tenant_id": customer.id,
        "provider_id": provider.id,
        "offer_id": name,
        "offer_name": name,
        "price": Decimal("2.5"),
        "refreshed_at": NOON - timedelta(minutes=1),
    }
    row = Grant(**(fields | changes))
    session.add(row)
    session.flush()
    return row
