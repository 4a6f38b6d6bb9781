"""`/billing/budgets`: what a tenant, a project or a user may spend in a month."""

from marshmallow import fields

from marketplace.budgets.models import Budget
from marketplace.budgets.requests import BudgetRequest
from marketplace.budgets.service import (
    BUDGET_SORTS,
    change_budget,
    create_budget,
    delete_budget,
    get_budget,
    list_budgets,
)
from portal.api.billing_schemas import amount_field
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query
from portal.api.spec_schemas import request_schema, response_schema
from tenants.permissions import Permission

budgets = APIBlueprint(
    "Budgets",
    "/billing/budgets",
    "What a tenant, a project or a user may spend in a month, and what happens then.",
    reads=Permission.VIEW_BILLING,
    changes=Permission.MANAGE_BILLING,
)


class BudgetRequestSchema(request_schema(BudgetRequest)):  # type: ignore[misc] # a class made at run time
    """A new budget, or the replacement of one."""


class BudgetSchema(response_schema(BudgetRequest)):  # type: ignore[misc] # a class made at run time
    """A budget, with what is spent of it as of its last evaluation, at most a minute ago."""

    id = fields.String()
    tenant_id = fields.String()
    target_name = fields.String(**about("The name of the tenant or project, or the email address."))
    amount = amount_field("For a calendar month in UTC, before taxes.")
    spent = amount_field("In the month of `period_at`, so far.")
    forecast = amount_field("What the month comes to at the rate of the last seven days.")
    percent = fields.Float(**about("How much of it is spent."))
    level_percent = fields.Integer(**about("The highest warning of the month: 0, 50, 80 or 100."))
    period_at = instant(**about("Null until its first evaluation."))
    reached_at = instant(**about("When 100 % was first seen."))
    evaluated_at = instant()
    created_at = instant()


objects = Objects(
    budgets,
    "/<budget_id>",
    read=get_budget,
    answer=BudgetSchema,
    model=Budget,
    # Without what changes with the time.
    etag=BudgetSchema(
        exclude=(
            *("spent", "forecast", "percent", "level_percent"),
            *("period_at", "reached_at", "evaluated_at", "target_name"),
        )
    ),
    body=BudgetRequestSchema,
    request=BudgetRequest,
)
objects.lists(
    "List budgets: that of the tenant, then those of projects and users.",
    list_budgets,
    query=page_query(BUDGET_SORTS, default=""),
)
objects.creates(
    "Create a budget.\n\nIt counts all of the month, from its beginning.", create_budget
)
objects.shows("Return a budget.")
objects.replaces(
    "Replace a budget.\n\nIt warns anew, and holds nothing until it is evaluated again.",
    change_budget,
)
objects.deletes("Delete a budget; what it held may start.", delete_budget)
