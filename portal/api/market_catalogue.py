"""`/market/catalogue` and `/market/capacity`: what can be rented, at which price."""

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from decimal import Decimal
from typing import Any

from marshmallow import Schema, ValidationError, fields, validate

from core.money import exact
from core.paging import Page
from marketplace.catalogue import (
    CATALOGUE_SORTS,
    CatalogueFilter,
    PublishedOffer,
    capacity,
    published_offer,
    search,
)
from marketplace.terms import MAX_PRICE
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import OfferWindowSchema, TermsSchema, amount, of_marketplace
from portal.api.schemas import about, envelope, page_of, page_query, whole_list
from portal.api.spec_schemas import DecimalField
from portal.context import database

catalogue = of_marketplace(
    APIBlueprint(
        "Market catalogue",
        "/market/catalogue",
        "Published offers of GPUs, with prices and what is free now.",
    )
)
market_capacity = of_marketplace(
    APIBlueprint(
        "Market capacity",
        "/market/capacity",
        "What can be rented now, by GPU model and region.",
    )
)


def _check_price(value: Decimal) -> None:
    if not (0 <= value <= MAX_PRICE and exact(value) == value):
        raise ValidationError(f"Enter 0 to {MAX_PRICE:,}, with at most 8 decimal places.")


class CatalogueQuery(page_query(CATALOGUE_SORTS, default="price")):  # type: ignore[misc] # a class made at run time
    """What is looked for."""

    gpu_model = fields.String(load_default="", **about("A word of the model, such as H100."))
    min_gpu_memory_bytes = fields.Integer(load_default=0, validate=validate.Range(0, 2**53))
    min_free_gpus = fields.Integer(
        load_default=0, validate=validate.Range(0, 1024), **about("Free now on one appliance.")
    )
    max_price = DecimalField(
        load_default=None,
        validate=_check_price,
        **about("Of a GPU for an hour, at this time of the week."),
    )
    region = fields.String(load_default="")
    facts = fields.String(
        load_default="", **about("Compliance facts, comma-separated, such as iso27001,gdpr.")
    )
    min_availability_percent = fields.Float(
        load_default=0.0, validate=validate.Range(0, 100), **about("Promised.")
    )
    text = fields.String(
        load_default="",
        validate=validate.Length(max=200),
        **about("A part of the offer's name or description, or the provider's."),
    )
    allows_slices = fields.Boolean(load_default=None)
    is_open = fields.Boolean(load_default=None, **about("Whether jobs may start now."))


class CatalogueEntrySchema(Schema):
    """What an offer has of a GPU model in a region."""

    offer_id = fields.String()
    offer_name = fields.String()
    description = fields.String()
    provider_name = fields.String()
    gpu_model = fields.String()
    gpu_memory_bytes = fields.Integer()
    region = fields.String()
    appliances = fields.Integer()
    gpus = fields.Integer()
    free_gpus = fields.Integer()
    most_free_gpus = fields.Integer(**about("On one appliance."))
    is_open = fields.Boolean(**about("Whether jobs may start now."))
    price = amount("Of a GPU for an hour now, after the discount.")
    lowest_price = amount("Of the week.")
    highest_price = amount("Of the week.")
    currency = fields.String()
    allows_slices = fields.Boolean()
    min_seconds = fields.Integer()
    max_seconds = fields.Integer(**about("Longest time limit; 0 is any."))
    availability_percent = fields.Float(**about("Promised; 0 for none."))
    facts = fields.List(fields.String())
    reputation = fields.Float(**about("What the provider is ranked by, 0 to 1."))
    reputation_low = fields.Float(
        **about("Its reputation is above this, below the next, with 90 %.")
    )
    reputation_high = fields.Float()


class PublishedOfferSchema(Schema):
    """An offer with the terms that a customer accepts."""

    offer_id = fields.String()
    name = fields.String()
    description = fields.String()
    provider_name = fields.String()
    reputation = fields.Float()
    reputation_low = fields.Float()
    reputation_high = fields.Float()
    needs_approval = fields.Boolean(**about("Whether the provider accepts each contract itself."))
    calendar = fields.List(fields.Nested(OfferWindowSchema))
    terms = fields.Nested(TermsSchema)
    terms_hash = fields.String(**about("Send it to accept these terms."))
    entries = fields.List(fields.Nested(CatalogueEntrySchema))


class MarketCapacitySchema(Schema):
    """What all offers have of a GPU model in a region."""

    gpu_model = fields.String()
    region = fields.String()
    gpus = fields.Integer()
    free_gpus = fields.Integer()
    lowest_price = amount("Of a GPU for an hour now.")


@catalogue.operation("GET", answer=page_of(CatalogueEntrySchema), query=CatalogueQuery)
def list_all(query: Mapping[str, Any]) -> dict[str, Any]:
    """List what can be rented, the cheapest first."""
    facts = tuple(filter(None, map(str.strip, query["facts"].split(","))))
    names = {field.name for field in dataclass_fields(CatalogueFilter)} - {"facts"}
    wanted = CatalogueFilter(facts=facts, **{name: query[name] for name in names})
    paging = {name: query[name] for name in ("sort", "page", "page_size")}
    with database() as session:
        entries, total = search(session, wanted, **paging)
    return envelope(Page(entries, total, query["page"], query["page_size"]))


@catalogue.operation("GET", "/<published_offer_id>", answer=PublishedOfferSchema, has_etag=False)
def show(published_offer_id: str) -> PublishedOffer:
    """Return an offer with its terms, and what is free now."""
    with database() as session:
        return published_offer(session, published_offer_id)


@market_capacity.operation("GET", answer=page_of(MarketCapacitySchema))
def list_capacity() -> dict[str, Any]:
    """List what can be rented now, by GPU model and region."""
    with database() as session:
        return whole_list(capacity(session))
