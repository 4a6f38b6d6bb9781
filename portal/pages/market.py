"""`/market`: the public site of the marketplace: offers, free capacity, prices, terms, status."""

from typing import Any

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from core.money import cents
from marketplace.catalogue import published_offer
from marketplace.offers.calendar import windows_of
from marketplace.reputation.service import public_dimensions
from portal.context import database, now, portal, require_marketplace
from portal.presenters.market import (
    SORTS,
    Catalogue,
    format_window,
    money,
    percent,
    price_grid,
    prices_of,
    term_rows,
)
from portal.presenters.reputation import DIMENSION_TEXTS
from portal.presenters.service_status import service_status

pages = Blueprint("market", __name__, url_prefix="/market")
pages.before_request(require_marketplace)
pages.add_app_template_filter(money, "money")
pages.add_app_template_filter(percent, "percent")
pages.add_app_template_filter(cents, "cents")
pages.add_app_template_global(prices_of)


@pages.app_context_processor
def _settings() -> dict[str, Any]:
    settings = portal().settings
    return {
        "has_marketplace": settings.marketplace,
        "sorts": SORTS,
        "has_sign_up": settings.marketplace and settings.marketplace_sign_up,
    }


@pages.get("")
def index() -> ResponseReturnValue:
    """Show what is on offer, with live free capacity and prices."""
    with database() as session:
        catalogue = Catalogue.read(session)
    return render_template("market/index.html", catalogue=catalogue)


@pages.get("/offers/<offer_id>")
def show(offer_id: str) -> ResponseReturnValue:
    """Show an offer with its terms and what is free."""
    with database() as session:
        offer = published_offer(session, offer_id)
        reputation = public_dimensions(session, offer.provider_id)
    return render_template(
        "market/show.html",
        offer=offer,
        reputation=reputation,
        reputation_texts=DIMENSION_TEXTS,
        terms=offer.terms,
        rows=term_rows(offer.terms),
        grid=price_grid(offer.terms),
        windows=[format_window(window) for window in windows_of(offer.calendar)],
    )


@pages.get("/terms")
def terms() -> ResponseReturnValue:
    """Show how the marketplace works, and where the operator's terms of use are."""
    settings = portal().settings
    return render_template("market/terms.html", terms_url=settings.marketplace_terms_url)


@pages.get("/status")
def status() -> ResponseReturnValue:
    """Show whether the portal works, and its incidents in the last 90 days."""
    with database() as session:
        current = service_status(session, portal().store, now=now())
    return render_template("market/status.html", status=current)


@pages.get("/api")
def api_reference() -> ResponseReturnValue:
    """Show the reference of the public API."""
    return render_template("market/reference.html")
