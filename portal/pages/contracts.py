"""`/contracts/ID`: a contract as its provider, its customer and operators see it."""

from contextlib import suppress
from datetime import timedelta

from flask import flash, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import ConflictError
from marketplace.contracts.scope import side_of
from marketplace.contracts.service import (
    MAX_REASON_LENGTH,
    accept_version,
    decline_version,
    end_contract,
    get_contract,
    give_notice,
    propose_version,
    withdraw_version,
)
from marketplace.models import Contract, Offer
from marketplace.reputation.opinions import months_to_rate, ratings_of
from marketplace.reputation.opinions import rate as rate_contract
from marketplace.service_levels.service import breaches_of, month_so_far
from marketplace.states import ContractState, Side, VersionState
from portal.context import current_scope, database, mail_url, now, portal, require_marketplace
from portal.forms.market import ProposalForm, RatingForm, terms_data
from portal.pages.common import Pages, changing
from portal.presenters.contracts import monthly_lines, version_rows
from portal.presenters.market import currency_here, price_grid, term_rows
from portal.query_string import ignore_value
from tenants.permissions import Permission
from timeseries.store import StoreUnavailableError

pages = Pages("contracts", __name__, url_prefix="/contracts")
pages.before_request(require_marketplace)

BREACH_DAYS = timedelta(days=90)


@pages.get("/<contract_id>")
def show(contract_id: str) -> ResponseReturnValue:
    """Show a contract: its terms, versions, breaches and what it costs."""
    scope, at = current_scope(), now()
    with database() as session:
        contract = get_contract(session, scope, contract_id)
        offer = session.get(Offer, contract.offer_id)
        breaches = breaches_of(session, contract, since=at - BREACH_DAYS, until=at)
        months = (
            monthly_lines(session, contract.id) if scope.allows(Permission.VIEW_BILLING) else None
        )
        side = side_of(contract, scope)
        is_customer = side is Side.CUSTOMER
        ratings = ratings_of(session, scope, contract_id) if is_customer else []
        may_rate = (
            is_customer
            and scope.allows(Permission.SUBMIT_JOBS)
            and bool(months_to_rate(session, contract, now=at))
        )
    measured = None
    with suppress(StoreUnavailableError):
        measured = month_so_far(portal().sessions, portal().store, contract, now=at)
    terms = contract.terms_at(at) or contract.versions[-1].decoded_terms
    return render_template(
        "market/contract.html",
        contract=contract,
        side=side,
        may_change=_may_change(side),
        terms=terms,
        rows=term_rows(terms),
        grid=price_grid(terms),
        versions=version_rows(contract, None if offer is None else offer.decoded_terms),
        open_version=next(
            (row for row in contract.versions if row.state is VersionState.PROPOSED), None
        ),
        breaches=breaches,
        measured=measured,
        ratings=ratings,
        may_rate=may_rate,
        months=months,
        is_over=contract.ends_at is not None and contract.ends_at <= at,
        ContractState=ContractState,
    )


@pages.form("/<contract_id>/propose")
def propose(contract_id: str) -> ResponseReturnValue:
    """Propose a new version of the terms."""
    scope = current_scope()
    with database() as session:
        contract = get_contract(session, scope, contract_id)
    _require(contract)
    terms = contract.terms_at(now()) or contract.versions[-1].decoded_terms
    form = ProposalForm(data=terms_data(terms))
    other = contract.customer_name
    if side_of(contract, scope) is Side.CUSTOMER:
        other = contract.provider_name
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                propose_version(
                    session,
                    scope,
                    contract_id,
                    form.terms(currency_here()),
                    form.note.data or "",
                    now=now(),
                    mail_url=mail_url(),
                )
            flash(f"Proposal sent to {other}", "success")
            return redirect(url_for(".show", contract_id=contract_id))
    text = render_template(
        "market/propose.html",
        currency=currency_here(),
        form=form,
        title=f"Propose new terms for {contract.offer_name}",
        lead=f"The present terms apply until {other} accepts the new ones.",
        back=url_for(".show", contract_id=contract_id),
    )
    return text, form.status


