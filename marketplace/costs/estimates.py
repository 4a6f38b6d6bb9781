"""What a new job costs an hour: on own appliances, and on those of contracts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.money import cents, format_amount
from jobqueue.dispatch.appliance_views import matching_models
from marketplace.costs.unbilled import Pricing
from tenants.fleet.states import in_service
from tenants.models import Appliance
from tenants.models.appliances import decode_inventory
from tenants.models.rentals import Grant, OfferedAppliance

MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What GPUs cost an hour; None where no price is known.

    Attributes:
        lowest: on own appliances, of the cheapest GPU model that fits.
        highest: of the most expensive one.
        rented: by the cheapest contract that is open now.
        offer_name: of that contract.
    """

    lowest: Decimal | None = None
    highest: Decimal | None = None
    rented: Decimal | None = None
    offer_name: str = ""


def estimate(
    session: Session,
    tenant_id: str,
    *,
    gpus: Decimal,
    gpu_models: Sequence[str] = (),
    appliance: str = "",
    max_price: Decimal | None = None,
    now: datetime,
) -> Estimate:
    """Return what GPUs cost a tenant for an hour from now.

    Args:
        session: the session.
        tenant_id: who pays.
        gpus: how many, with parts of GPUs.
        gpu_models: words of which one must be in the model; empty for any.
        appliance: the name or id of an own appliance; "" for any.
        max_price: of a rented GPU for an hour; 0 rents none, None is no limit.
        now: the time.
    """
    pricing = Pricing(session)
    models = _matching(gpu_models, _own_models(session, tenant_id, appliance))
    prices = [
        price
        for model in models
        if (price := pricing.price(tenant_id, None, model, now)) is not None
    ]
    grant = None if appliance else _cheapest(session, tenant_id, gpu_models, max_price)
    return Estimate(
        lowest=min(prices) * gpus if prices else None,
        highest=max(prices) * gpus if prices else None,
        rented=grant.price * gpus if grant else None,
        offer_name=grant.offer_name if grant else "",
    )


def estimate_text(cost: Estimate, currency: str, *, unit: str = "an hour") -> str:
    """Return an estimate as a sentence; "" without a price."""
    rented = ""
    if cost.rented is not None:
        rented = f"from {_shown(cost.rented, currency)} {unit}"
    if cost.lowest is None or cost.highest is None:
        return f"F{rented[1:]} on rented appliances ({cost.offer_name})." if rented else ""
    low, high = _shown(cost.lowest, currency), _shown(cost.highest, currency)
    spread = low if low == high else f"{low} to {high.removeprefix(currency).strip()}"
    own = f"About {spread} {unit} on own appliances"
    return f"{own}, rented {rented} ({cost.offer_name})." if rented else f"{own}."


def _shown(amount: Decimal, currency: str) -> str:
    return format_amount(cents(amount), currency)


def _own_models(session: Session, tenant_id: str, appliance: str) -> set[str]:
    statement = select(Appliance).where(Appliance.tenant_id == tenant_id, in_service())
    if appliance:
        named = (Appliance.id == appliance) | (Appliance.name == appliance)
        inventories = session.scalars(
            statement.where(named).with_only_columns(Appliance.inventory)
        ).all()
        return {gpu.model for stored in inventories for gpu in decode_inventory(stored).gpus}
    models = statement.with_only_columns(Appliance.gpu_model).distinct()
    return {model for joined in session.scalars(models) for model in joined.split(", ") if model}


def _cheapest(
    session: Session, tenant_id: str, words: Sequence[str], max_price: Decimal | None
) -> Grant | None:
    """Return the open grant with the lowest price that covers a GPU of these models."""
    statement = (
        select(Grant, OfferedAppliance.gpu_model)
        .join(OfferedAppliance, OfferedAppliance.offer_id == Grant.offer_id)
        .where(Grant.tenant_id == tenant_id, Grant.is_open.is_(True))
        .distinct()
        .order_by(Grant.price, Grant.contract_id)
    )
    if max_price is not None:
        statement = statement.where(Grant.price <= max_price)
    for grant, model in session.execute(statement):
        if _matching(words, {model}):
            return grant
    return None


def _matching(words: Sequence[str], models: set[str]) -> set[str]:
    return set(matching_models(words, models)) & models if words else models
