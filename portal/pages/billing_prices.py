"""`/billing/prices`: what a GPU of the tenant's own appliances costs for an hour."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from marketplace.prices.service import (
    create_price_list,
    delete_price_list,
    list_price_lists,
    read_lists,
    valid_list,
)
from portal.context import current_scope, database, now, portal
from portal.forms.price_lists import PriceListForm
from portal.pages.common import Pages
from tenants.permissions import Permission

pages = Pages("price_lists", __name__, url_prefix="/billing/prices")


@pages.form("")
def index() -> ResponseReturnValue:
    """List price lists; add one."""
    form, scope = PriceListForm(), current_scope()
    scope.require(Permission.VIEW_BILLING)
    if form.is_submitted():
        scope.require(Permission.MANAGE_BILLING)
    if form.validate_on_submit():
        with form.showing_errors():
            with database() as session:
                added = create_price_list(session, scope, form.request(), now=now())
            flash(f"{added.name} added", "success")
            return redirect(url_for(".index"))
    with database() as session:
        lists = list_price_lists(session, scope)
        owner = scope.tenant_id or ""
        valid = valid_list(read_lists(session, {owner}), owner, now())
    text = render_template(
        "billing/prices.html",
        lists=lists,
        valid_id=valid.id if valid else "",
        tenant_id=scope.tenant_id,
        form=form,
        currency=portal().settings.billing_currency,
    )
    return text, form.status


pages.acts("/<price_list_id>/delete", delete_price_list, "Price list deleted", name="remove")
