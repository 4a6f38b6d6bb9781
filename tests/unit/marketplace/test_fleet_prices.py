"""The prices that fleet advice compares with: own lists, and offers of other providers."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.advice.figures import FleetFigures
from jobqueue.advice.rules import ModelPrices, Prices
from marketplace.catalogue import refresh
from marketplace.fleet_prices import fleet_prices
from marketplace.models import Offer
from marketplace.offers.service import set_offer_state
from marketplace.prices.service import PriceListRequest, PriceRow, create_price_list
from marketplace.states import OfferState
from marketplace.terms import HourlyPrice
from tenants.models import Tenant
from tests.cast import NOON, Cast, scope_of
from tests.conftest import Fill
from tests.unit.jobqueue.advice_builders import H100, HOUR, SHORT, figures, hourly, model
from tests.unit.jobqueue.builders import add_appliance
from tests.unit.marketplace.builders import admit_sides, publish, terms

NIGHT = HourlyPrice(days=(0,), from_hour=0, until_hour=6, price=Decimal(1))


def fill_market(session: Session, cast: Cast) -> str:
    """Two offers of H100 by acme: at EUR 2.50, and at EUR 3 but for Mondays until 6, at EUR 1."""
    admit_sides(session, cast)
    for name in ("dgx-01", "dgx-02"):
        add_appliance(session, cast.acme, name)
    publish(session, cast, "dgx-01", name="steady", terms=terms(price=Decimal("2.5")))
    special = terms(price=Decimal(3), hourly_prices=(NIGHT,))
    publish(session, cast, "dgx-02", name="night", terms=special)
    request = PriceListRequest(prices=[PriceRow("1.50", "H100")])
    create_price_list(session, scope_of(cast.charlie), request, now=NOON)
    refresh(session, now=NOON)
    return ""


@pytest.fixture(autouse=True)
def market(prefill: Callable[[Fill], str]) -> None:
    prefill(fill_market)


def prices(session: Session, tenant: Tenant, of: FleetFigures, *, is_on: bool = True) -> Prices:
    at = NOON + HOUR
    return fleet_prices(session, tenant.id, of, currency="EUR", has_market=is_on, now=at)


def test_the_lowest_price_is_that_of_the_short_hours(session: Session, cast: Cast) -> None:
    by_day = prices(session, cast.globex, figures(SHORT)).of(H100)
    assert by_day == ModelPrices(
        own=Decimal("1.5"), rent=Decimal("2.5"), median=Decimal("2.75"), offers=2
    )
    # The first hour of the two Mondays.
    monday = [1.0 if number % (7 * 24) == 0 else 0.0 for number in range(14 * 24)]
    night = prices(session, cast.globex, figures(model(H100, waiting=monday))).of(H100)
    assert night == replace(by_day, rent=Decimal(1))


def test_own_offers_are_not_rented(session: Session, cast: Cast) -> None:
    own = prices(session, cast.acme, figures(SHORT)).of(H100)
    assert own == ModelPrices(offered_gpus=16)


def test_what_is_not_on_offer_has_no_price(session: Session, cast: Cast) -> None:
    missing = model("H100", waiting=hourly(1))
    assert prices(session, cast.globex, figures(missing)).of("H100").offers == 2
    assert prices(session, cast.globex, figures(model("B200"))).of("B200") == ModelPrices()
    assert prices(session, cast.globex, figures(SHORT)).of("B200") == ModelPrices()
    for name in ("steady", "night"):
        offer = session.scalars(select(Offer).where(Offer.name == name)).one()
        set_offer_state(session, scope_of(cast.alice), offer.id, OfferState.PAUSED, now=NOON)
    assert prices(session, cast.globex, figures(SHORT)).of(H100).rent is None


def test_without_the_marketplace_only_own_prices_count(session: Session, cast: Cast) -> None:
    off = prices(session, cast.globex, figures(SHORT), is_on=False)
    assert (off.has_market, off.of(H100)) == (False, ModelPrices(own=Decimal("1.5")))
