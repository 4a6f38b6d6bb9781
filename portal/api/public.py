"""`/api/public/v1`: what everybody may know of the marketplace, without authentication.

It has a document and a rate limit of its own, and answers may be cached. What is in it is what the
public pages show: published offers, free capacity, and the status of the portal.
"""

import json
from collections.abc import Callable
from functools import cache, wraps
from http import HTTPStatus
from typing import Any, TypeVar

from flask import Flask, Response, request
from flask_smorest import Api, Blueprint
from marshmallow import Schema, fields, validate

from core.errors import InvalidInputError
from core.money import MAX_AMOUNT
from core.paging import MAX_PAGE_NUMBER
from core.query_parameters import unknown_parameters
from marketplace.catalogue import CatalogueFilter, capacity, published_offer, search
from marketplace.terms import stored
from portal.api.schemas import ErrorSchema, StrictSchema, about, instant, page_of
from portal.api.spec_schemas import DecimalField
from portal.context import database, now, portal, require_marketplace
from portal.presenters.market import (
    SORTS,
    Choices,
    currency_here,
)
from portal.presenters.service_status import ComponentState, service_status

F = TypeVar("F", bound=Callable[..., Any])
PREFIX = "/api/public/v1"
MAX_PAGE_SIZE = 100
# The catalogue is refreshed each minute.
CACHED_SECONDS = 15


def _amount(description: str) -> DecimalField:
    return DecimalField(**about(description))


class OfferQuery(StrictSchema):
    """What to look for in the catalogue."""

    gpu_model = fields.String(
        load_default="", **about("A part of the model's name, such as `H100`.")
    )
    min_gpu_memory_bytes = fields.Integer(load_default=0, validate=validate.Range(0, 2**53))
    min_free_gpus = fields.Integer(load_default=0, validate=validate.Range(0, 1_000_000))
    max_price = DecimalField(
        load_default=None,
        validate=validate.Range(0, int(MAX_AMOUNT)),
        **about("Of a GPU for an hour."),
    )
    region = fields.String(load_default="")
    facts = fields.String(
        load_default="", **about("Compliance facts that must hold, separated by commas.")
    )
    min_availability_percent = fields.Float(load_default=0.0, validate=validate.Range(0, 100))
    search = fields.String(load_default="", validate=validate.Length(max=200))
    allows_slices = fields.Boolean(load_default=None)
    sort = fields.String(load_default="price", validate=validate.OneOf(list(SORTS)))
    page = fields.Integer(load_default=1, validate=validate.Range(1, MAX_PAGE_NUMBER))
    page_size = fields.Integer(load_default=50, validate=validate.Range(1, MAX_PAGE_SIZE))


class CatalogueEntrySchema(Schema):
    """GPUs of one model in one region that an offer has."""

    offer_id = fields.String()
    offer_name = fields.String()
    description = fields.String()
    provider_name = fields.String()
    gpu_model = fields.String()
    gpu_memory_bytes = fields.Integer(**about("Of the smallest GPU."))
    region = fields.String()
    appliances = fields.Integer()
    gpus = fields.Integer()
    free_gpus = fields.Integer()
    most_free_gpus = fields.Integer(**about("On a single appliance."))
    is_open = fields.Boolean(**about("Whether jobs may start now."))
    currency = fields.String()
    price = _amount("Of a GPU for an hour, now.")
    lowest_price = _amount("The lowest of a week.")
    highest_price = _amount("The highest of a week.")
    allows_slices = fields.Boolean()
    min_seconds = fields.Integer(**about("The shortest time that is charged."))
    max_seconds = fields.Integer(**about("The longest time limit of a job; 0 is no limit."))
    availability_percent = fields.Float(**about("Promised; 0 is no promise."))
    facts = fields.List(fields.String())
    reputation = fields.Float(**about("What the provider is ranked by, from evidence, 0 to 1."))
    reputation_low = fields.Float(
        **about("Its reputation is above this, below the next, with 90 %.")
    )
    reputation_high = fields.Float()


