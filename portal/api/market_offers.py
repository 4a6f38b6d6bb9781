"""`/market/offers`: what a tenant offers to others, as their provider."""

from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from marketplace.models import Offer
from marketplace.offers.calendar import Window
from marketplace.offers.requests import OfferRequest
from marketplace.offers.service import (
    COVERAGE_SORTS,
    OFFER_SORTS,
    change_offer,
    create_offer,
    get_offer,
    list_offered,
    list_offers,
    set_offer_state,
)
from marketplace.states import OfferState
from marketplace.terms import Terms, terms_hash
from portal.api.blueprint import APIBlueprint
from portal.api.market_schemas import OfferWindowSchema, TermsSchema, amount, of_marketplace
from portal.api.objects import Objects
from portal.api.schemas import about, instant, page_query
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import portal
from tenants.permissions import Permission
from tenants.scope import Scope

_PARTS: dict[type, type[Schema]] = {Terms: TermsSchema, Window: OfferWindowSchema}

offers = of_marketplace(
    APIBlueprint(
        "Offers",
        "/market/offers",
        "Appliances that the tenant offers to others, and their terms.",
        changes=Permission.MANAGE_OFFERS,
    )
)


class OfferRequestSchema(request_schema(OfferRequest, _PARTS)):  # type: ignore[misc] # a class made at run time
    """A new offer, or the replacement of one."""


def _hash(offer: Offer) -> str:
    return terms_hash(offer.decoded_terms)


class MarketOfferSchema(response_schema(OfferRequest, _PARTS)):  # type: ignore[misc] # likewise
    """An offer of the tenant."""

    id = fields.String()
    tenant_id = fields.String()
    state = fields.Enum(OfferState, by_value=True)
    terms_hash = fields.Function(_hash, **about("SHA-256 of the terms.", type="string"))
    created_at = instant()
    updated_at = instant()


class OfferedApplianceSchema(Schema):
    """An appliance that an offer covers now."""

    appliance_id = fields.String()
    name = fields.String()
    gpu_model = fields.String()
    region = fields.String()
    gpu_count = fields.Integer()
    free_gpus = fields.Integer()
    is_open = fields.Boolean(**about("Whether jobs may start there now."))
    price = amount("Of a GPU for an hour now.")


def _request(**body: Any) -> OfferRequest:  # noqa: ANN401 - those of the schema
    return msgspec.convert(body, OfferRequest)


def _change(
    session: Session,
    scope: Scope,
    ident: str,
    request: OfferRequest,
    *,
    now: datetime,
    currency: str = "",
) -> Offer:
    return change_offer(
        session,
        scope,
        ident,
        request,
        now=now,
        currency=currency,
        requires_verification=portal().settings.marketplace_requires_verification,
    )


def _set_state(
    session: Session, scope: Scope, ident: str, *, state: OfferState, now: datetime
) -> Offer:
    return set_offer_state(
        session,
        scope,
        ident,
        state,
        now=now,
        requires_verification=portal().settings.marketplace_requires_verification,
    )


objects = Objects(
    offers,
    "/<offer_id>",
    read=get_offer,
    answer=MarketOfferSchema,
    model=Offer,
    body=OfferRequestSchema,
    request=_request,
)
objects.lists(
    "List the tenant's offers.", list_offers, query=page_query(OFFER_SORTS, default="name")
)
objects.creates("Create a draft of an offer.", create_offer)
objects.shows("Return an offer.")
objects.replaces(
    "Replace an offer; contracts that exist keep the terms that were accepted.", _change
)
for _text, _state, _action in (
    ("Publish an offer: it is in the catalogue at once.", OfferState.PUBLISHED, "publish"),
    ("Pause an offer: it takes no new contracts; others go on.", OfferState.PAUSED, "pause"),
    ("Withdraw an offer for good; contracts go on.", OfferState.WITHDRAWN, "withdraw"),
):
    objects.acts(_text, partial(_set_state, state=_state), _action)
objects.lists(
    "List the appliances that an offer covers now, and what is free there.",
    list_offered,
    path="/<offer_id>/appliances",
    name="appliances",
    query=page_query(COVERAGE_SORTS, default="name"),
    answer=OfferedApplianceSchema,
)
