"""Schemas of terms, which offers and contracts share; and the switch of all of the marketplace."""

from marshmallow import Schema

from core.errors import NotFoundError
from marketplace.offers.calendar import Window
from marketplace.terms import ComplianceFact, Credit, HourlyPrice, ServiceLevel, Terms
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import about
from portal.api.spec_schemas import DecimalField, request_schema
from portal.context import portal


class OfferWindowSchema(request_schema(Window)):  # type: ignore[misc] # a class made at run time
    """Times at which an offer is open, or closed."""


class HourlyPriceSchema(request_schema(HourlyPrice)):  # type: ignore[misc] # likewise
    """A price at certain hours."""


class ServiceCreditSchema(request_schema(Credit)):  # type: ignore[misc] # likewise
    """A credit for too little availability."""


class ServiceLevelSchema(request_schema(ServiceLevel, {Credit: ServiceCreditSchema})):  # type: ignore[misc] # likewise
    """What a provider promises."""


class ComplianceFactSchema(request_schema(ComplianceFact)):  # type: ignore[misc] # likewise
    """A statement of the provider about compliance."""


_PARTS: dict[type, type[Schema]] = {
    HourlyPrice: HourlyPriceSchema,
    ServiceLevel: ServiceLevelSchema,
    ComplianceFact: ComplianceFactSchema,
}


class TermsSchema(request_schema(Terms, _PARTS)):  # type: ignore[misc] # likewise
    """Terms of an offer or of a version of a contract; amounts are decimals as text."""


def amount(description: str) -> DecimalField:
    """Return a field for an amount of money, or for a percentage."""
    return DecimalField(allow_none=True, **about(description))


def of_marketplace(resource: APIBlueprint) -> APIBlueprint:
    """Return a resource that exists only where the operator has turned the marketplace on."""
    resource.before_request(require_marketplace)
    return resource


def require_marketplace() -> None:
    """Answer like an unknown address, unless the marketplace is on."""
    if not portal().settings.marketplace:
        raise NotFoundError("There is nothing at this address. The marketplace is off here.")