class OfferSchema(Schema):
    """A published offer with its terms."""

    offer_id = fields.String()
    name = fields.String()
    description = fields.String()
    provider_name = fields.String()
    reputation = fields.Float(**about("What the provider is ranked by, from evidence, 0 to 1."))
    reputation_low = fields.Float(
        **about("Its reputation is above this, below the next, with 90 %.")
    )
    reputation_high = fields.Float()
    entries = fields.List(fields.Nested(CatalogueEntrySchema))
    calendar = fields.List(
        fields.Dict(), **about("Windows in which jobs may start; empty is always.")
    )
    needs_approval = fields.Boolean(**about("Whether the provider accepts each contract itself."))
    terms = fields.Raw(
        **about("Prices, limits and service level; amounts are decimals as text.", type="object")
    )
    terms_hash = fields.String(**about("SHA-256 of the terms, which a customer accepts."))


class CapacitySchema(Schema):
    """What is on offer of a GPU model in a region."""

    gpu_model = fields.String()
    region = fields.String()
    gpus = fields.Integer()
    free_gpus = fields.Integer()
    lowest_price = _amount("Of a GPU for an hour, now.")


class CapacityListSchema(Schema):
    """What is on offer now; all prices are in `currency`."""

    currency = fields.String()
    items = fields.List(fields.Nested(CapacitySchema))


class ModelSchema(Schema):
    """What is on offer of a GPU model in all regions."""

    gpu_model = fields.String()
    gpus = fields.Integer()
    free_gpus = fields.Integer()
    lowest_price = _amount("Of a GPU for an hour, now.")
    regions = fields.Function(
        lambda model: [row.region for row in model.regions],
        metadata={"type": "array", "items": {"type": "string"}},
    )


class ModelListSchema(Schema):
    """The GPU models on offer; all prices are in `currency`."""

    currency = fields.String()
    items = fields.List(fields.Nested(ModelSchema))


class RegionListSchema(Schema):
    """The regions in which GPUs are on offer."""

    items = fields.List(fields.String())


class ComponentSchema(Schema):
    """A part of the portal."""

    name = fields.String()
    state = fields.Enum(ComponentState, by_value=True)
    note = fields.String()


class IncidentSchema(Schema):
    """A time in which many appliances could not reach the portal."""

    began_at = instant()
    ended_at = instant(**about("Null while it goes on."))


class DaySchema(Schema):
    """A day in UTC."""

    day = fields.Date()
    available_ratio = fields.Float(**about("The share of it without incident."))


class StatusSchema(Schema):
    """The status of the portal, with its last 90 days."""

    at = instant()
    state = fields.Enum(ComponentState, by_value=True)
    components = fields.List(fields.Nested(ComponentSchema))
    availability_percent = fields.Float()
    days = fields.List(fields.Nested(DaySchema))
    incidents = fields.List(fields.Nested(IncidentSchema))


