"""`/provider`: the provider area: appliances on offer, offers, contracts, earnings, reputation."""

from decimal import Decimal

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.money import ZERO, cents
from marketplace.accounts import account_of
from marketplace.consequences.standing import standing_of
from marketplace.contracts.service import list_contracts
from marketplace.invoices.fees import fee_percent_of
from marketplace.models import Offer
from marketplace.offers.service import (
    change_offer,
    create_offer,
    get_offer,
    list_offers,
    set_offer_state,
)
from marketplace.states import OFFER_TRANSITIONS, USABLE, ContractState, OfferState, Side
from marketplace.verification.views import list_left_out
from portal.context import current_scope, database, now, portal, require_marketplace
from portal.forms.market import OfferForm, offer_data
from portal.pages.common import Pages, changing
from portal.presenters.contracts import monthly_lines
from portal.presenters.market import currency_here, month_of, price_grid
from portal.presenters.provider import (
    MAX_SHOWN,
    earnings,
    offered_appliances,
    provider_contracts,
)
from portal.presenters.reputation import reputation_page
from portal.query_string import asked_page
from tenants.fleet.appliances import appliance_names
from tenants.permissions import Permission

pages = Pages("provider", __name__, url_prefix="/provider")
pages.before_request(require_marketplace)

CALENDAR_HELP = (
    "When jobs may start, one line each; empty is always. Hours are in the time zone below. "
    "A closed line wins."
)
STATE_VERBS = {
    OfferState.PUBLISHED: "published",
    OfferState.PAUSED: "paused: it takes no new contracts",
    OfferState.WITHDRAWN: "withdrawn",
}


@pages.get("")
def index() -> ResponseReturnValue:
    """Show appliances on offer, offers, what waits for an answer, earnings and the reputation."""
    scope = current_scope()
    tenant_id = scope.require_tenant()
    with database() as session:
        account = account_of(session, tenant_id)
        offers = list_offers(session, scope, **asked_page())
        appliances = offered_appliances(session, tenant_id)
        contracts = provider_contracts(session, tenant_id)
        months = (
            monthly_lines(session, provider_id=tenant_id, now=now())
            if scope.allows(Permission.VIEW_BILLING)
            else None
        )
        standing = standing_of(session, tenant_id, now=now())
        left_out = list_left_out(
            session,
            scope,
            requires=portal().settings.marketplace_requires_verification,
            now=now(),
        )
    this_month = [row.total for row in months or () if row.start == month_of(now())[0]]
    return render_template(
        "market/provider.html",
        earned=cents(sum(this_month, ZERO)),
        account=account,
        offers=offers,
        appliances=appliances,
        max_shown=MAX_SHOWN,
        waiting=[row for row in contracts if row.state is ContractState.PROPOSED],
        active=[row for row in contracts if row.state in USABLE],
        months=months,
        standing=standing,
        left_out=left_out,
    )


@pages.form("/offers/new")
def add() -> ResponseReturnValue:
    """Add an offer."""
    return _save(None)


@pages.form("/offers/<offer_id>")
def edit(offer_id: str) -> ResponseReturnValue:
    """Show an offer; change it."""
    with database() as session:
        offer = get_offer(session, current_scope(), offer_id)
    return _save(offer)


@pages.post("/offers/<offer_id>/state")
@changing(back=".edit")
def change_state(session: Session, offer_id: str) -> str:
    """Publish, pause or withdraw an offer."""
    scope = current_scope()
    scope.require(Permission.MANAGE_OFFERS)
    offer = get_offer(session, scope, offer_id)
    text = request.form.get("state", "")
    if text not in list(OfferState):
        raise InvalidInputError(f"Unknown state {text[:50]!r}. Use {', '.join(OfferState)}.")
    state = OfferState(text)
    requires = portal().settings.marketplace_requires_verification
    set_offer_state(session, scope, offer_id, state, now=now(), requires_verification=requires)
    return f"{offer.name} {STATE_VERBS.get(state, state.value)}"


@pages.get("/contracts")
def contracts() -> ResponseReturnValue:
    """List the contracts with customers."""
    scope = current_scope()
    scope.require_tenant()
    with database() as session:
        page = list_contracts(session, scope, side=Side.PROVIDER, **asked_page())
    return render_template("market/contracts.html", page=page, side=Side.PROVIDER)


@pages.get("/earnings")
def show_earnings() -> ResponseReturnValue:
    """Show what the tenant has earned, by month, contract and GPU model."""
    scope = current_scope()
    tenant_id = scope.require_tenant()
    scope.require(Permission.VIEW_BILLING)
    with database() as session:
        months = monthly_lines(session, provider_id=tenant_id, now=now())
        rows = earnings(session, tenant_id, now=now())
        default = Decimal(str(portal().settings.marketplace_fee_percent))
        fee_percent = fee_percent_of(session, tenant_id, now(), default=default)
    return render_template(
        "market/earnings.html",
        months=months,
        rows=rows,
        fee_percent=fee_percent,
    )


@pages.get("/reputation")
def show_reputation() -> ResponseReturnValue:
    """Show the reputation of the tenant as a provider: its evidence, and what would raise it."""
    current_scope().require_tenant()
    return render_template(
        "market/reputation.html", is_own=True, back=url_for(".index"), **reputation_page()
    )


def _save(offer: Offer | None) -> ResponseReturnValue:
    scope = current_scope()
    tenant_id = scope.require_tenant()
    currency = currency_here()
    form = OfferForm(data=offer_data(offer) if offer is not None else {})
    if form.is_submitted():
        scope.require(Permission.MANAGE_OFFERS)
    with database() as session:
        account = account_of(session, tenant_id)
        form.list_appliances(appliance_names(session, scope.tenants))
    if form.validate_on_submit():
        with form.showing_errors():
            wanted = form.request(currency)
            with database() as session:
                if offer is None:
                    saved = create_offer(session, scope, wanted, now=now(), currency=currency)
                else:
                    saved = change_offer(
                        session,
                        scope,
                        offer.id,
                        wanted,
                        now=now(),
                        currency=currency,
                        requires_verification=portal().settings.marketplace_requires_verification,
                    )
            flash("Draft saved" if offer is None else "Changes saved", "success")
            return redirect(url_for(".edit", offer_id=saved.id))
    text = render_template(
        "market/offer_form.html",
        offer=offer,
        form=form,
        account=account,
        grid=None if offer is None else price_grid(offer.decoded_terms),
        next_states=[] if offer is None else sorted(OFFER_TRANSITIONS[offer.state]),
        OfferState=OfferState,
        currency=currency,
        calendar_help=CALENDAR_HELP,
    )
    return text, form.status
