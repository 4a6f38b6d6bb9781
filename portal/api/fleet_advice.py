"""`/fleet-advice`: what a fleet has idle and is short of, with advice that can be dismissed."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from marshmallow.validate import Length
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.paging import Page
from jobqueue.advice.figures import FleetFigures
from jobqueue.advice.models import MAX_KEY_LENGTH, AdviceDismissal
from jobqueue.advice.rules import AdviceAction, AdviceKind, AmountKind
from jobqueue.advice.service import (
    DISMISSAL_SORTS,
    TOTAL_SORTS,
    FleetReport,
    dismiss_advice,
    get_dismissal,
    list_dismissals,
    list_totals,
    request_advice,
    restore_advice,
)
from jobqueue.simulation.models import SimulationState
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import (
    PageQuery,
    StrictSchema,
    about,
    envelope,
    instant,
    page_of,
    page_query,
)
from portal.api.spec_schemas import DecimalField
from portal.context import current_scope, database, now
from portal.presenters.fleet_advice import fleet_report, hours_of, shares
from portal.time_zone import current_zone_name
from tenants.permissions import Permission

fleet_advice = APIBlueprint(
    "Fleet advice",
    "/fleet-advice",
    "What GPUs have idle and are short of, what one more appliance would change, and when to rent.",
    reads=Permission.MANAGE_APPLIANCES,
    changes=Permission.MANAGE_APPLIANCES,
)


class FleetApplianceSchema(Schema):
    """An own appliance or cluster in the period."""

    id = fields.String()
    name = fields.String()
    gpu_model = fields.String()
    gpus = fields.Integer()
    capacity_gpu_hours = fields.Float()
    allocated_gpu_hours = fields.Float()
    idle_gpu_hours = fields.Float()
    last_used_at = instant(**about("Null without jobs in the period."))


class AdviceSchema(Schema):
    """A piece of advice."""

    key = fields.String(**about("The same in the next computation."))
    kind = fields.Enum(AdviceKind, by_value=True)
    gpu_model = fields.String()
    title = fields.String()
    evidence = fields.List(fields.String())
    gpu_hours = fields.Float(**about("Its size, in the period."))
    amount = DecimalField(allow_none=True, **about("Of a month of 730 hours."))
    amount_kind = fields.Enum(
        AmountKind,
        by_value=True,
        allow_none=True,
        **about("What the amount is: saved, earned, or worth by the price list."),
    )
    action = fields.Enum(AdviceAction, by_value=True)
    action_text = fields.String()
    appliances = fields.List(fields.Nested(FleetApplianceSchema))


class DismissedAdviceSchema(Schema):
    """Advice that is not shown until a time."""

    dismissal_id = fields.String(attribute="id")
    advice = fields.Nested(AdviceSchema)
    until = instant()


class FleetModelSchema(Schema):
    """A GPU model, with GPU-hours of the period and prices of a GPU for an hour."""

    gpu_model = fields.String()
    gpus = fields.Integer()
    appliances = fields.Integer()
    jobs = fields.Integer(**about("That started in the period."))
    wait_seconds_p50 = fields.Float(allow_none=True)
    wait_seconds_p95 = fields.Float(allow_none=True)
    capacity_gpu_hours = fields.Float()
    allocated_gpu_hours = fields.Float()
    idle_gpu_hours = fields.Float(**about("Allocated, but no kernel ran."))
    free_gpu_hours = fields.Float()
    rented_gpu_hours = fields.Float()
    waiting_gpu_hours = fields.Float()
    short_gpu_hours = fields.Float(**about("Demand beyond the capacity."))
    own_price = DecimalField(allow_none=True)
    rent_price = DecimalField(allow_none=True, **about("The lowest mean over the short hours."))
    median_price = DecimalField(allow_none=True)


class WaitingSchema(Schema):
    """How long the jobs of a replay waited."""

    jobs = fields.Integer()
    wait_seconds_p50 = fields.Float(allow_none=True)
    wait_seconds_p95 = fields.Float(allow_none=True)
    waiting_gpu_hours = fields.Float()


class AdditionSchema(Schema):
    """What one more appliance would have changed."""

    gpu_model = fields.String()
    appliance = fields.String(**about("The name of an appliance like it."))
    gpus = fields.Integer()
    today = fields.Nested(WaitingSchema)
    changed = fields.Nested(WaitingSchema)


class FleetAdviceSchema(Schema):
    """The advice with the figures that it follows from."""

    state = fields.Enum(SimulationState, by_value=True, allow_none=True)
    progress_percent = fields.Integer()
    message = fields.String(**about("Why the computation failed."))
    computed_at = instant()
    since = instant()
    until = instant()
    time_zone = fields.String(**about("Of hours in texts."))
    currency = fields.String(**about("Of amounts; empty without prices."))
    too_little = fields.String(**about("Why there is no advice yet."))
    problem = fields.String(**about("Why replays are missing."))
    advice = fields.List(fields.Nested(AdviceSchema))
    dismissed = fields.List(fields.Nested(DismissedAdviceSchema))
    models = fields.List(fields.Nested(FleetModelSchema))
    additions = fields.List(fields.Nested(AdditionSchema))


class FleetHourSchema(Schema):
    """An hour of a GPU model."""

    at = instant()
    capacity_gpu_hours = fields.Float()
    allocated_gpu_hours = fields.Float()
    idle_gpu_hours = fields.Float()
    free_gpu_hours = fields.Float()
    rented_gpu_hours = fields.Float()
    waiting_gpu_hours = fields.Float()
    short_gpu_hours = fields.Float()


class HoursQuery(PageQuery):
    """The model, and the page."""

    gpu_model = fields.String(required=True)


class DismissalRequestSchema(StrictSchema):
    """Which advice to dismiss."""

    key = fields.String(required=True, validate=Length(1, MAX_KEY_LENGTH))


class DismissalSchema(Schema):
    """Advice that an admin dismissed."""

    id = fields.String()
    tenant_id = fields.String()
    key = fields.String(attribute="advice_key")
    dismissed_at = instant()
    dismissed_until = instant()
    dismissed_by = fields.String(allow_none=True)


class FleetTotalsSchema(Schema):
    """The sums of a tenant's fleet."""

    tenant_id = fields.String()
    tenant_name = fields.String()
    state = fields.Enum(SimulationState, by_value=True)
    computed_at = instant()
    gpus = fields.Integer()
    capacity_gpu_hours = fields.Float()
    allocated_gpu_hours = fields.Float()
    idle_gpu_hours = fields.Float()
    short_gpu_hours = fields.Float()


