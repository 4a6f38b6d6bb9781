"""`/billing/price-lists`: what a GPU of the tenant's own appliances costs for an hour."""

from typing import Any

from marshmallow import Schema, fields

from marketplace.prices.models import PriceList
from marketplace.prices.service import (
    PriceListRequest,
    PriceRow,
    create_price_list,
    delete_price_list,
    get_price_list,
    list_price_lists,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant
from tenants.permissions import Permission

billing_prices = APIBlueprint(
    "Price lists",
    "/billing/price-lists",
    "What a GPU of the tenant's own appliances costs for an hour. Lists are versions: the one that "
    "begins last counts, and what applies never changes.",
    reads=Permission.VIEW_BILLING,
    changes=Permission.MANAGE_BILLING,
)


class PriceRowSchema(StrictSchema):
    """The price of a GPU for an hour."""

    gpu_model = fields.String(
        load_default="",
        **about(
            "A word of the model's name, such as `H100`; the longest that matches "
            "counts. Empty for all other models."
        ),
    )
    price = fields.String(required=True, **about("Of a GPU for an hour, such as `2.45`."))


class PriceListRequestSchema(StrictSchema):
    """A new price list."""

    prices = fields.List(fields.Nested(PriceRowSchema), required=True)
    valid_from = instant(
        load_default=None,
        **about(
            "The first hour; by default the next one. In the past only where the "
            "tenant had no price."
        ),
    )
    valid_until = instant(
        load_default=None, **about("The hour after the last; by default the next list's first.")
    )
    note = fields.String(load_default="", **about("Why."))


class PriceListSchema(Schema):
    """A price list."""

    id = fields.String()
    tenant_id = fields.String(
        allow_none=True, **about("Null is the operator's, for tenants that have none.")
    )
    number = fields.Integer()
    valid_from = instant()
    valid_until = instant()
    prices = fields.List(fields.Nested(PriceRowSchema))
    note = fields.String()
    created_by = fields.String()
    created_at = instant()


def _request(**values: Any) -> PriceListRequest:  # noqa: ANN401 - of the schema
    rows = [PriceRow(**row) for row in values.pop("prices")]
    return PriceListRequest(prices=rows, **values)


objects = Objects(
    billing_prices,
    "/<price_list_id>",
    read=get_price_list,
    answer=PriceListSchema,
    model=PriceList,
    body=PriceListRequestSchema,
    request=_request,
)
objects.lists("List the tenant's price lists and the operator's, newest first.", list_price_lists)
objects.creates(
    "Add a price list, which replaces the one before from its first hour on.", create_price_list
)
objects.shows("Return a price list.")
objects.deletes("Delete a price list that has not begun.", delete_price_list)
