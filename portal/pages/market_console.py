"""`/console/market`: accounts to admit, contracts and what the platform earns, for operators."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from marketplace.accounts import admit, get_account, list_accounts, set_charges
from marketplace.consequences.service import open_appeals
from marketplace.contracts.service import list_contracts
from marketplace.states import AccountState, Side
from portal.context import current_scope, database, mail_url, now, portal, require_marketplace
from portal.forms.market import ChargesForm
from portal.pages.common import Pages, changing
from portal.presenters.contracts import platform_turnover
from portal.presenters.reputation import reputation_page
from portal.query_string import asked_page
from tenants.permissions import Permission
from tenants.tenants import get_tenant

pages = Pages("market_console", __name__, url_prefix="/console/market")
pages.before_request(require_marketplace)

CHARGES = ("fee_percent", "tax_percent", "is_prepaid")
# What an operator may decide, by what it is called in a form.
DECISIONS = {
    "admit": (AccountState.ACTIVE, "admitted"),
    "suspend": (AccountState.SUSPENDED, "suspended"),
    "decline": (AccountState.NONE, "declined"),
}


@pages.get("")
def index() -> ResponseReturnValue:
    """Show accounts, those that wait first, contracts and the turnover."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        accounts = list_accounts(session, scope, **asked_page())
        contracts = list_contracts(session, scope, **asked_page("contracts_page"))
        months = platform_turnover(session, now=now())
        waiting = open_appeals(session)
    return render_template(
        "market/console.html",
        accounts=accounts,
        contracts=contracts,
        months=months,
        open_appeals=waiting,
        default_fee_percent=portal().settings.marketplace_fee_percent,
        sides=list(Side),
    )


@pages.form("/accounts/<tenant_id>")
def account(tenant_id: str) -> ResponseReturnValue:
    """Show an account; change its fee, its tax and whether it is prepaid."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        shown = get_account(session, scope, tenant_id)
        tenant = get_tenant(session, scope, tenant_id)
    form = ChargesForm(data={name: getattr(shown, name) for name in CHARGES})
    if form.validate_on_submit():
        with form.showing_errors():
            values = {name: form[name].data for name in CHARGES}
            with database() as session:
                set_charges(session, scope, tenant_id, values, now=now())
            flash("Changes saved", "success")
            return redirect(url_for(".account", tenant_id=tenant_id))
    settings = portal().settings
    text = render_template(
        "market/console_account.html",
        account=shown,
        tenant=tenant,
        form=form,
        fee_percent=settings.marketplace_fee_percent,
        tax_percent=settings.tax_percent,
        sides=list(Side),
    )
    return text, form.status


@pages.get("/accounts/<tenant_id>/reputation")
def show_reputation(tenant_id: str) -> ResponseReturnValue:
    """Show the reputation of a provider with its evidence."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    with database() as session:
        shown = get_account(session, scope, tenant_id)
        tenant = get_tenant(session, scope, tenant_id)
    return render_template(
        "market/reputation.html",
        is_own=False,
        name=shown.public_name or tenant.name,
        back=url_for(".account", tenant_id=tenant_id),
        **reputation_page(tenant_id),
    )


@pages.post("/<tenant_id>/<side>/<decision>")
@changing(back=".index")
def decide(session: Session, tenant_id: str, side: str, decision: str) -> str:
    """Admit or suspend a tenant as a provider or a customer."""
    scope = current_scope()
    scope.require(Permission.MANAGE_TENANTS)
    if side not in list(Side) or decision not in DECISIONS:
        raise NotFoundError.of("decision", f"{side}/{decision}")
    state, verb = DECISIONS[decision]
    changed = admit(session, scope, tenant_id, Side(side), state, now=now(), mail_url=mail_url())
    return f"{changed.public_name} {verb} as a {side}"
