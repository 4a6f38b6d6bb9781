"""`/market/records`: what providers earned, and how contracts were kept."""

from typing import Any

from marshmallow import Schema, fields

from jobqueue.reservations.bookings import bookings_under
from marketplace.contracts.scope import side_of
from marketplace.contracts.service import get_contract
from marketplace.service_levels.models import BreachKind
from marketplace.service_levels.service import breaches_of
from marketplace.states import Side
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import about, instant
from portal.api.spec_schemas import DecimalField
from portal.context import current_scope, database, now, require_marketplace
from portal.presenters.contracts import monthly_lines
from portal.presenters.market import currency_here
from tenants.permissions import Permission

market_records = APIBlueprint(
    "Market records",
    "/market/records",
    "What providers earned, and how contracts were kept.",
)
market_records.before_request(require_marketplace)


class MarketMonthSchema(Schema):
    """What billing lines of a month in UTC come to, before tax and fee."""

    start = instant()
    gpu_hours = fields.Float()
    amounts = fields.Function(
        lambda month: {kind.value: f"{amount:f}" for kind, amount in month.amounts.items()},
        **about(
            "Decimals as text, by kind of lines.",
            type="object",
            additionalProperties={"type": "string"},
        ),
    )
    total = DecimalField()


class EarningsSchema(Schema):
    """The last months with billing lines, newest first."""

    currency = fields.String()
    months = fields.List(fields.Nested(MarketMonthSchema))


class BreachSchema(Schema):
    """A promise of a contract that was not kept."""

    kind = fields.Enum(BreachKind, by_value=True)
    subject = fields.String(**about("The month, such as `2026-11`, or the ID of the attempt."))
    version_number = fields.Integer()
    since = instant()
    until = instant()
    promised = fields.Float(**about("Percent of the time, or seconds."))
    measured = fields.Float(**about("The same, as it was."))
    credit = DecimalField(allow_none=True, **about("Null until it is settled."))
    detected_at = instant()


class BookingSchema(Schema):
    """What a reservation of the customer keeps of an appliance."""

    gpus = fields.Integer()
    gpu_model = fields.String()
    appliance_id = fields.String(allow_none=True, **about("Null for the customer."))
    schedule = fields.String()
    time_zone = fields.String()
    duration_seconds = fields.Integer()
    since = instant()


class ContractRecordSchema(Schema):
    """How a contract was kept: breaches, the latest first; and what is reserved under it."""

    breaches = fields.List(fields.Nested(BreachSchema))
    bookings = fields.List(fields.Nested(BookingSchema))


@market_records.operation("GET", "/earnings", answer=EarningsSchema, needs=Permission.VIEW_BILLING)
def show_earnings() -> dict[str, Any]:
    """Return what the tenant earned as a provider in the last twelve months."""
    tenant_id = current_scope().require_tenant()
    with database() as session:
        months = monthly_lines(session, provider_id=tenant_id, now=now())
    return {"currency": currency_here(), "months": months}


@market_records.operation("GET", "/contracts/<contract_id>", answer=ContractRecordSchema)
def show_contract(contract_id: str) -> dict[str, Any]:
    """Return how a contract was kept and what is reserved under it, as both its sides see it."""
    scope = current_scope()
    with database() as session:
        contract = get_contract(session, scope, contract_id)
        bookings = BookingSchema(many=True).dump(bookings_under(session, contract.id))
        if side_of(contract, scope) is Side.CUSTOMER:
            bookings = [row | {"appliance_id": None} for row in bookings]
        return {"breaches": breaches_of(session, contract), "bookings": bookings}
