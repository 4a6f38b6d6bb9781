"""Prices that fleet advice compares with: the tenant's own, and those of offers of others."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from statistics import median

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.money import ZERO, exact
from jobqueue.advice.figures import FleetFigures
from jobqueue.advice.rules import ModelPrices, Prices, short_slots
from jobqueue.dispatch.appliance_views import matching_models
from jobqueue.usage.ledger import floor_hour
from marketplace.catalogue import listed_offers
from marketplace.models import Offer
from marketplace.prices.service import price_of
from marketplace.terms import Terms
from tenants.models.rentals import OfferedAppliance

# Of each model, the cheapest now.
MAX_OFFERS = 100


def fleet_prices(
    session: Session,
    tenant_id: str,
    figures: FleetFigures,
    *,
    currency: str,
    has_market: bool,
    now: datetime,
) -> Prices:
    """Return the prices of the GPU models of a tenant's figures.

    Args:
        session: the session.
        tenant_id: the owner; its own offers are left out.
        figures: with the models, and the hours in which they are short.
        currency: of the portal.
        has_market: whether the marketplace is on.
        now: the time.
    """
    slots = short_slots(figures)
    names = [row.gpu_model for row in figures.models]
    offers = _offers(session, tenant_id, currency) if has_market else {}
    own_offered = _own_offered(session, tenant_id) if has_market else Counter[str]()
    models: dict[str, ModelPrices] = {}
    for name in names:
        # Where no own GPU has the model, the name is what jobs asked for.
        matching = matching_models(name.split(", "), offers) if name not in offers else {name}
        terms = [listed for model in matching for listed in offers.get(model, ())][:MAX_OFFERS]
        now_prices = [listed.net_price_at(now) for listed in terms]
        models[name] = ModelPrices(
            own=price_of(session, tenant_id, name, now),
            rent=min((_mean(listed, slots.get(name, ()), now) for listed in terms), default=None),
            median=median(now_prices) if now_prices else None,
            offers=len(terms),
            offered_gpus=own_offered[name],
        )
    return Prices(currency=currency, has_market=has_market, models=models)


def _offers(session: Session, tenant_id: str, currency: str) -> Mapping[str, Sequence[Terms]]:
    """Return the terms of what others offer, by GPU model, the cheapest now first."""
    lowest = func.min(OfferedAppliance.price)
    statement = (
        select(OfferedAppliance.gpu_model, OfferedAppliance.offer_id)
        .where(
            OfferedAppliance.provider_id != tenant_id,
            OfferedAppliance.offer_id.in_(listed_offers()),
        )
        .group_by(OfferedAppliance.gpu_model, OfferedAppliance.offer_id)
        .order_by(lowest, OfferedAppliance.offer_id)
    )
    by_model: dict[str, list[Terms]] = defaultdict(list)
    for model, offer_id in session.execute(statement).all():
        offer = session.get(Offer, offer_id) if len(by_model[model]) < MAX_OFFERS else None
        if offer is not None and (terms := offer.decoded_terms).currency == currency:
            by_model[model].append(terms)
    return by_model


def _own_offered(session: Session, tenant_id: str) -> Counter[str]:
    """Return how many GPUs a tenant offers, by model."""
    statement = (
        select(OfferedAppliance.gpu_model, func.sum(OfferedAppliance.gpu_count))
        .where(OfferedAppliance.provider_id == tenant_id)
        .group_by(OfferedAppliance.gpu_model)
    )
    return Counter({model: int(gpus) for model, gpus in session.execute(statement)})


def _mean(terms: Terms, slots: Sequence[int], now: datetime) -> Decimal:
    """Return the mean price of hours of the week in UTC, from Monday on; that of now without."""
    midnight = floor_hour(now).replace(hour=0)
    monday = midnight - timedelta(days=now.weekday())
    prices = [terms.net_price_at(monday + timedelta(hours=slot)) for slot in slots]
    return exact(sum(prices, ZERO) / len(prices)) if prices else terms.net_price_at(now)