class PublicBlueprint(Blueprint):  # type: ignore[misc] # flask-smorest ships no types
    """Operations that everybody may call, and that change nothing."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, __name__, url_prefix=PREFIX, description=description)
        self.before_request(require_marketplace)
        self.after_request(_cacheable)

    def reads(
        self, path: str, answer: type[Schema], *, query: type[Schema] | None = None
    ) -> Callable[[F], F]:
        """Register a function as the operation at a path; its docstring describes it."""
        names = frozenset(query().fields if query else ())

        def decorate(function: F) -> F:
            view: Callable[..., Any] = function
            if query is not None:
                view = self.arguments(query, location="query", arg_name="query")(view)
            view = self.response(HTTPStatus.OK, answer)(view)
            statuses = [HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY]
            statuses.append(HTTPStatus.TOO_MANY_REQUESTS)
            for status_code in statuses:
                view = self.alt_response(status_code, schema=ErrorSchema)(view)
            self.route(path)(_knowing(view, names))
            return function

        return decorate


def _knowing(view: Callable[..., Any], names: frozenset[str]) -> Callable[..., Any]:
    """Refuse query parameters with other names."""

    @wraps(view)
    def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a view's own
        errors = unknown_parameters(request.args, names)
        if errors:
            text = " ".join(text for texts in errors.values() for text in texts)
            raise InvalidInputError(text, errors=errors)
        return view(*args, **kwargs)

    return guarded


def _cacheable(response: Response) -> Response:
    if response.status_code < HTTPStatus.BAD_REQUEST:
        response.headers["Cache-Control"] = f"public, max-age={CACHED_SECONDS}"
        response.add_etag()
        response.make_conditional(request)
    # Sites of others may show it: it is the same for everybody, without credentials.
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
    return response


catalogue = PublicBlueprint("Public catalogue", "Published offers, free capacity and prices.")
status = PublicBlueprint("Public status", "Whether the portal works.")
BLUEPRINTS = (catalogue, status)


@catalogue.reads("/offers", page_of(CatalogueEntrySchema), query=OfferQuery)
def list_offers(query: dict[str, Any]) -> dict[str, Any]:
    """List offers by GPU model and region."""
    wanted = CatalogueFilter(
        **{
            name: query[name]
            for name in (
                *("gpu_model", "min_gpu_memory_bytes", "min_free_gpus", "max_price", "region"),
                *("min_availability_percent", "allows_slices"),
            )
        },
        facts=tuple(word.strip() for word in query["facts"].split(",") if word.strip()),
        text=query["search"],
    )
    number, size = query["page"], query["page_size"]
    with database() as session:
        entries, total = search(session, wanted, sort=query["sort"], page=number, page_size=size)
    return {"items": entries, "total": total, "page": number, "page_size": size}


@catalogue.reads("/offers/<offer_id>", OfferSchema)
def show_offer(offer_id: str) -> dict[str, Any]:
    """Return an offer with its terms."""
    with database() as session:
        offer = published_offer(session, offer_id)
    names = (
        *("offer_id", "name", "description", "provider_name", "needs_approval"),
        *("reputation", "reputation_low", "reputation_high"),
        *("calendar", "terms_hash", "entries"),
    )
    return {name: getattr(offer, name) for name in names} | {"terms": stored(offer.terms)}


@catalogue.reads("/capacity", CapacityListSchema)
def show_capacity() -> dict[str, Any]:
    """List GPUs on offer, and those that are free, by model and region."""
    with database() as session:
        return {"currency": currency_here(), "items": capacity(session)}


@catalogue.reads("/models", ModelListSchema)
def list_models() -> dict[str, Any]:
    """List the GPU models on offer."""
    with database() as session:
        return {"currency": currency_here(), "items": Choices.read(session).models}


@catalogue.reads("/regions", RegionListSchema)
def list_regions() -> dict[str, Any]:
    """List the regions in which GPUs are on offer."""
    with database() as session:
        return {"items": Choices.read(session).regions}


@status.reads("/status", StatusSchema)
def show_status() -> Any:  # noqa: ANN401 - what the schema reads
    """Return whether the portal works, and its incidents in the last 90 days."""
    with database() as session:
        return service_status(session, portal().store, now=now())


def public_address() -> str | None:
    """Return the address of a request to the public API; None for other requests."""
    return request.remote_addr if request.path.startswith(f"{PREFIX}/") else None


def install_public_api(app: Flask) -> None:
    """Register the public API and its document."""
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.add_url_rule(f"{PREFIX}/openapi.json", "public_openapi_document", _openapi_document)


def _openapi_document() -> Response:
    require_marketplace()
    return _cacheable(Response(_document(), mimetype="application/json"))


@cache
def _document() -> bytes:
    api = _PublicAPI(Flask("public-openapi"), spec_kwargs=_SPEC)
    for blueprint in BLUEPRINTS:
        api.register_blueprint(blueprint)
    # Limits of decimals are decimals.
    return json.dumps(api.spec.to_dict(), indent=2, default=float).encode()


class _PublicAPI(Api):  # type: ignore[misc] # flask-smorest ships no types
    ERROR_SCHEMA = ErrorSchema


_SPEC = {
    "title": "Vedette marketplace",
    "version": "v1",
    "openapi_version": "3.0.3",
    "info": {
        "description": "What is on offer, at which price, and whether the portal works. No "
        "authentication is needed. Answers may be cached, and have an `ETag`. Above the rate "
        "limit of an address the answer is 429 with `Retry-After`. Amounts are decimals as text."
    },
}