@pages.post("/<contract_id>/versions/<int:number>/accept")
@changing(back=".show")
def accept(session: Session, contract_id: str, number: int) -> str:
    """Accept the terms that the other side proposed."""
    scope = current_scope()
    _require(get_contract(session, scope, contract_id))
    accepted = request.form.get("terms_hash", "")
    accept_version(
        session, scope, contract_id, number, terms_hash=accepted, now=now(), mail_url=mail_url()
    )
    return f"Version {number} accepted"


@pages.post("/<contract_id>/versions/<int:number>/decline")
@changing(back=".show")
def decline(session: Session, contract_id: str, number: int) -> str:
    """Decline the terms that the other side proposed."""
    _require(get_contract(session, current_scope(), contract_id))
    decline_version(session, current_scope(), contract_id, number, now=now(), mail_url=mail_url())
    return f"Version {number} declined"


@pages.post("/<contract_id>/versions/<int:number>/withdraw")
@changing(back=".show")
def withdraw(session: Session, contract_id: str, number: int) -> str:
    """Withdraw terms that this side proposed."""
    _require(get_contract(session, current_scope(), contract_id))
    withdraw_version(session, current_scope(), contract_id, number, now=now(), mail_url=mail_url())
    return f"Version {number} withdrawn"


@pages.post("/<contract_id>/notice")
@changing(back=".show")
def notice(session: Session, contract_id: str) -> str:
    """Give notice."""
    _require(get_contract(session, current_scope(), contract_id))
    give_notice(session, current_scope(), contract_id, now=now(), mail_url=mail_url())
    return "Notice given"


@pages.post("/<contract_id>/end")
@changing(back=".show")
def end(session: Session, contract_id: str) -> str:
    """End a contract after its notice; operators at once, with a reason."""
    _require(get_contract(session, current_scope(), contract_id))
    reason = request.form.get("reason", "")
    if side_of(get_contract(session, current_scope(), contract_id), current_scope()) is None:
        _check_reason(reason)
    end_contract(
        session, current_scope(), contract_id, now=now(), reason=reason, mail_url=mail_url()
    )
    return "Contract ended"


@pages.form("/<contract_id>/rate")
def rate(contract_id: str) -> ResponseReturnValue:
    """Rate the provider of a contract, or change the rating of a month."""
    scope = current_scope()
    scope.require(Permission.SUBMIT_JOBS)
    with database() as session:
        contract = get_contract(session, scope, contract_id)
        ratings = {rating.month: rating for rating in ratings_of(session, scope, contract_id)}
        months = months_to_rate(session, contract, now=now())
    asked = request.args.get("month", "")
    if asked and asked not in months:
        ignore_value("month", asked, f"Use {' or '.join(months) or 'none yet'}.")
    month = asked if asked in months else next(iter(months), "")
    rating = ratings.get(month)
    form = RatingForm(
        data={
            "month": month,
            "stars": str(rating.stars) if rating else "",
            "comment": rating.comment if rating else "",
        }
    )
    form.list_months(months)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                rate_contract(session, scope, contract_id, form.rating(), now=now())
            flash("Rating saved. Thank you.", "success")
            return redirect(url_for(".show", contract_id=contract_id))
    return render_template("market/rate.html", contract=contract, form=form), form.status


def _check_reason(reason: str) -> None:
    """Ask for a reason with a message on the page, not with an error page."""
    if not 1 <= len(reason.strip()) <= MAX_REASON_LENGTH:
        raise ConflictError(
            f"Enter a reason of 1 to {MAX_REASON_LENGTH} characters; both sides see it."
        )


def _may_change(side: Side | None) -> bool:
    needed = {
        Side.PROVIDER: Permission.MANAGE_OFFERS,
        Side.CUSTOMER: Permission.RENT,
        None: Permission.MANAGE_TENANTS,
    }[side]
    return current_scope().allows(needed)


def _require(contract: Contract) -> None:
    side = side_of(contract, current_scope())
    if side is None:
        current_scope().require(Permission.MANAGE_TENANTS)
    else:
        current_scope().require(
            Permission.MANAGE_OFFERS if side is Side.PROVIDER else Permission.RENT
        )
