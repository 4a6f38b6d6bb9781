"""`/billing/budgets`: what a tenant, a project or a user may spend in a month."""

from flask import flash, redirect, render_template, url_for
from flask.typing import ResponseReturnValue

from core.money import amount_text
from jobqueue.jobs.end_notices import receiver_names
from marketplace.budgets.models import Budget
from marketplace.budgets.service import (
    change_budget,
    create_budget,
    delete_budget,
    get_budget,
    list_budgets,
    target_choices,
)
from portal.context import current_scope, database, now, portal
from portal.forms.budgets import RENAMED, BudgetForm
from portal.pages.common import Pages
from portal.query_string import asked_page
from tenants.permissions import Permission
from tenants.tenants import tenant_names

pages = Pages("budgets", __name__, url_prefix="/billing/budgets")


@pages.form("")
def index() -> ResponseReturnValue:
    """List budgets; add one."""
    return _save(None)


@pages.form("/<budget_id>")
def edit(budget_id: str) -> ResponseReturnValue:
    """Change a budget."""
    with database() as session:
        budget = get_budget(session, current_scope(), budget_id)
    return _save(budget)


pages.acts("/<budget_id>/delete", delete_budget, "Budget deleted", name="remove")


def _save(budget: Budget | None) -> ResponseReturnValue:
    scope = current_scope()
    scope.require(Permission.VIEW_BILLING)
    form = BudgetForm(data=_values(budget) if budget else None)
    if form.is_submitted():
        scope.require(Permission.MANAGE_BILLING)
        scope.require_tenant()
    if scope.tenant_id is not None and scope.allows(Permission.MANAGE_BILLING):
        with database() as session:
            receivers = receiver_names(session, scope.tenant_id)
            form.offer(target_choices(session, scope), receivers, budget)
    if form.validate_on_submit():
        with form.showing_errors(renamed=RENAMED):
            with database() as session:
                if budget is None:
                    create_budget(session, scope, form.request(), now=now())
                else:
                    change_budget(session, scope, budget.id, form.request())
            flash("Budget saved. It is evaluated within a minute.", "success")
            return redirect(url_for(".index"))
    with database() as session:
        page = list_budgets(session, scope, **asked_page())
        tenants = tenant_names(session, (row.tenant_id for row in page.items))
    text = render_template(
        "billing/budgets.html",
        page=page,
        tenants=tenants,
        budget=budget,
        form=form,
        currency=portal().settings.billing_currency,
    )
    return text, form.status


def _values(budget: Budget) -> dict[str, object]:
    return {
        "for_whom": BudgetForm.value_of(budget),
        "amount": amount_text(budget.amount),
        "action": budget.action.value,
        "grace_seconds": float(budget.grace_seconds),
        "notify": budget.notify,
    }
