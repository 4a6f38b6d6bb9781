"""`/market-account`: what a tenant is admitted to, its public name, and whom invoices are for."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from marketplace.accounts import account_of, request_admission, set_account
from marketplace.states import Side
from portal.context import current_scope, database, now, require_marketplace
from portal.forms.market import AccountForm
from portal.pages.common import Pages, changing
from tenants.permissions import Permission

pages = Pages("market_account", __name__, url_prefix="/market-account")
pages.before_request(require_marketplace)


@pages.form("")
def index() -> ResponseReturnValue:
    """Show the account; change it."""
    scope = current_scope()
    tenant_id = scope.require_tenant()
    with database() as session:
        account = account_of(session, tenant_id)
    form = AccountForm.of(account)
    if form.is_submitted():
        scope.require(Permission.MANAGE_BILLING)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                set_account(session, scope, form.values(), now=now())
            flash("Changes saved", "success")
            return redirect(url_for(".index"))
    text = render_template("market/account.html", account=account, form=form, Side=Side)
    return text, form.status


@pages.post("/<side>/request")
@changing(back=".index")
def ask(session: Session, side: str) -> str:
    """Ask the operator to admit the tenant as a provider or a customer."""
    if side not in list(Side):
        raise NotFoundError.of("side", side)
    request_admission(session, current_scope(), Side(side), now=now())
    return "The operator was asked to admit your tenant"
