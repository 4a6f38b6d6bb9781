"""`/billing/costs`: what GPU time costs, and what it would cost."""

from dataclasses import asdict
from datetime import timedelta
from decimal import Decimal
from typing import Any

from marshmallow import Schema, ValidationError, fields, validate

from core.errors import InvalidInputError
from core.money import ZERO, parse_amount
from core.paging import Page
from jobqueue.usage.measuring import Period
from marketplace.budgets.spending import month_of
from marketplace.costs.estimates import MAX_GPUS, estimate, estimate_text
from marketplace.costs.groups import MAX_PERIOD, CostBy, cost_groups
from portal.api.billing_schemas import amount_field
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    time_filter,
)
from portal.context import current_scope, database, now, portal
from tenants.permissions import Permission

costs = APIBlueprint(
    "Costs",
    "/billing/costs",
    "What GPU time costs by project, user and more, before taxes; up to now.",
    reads=Permission.VIEW_BILLING,
    changes=Permission.MANAGE_BILLING,
)


class CostGroupSchema(Schema):
    """What a group costs."""

    key = fields.String(**about("The ID, GPU model, day or month."))
    name = fields.String(**about("Empty if it was deleted."))
    amount = amount_field("Negative where credits exceed the costs.")


class CostPageSchema(page_of(CostGroupSchema)):  # type: ignore[misc] # made at run time
    """A page of groups, and the sum of all of them."""

    since = instant()
    until = instant()
    currency = fields.String()
    sum = amount_field("Of all groups.")


class CostQuery(PageQuery):
    """Which costs, and how they are grouped."""

    since = time_filter("By default the beginning of the month in UTC.")
    until = time_filter("Exclusive; by default the end of the month in UTC.")
    by = fields.Enum(CostBy, by_value=True, load_default=CostBy.PROJECT)


def _check_amount(text: str) -> None:
    try:
        parse_amount(text)
    except ValueError as error:
        raise ValidationError(str(error)) from error


class EstimateQuery(StrictSchema):
    """The GPUs of a job."""

    gpus = fields.Float(
        required=True,
        validate=validate.Range(min=0, max=MAX_GPUS),
        **about("How many, with parts of GPUs, such as `0.25`."),
    )
    gpu_models = fields.String(
        load_default="", **about("Comma-separated words of the model, such as `H100,A100`.")
    )
    max_gpu_hour_price = fields.String(
        load_default=None,
        validate=_check_amount,
        **about("The highest price of a rented GPU for an hour; 0 for own ones only."),
    )


class EstimateSchema(Schema):
    """What GPUs cost an hour now; null where no price is known."""

    lowest = amount_field("On own appliances, of the cheapest model that fits.", allow_none=True)
    highest = amount_field("On own appliances, of the most expensive one.", allow_none=True)
    rented = amount_field("By the cheapest contract that is open.", allow_none=True)
    offer_name = fields.String(**about("Of that contract; empty without one."))
    currency = fields.String()
    text = fields.String(**about("The same as a sentence; empty without prices."))


@costs.operation("GET", query=CostQuery, answer=CostPageSchema)
def show(query: dict[str, Any]) -> dict[str, Any]:
    """Return what each group costs, the most expensive first; days and months in their order."""
    month = month_of(now())
    period = Period(query["since"] or month.since, query["until"] or month.until)
    if not timedelta() < period.until - period.since <= MAX_PERIOD:
        message = f"until is not after since, or more than {MAX_PERIOD.days} days later."
        raise InvalidInputError(message, errors={"until": [message]})
    with database() as session:
        groups = cost_groups(session, current_scope(), period, by=query["by"], now=now())
    number, size = query["page"], query["page_size"]
    page = Page(groups[(number - 1) * size : number * size], len(groups), number, size)
    return {
        **envelope(page),
        **asdict(period),
        "currency": portal().settings.billing_currency,
        "sum": sum((group.amount for group in groups), ZERO),
    }


@costs.operation(
    "GET", "/estimate", query=EstimateQuery, answer=EstimateSchema, needs=Permission.VIEW
)
def show_estimate(query: dict[str, Any]) -> dict[str, Any]:
    """Return what GPUs cost an hour, by the tenant's price list and its contracts."""
    tenant_id, currency = current_scope().require_tenant(), portal().settings.billing_currency
    limit = query["max_gpu_hour_price"]
    with database() as session:
        cost = estimate(
            session,
            tenant_id,
            gpus=Decimal(str(query["gpus"])),
            gpu_models=[word for word in query["gpu_models"].split(",") if word.strip()],
            max_price=None if limit is None else parse_amount(limit),
            now=now(),
        )
    return {**asdict(cost), "currency": currency, "text": estimate_text(cost, currency)}