@fleet_advice.operation("GET", answer=FleetAdviceSchema)
def show() -> dict[str, Any]:
    """Return the advice for the tenant, and the state of its computation."""
    with database() as session:
        return _shown(fleet_report(session))


@fleet_advice.operation("POST", "/compute", answer=FleetAdviceSchema, status=HTTPStatus.ACCEPTED)
def compute() -> dict[str, Any]:
    """Compute the figures now; they are computed every night otherwise."""
    with database() as session:
        request_advice(session, current_scope(), now=now())
        return _shown(fleet_report(session))


@fleet_advice.operation("GET", "/hours", query=HoursQuery, answer=page_of(FleetHourSchema))
def show_hours(query: dict[str, Any]) -> dict[str, Any]:
    """Return the hours of the period of a GPU model, oldest first."""
    with database() as session:
        figures = _figures(session)
    row = next((row for row in figures.models if row.gpu_model == query["gpu_model"]), None)
    if row is None:
        raise NotFoundError.of("GPU model", query["gpu_model"])
    return _page(hours_of(figures, row), query)


@fleet_advice.operation("GET", "/appliances", query=PageQuery, answer=page_of(FleetApplianceSchema))
def show_appliances(query: dict[str, Any]) -> dict[str, Any]:
    """Return the appliances, those with the most free GPU-hours first."""
    with database() as session:
        return _page(_figures(session).appliances, query)


@fleet_advice.operation(
    "GET",
    "/tenants",
    query=page_query(TOTAL_SORTS, default="-short_gpu_hours"),
    answer=page_of(FleetTotalsSchema),
    needs=Permission.OPERATE,
)
def show_tenants(query: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of all tenants (operator)."""
    with database() as session:
        return envelope(list_totals(session, current_scope(), **query))


@fleet_advice.operation(
    "POST",
    "/dismissals",
    body=DismissalRequestSchema,
    answer=DismissalSchema,
    status=HTTPStatus.CREATED,
)
def dismiss(body: dict[str, Any]) -> AdviceDismissal:
    """Don't show advice for 30 days."""
    with database() as session:
        return dismiss_advice(session, current_scope(), body["key"], now=now())


dismissals = Objects(
    fleet_advice,
    "/dismissals/<dismissal_id>",
    read=get_dismissal,
    answer=DismissalSchema,
    model=AdviceDismissal,
)
dismissals.lists(
    "List dismissed advice, the latest first.",
    list_dismissals,
    query=page_query(DISMISSAL_SORTS, default="-dismissed_at"),
    path="/dismissals",
    name="list_dismissals",
)
dismissals.shows("Return a dismissal.", name="show_dismissal")
dismissals.deletes("Show dismissed advice again.", restore_advice, name="restore")


def _figures(session: Session) -> FleetFigures:
    figures = fleet_report(session).figures
    if figures is None:
        raise NotFoundError("There are no figures yet. Wait until they are computed.")
    return figures


def _page(rows: list[Any], query: dict[str, Any]) -> dict[str, Any]:
    number, size = query["page"], query["page_size"]
    return envelope(Page(rows[(number - 1) * size : number * size], len(rows), number, size))


def _shown(report: FleetReport) -> dict[str, Any]:
    figures, prices = report.figures, report.prices
    names = ("state", "progress_percent", "message", "computed_at", "too_little")
    return {
        **{name: getattr(report, name) for name in names},
        "since": figures and figures.since,
        "until": figures and figures.until,
        "time_zone": current_zone_name(),
        "currency": prices.currency,
        "problem": figures.problem if figures else "",
        "advice": report.advice,
        "dismissed": report.dismissed,
        "models": [
            {
                **{
                    name: getattr(share.figures, name)
                    for name in (
                        *("gpu_model", "gpus", "appliances", "jobs"),
                        *("wait_seconds_p50", "wait_seconds_p95"),
                    )
                },
                **{
                    f"{name}_gpu_hours": value
                    for name, value in share._asdict().items()
                    if name != "figures"
                },
                **{
                    f"{name}_price": value
                    for name, value in asdict(prices.of(share.figures.gpu_model)).items()
                },
            }
            for share in (shares(figures) if figures else ())
        ],
        "additions": figures.additions if figures else (),
    }
