"""`/rent`: the customer area: the catalogue, offers to take, and contracts with providers."""

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from core.errors import ConflictError
from marketplace.accounts import account_of
from marketplace.catalogue import published_offer
from marketplace.contracts.service import list_contracts, propose_contract, take_offer
from marketplace.offers.calendar import windows_of
from marketplace.reputation.service import public_dimensions
from marketplace.states import AccountState, ContractState, Side
from portal.context import current_scope, database, mail_url, now, require_marketplace
from portal.forms.market import ProposalForm, terms_data
from portal.pages.common import Pages
from portal.presenters.contracts import open_contracts
from portal.presenters.market import (
    Catalogue,
    currency_here,
    format_window,
    price_grid,
    term_rows,
)
from portal.presenters.reputation import DIMENSION_TEXTS
from portal.query_string import asked_page
from tenants.permissions import Permission

pages = Pages("rent", __name__, url_prefix="/rent")
pages.before_request(require_marketplace)


@pages.get("")
def index() -> ResponseReturnValue:
    """Show what is on offer, and what the tenant rents."""
    scope = current_scope()
    tenant_id = scope.require_tenant()
    with database() as session:
        catalogue = Catalogue.read(session)
        state = account_of(session, tenant_id).customer_state
        contracts = open_contracts(session, tenant_id)
    return render_template(
        "market/rent.html", catalogue=catalogue, account_state=state, contracts=contracts
    )


@pages.get("/contracts")
def contracts() -> ResponseReturnValue:
    """List the contracts with providers."""
    scope = current_scope()
    scope.require_tenant()
    with database() as session:
        page = list_contracts(session, scope, side=Side.CUSTOMER, **asked_page())
    return render_template("market/contracts.html", page=page, side=Side.CUSTOMER)


@pages.get("/offers/<offer_id>")
def show(offer_id: str) -> ResponseReturnValue:
    """Show an offer with its terms, to be accepted."""
    scope = current_scope()
    tenant_id = scope.require_tenant()
    with database() as session:
        offer = published_offer(session, offer_id)
        state = account_of(session, tenant_id).customer_state
        contract = open_contracts(session, tenant_id).get(offer_id)
        is_own = offer.provider_id == tenant_id
        reputation = public_dimensions(session, offer.provider_id)
    return render_template(
        "market/offer.html",
        offer=offer,
        terms=offer.terms,
        rows=term_rows(offer.terms),
        grid=price_grid(offer.terms),
        windows=[format_window(window) for window in windows_of(offer.calendar)],
        contract=contract,
        is_admitted=state is AccountState.ACTIVE,
        is_own=is_own,
        reputation=reputation,
        reputation_texts=DIMENSION_TEXTS,
    )


@pages.post("/offers/<offer_id>/take")
def take(offer_id: str) -> ResponseReturnValue:
    """Accept the terms of an offer."""
    scope = current_scope()
    scope.require(Permission.RENT)
    accepted = request.form.get("terms_hash", "")
    try:
        with database() as session:
            contract = take_offer(
                session,
                scope,
                offer_id,
                terms_hash=accepted,
                now=now(),
                mail_url=mail_url(),
            )
    except ConflictError as error:
        flash(error.message, "warning")
        return redirect(url_for(".show", offer_id=offer_id))
    flash(
        "The contract is active. Jobs can run on the offer from now on."
        if contract.state is ContractState.ACTIVE
        else "The provider was asked to approve the contract.",
        "success",
    )
    return redirect(url_for("contracts.show", contract_id=contract.id))


@pages.form("/offers/<offer_id>/propose")
def propose(offer_id: str) -> ResponseReturnValue:
    """Propose other terms than an offer has."""
    scope = current_scope()
    scope.require(Permission.RENT)
    with database() as session:
        offer = published_offer(session, offer_id)
    form = ProposalForm(data=terms_data(offer.terms))
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                contract = propose_contract(
                    session,
                    scope,
                    offer_id,
                    form.terms(currency_here()),
                    form.note.data or "",
                    now=now(),
                    mail_url=mail_url(),
                )
            flash(f"Proposal sent to {offer.provider_name}", "success")
            return redirect(url_for("contracts.show", contract_id=contract.id))
    text = render_template(
        "market/propose.html",
        currency=currency_here(),
        form=form,
        title=f"Propose terms for {offer.name}",
        lead=f"{offer.provider_name} accepts or declines them, or proposes other terms.",
        back=url_for(".show", offer_id=offer_id),
    )
    return text, form.status
