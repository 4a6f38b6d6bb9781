"""`/platform` and `/fleet-outage`: platform-wide figures, growth, and the mass-outage guard."""

from typing import Any

from marshmallow import Schema, fields
from marshmallow.validate import OneOf

from core.broker import BrokerState
from dash_app.queries.platform import PlatformFigures
from dash_app.queries.platform_charts import GROWTH_OVER
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import PageQuery, about, envelope, instant, page_of, sort_field
from portal.context import current_scope, database, now
from portal.presenters.platform import figures
from tenants.fleet.liveness import current_outage, release_mass_outage_guard
from tenants.lifecycle.server_processes import PROCESS_SORTS, list_processes
from tenants.lifecycle.usage import GROWTH_SORTS, list_growth
from tenants.models import FleetOutage, TenantState
from tenants.permissions import Permission

platform = APIBlueprint(
    "Platform",
    "/platform",
    "Figures of the whole platform (operators only).",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)


class TenantFiguresSchema(Schema):
    """Usage of one tenant."""

    id = fields.String()
    name = fields.String()
    slug = fields.String()
    state = fields.Enum(TenantState, by_value=True)
    users = fields.Integer()
    appliances = fields.Integer()
    gpus = fields.Integer()
    active_jobs = fields.Integer()
    gpu_hours = fields.Float(**about("Allocated in the last 30 days, the current hour included."))
    utilization_percent = fields.Float(
        allow_none=True, **about("Mean of its GPUs in the last 24 hours.")
    )
    points_per_second = fields.Float(allow_none=True, **about("Mean of the last 15 minutes."))
    storage_bytes = fields.Integer(allow_none=True)
    series = fields.Integer(allow_none=True, **about("Active series as the server counts them."))
    is_near_a_quota = fields.Boolean()


class PlatformSchema(Schema):
    """Figures of the platform, at most a minute old."""

    at = instant()
    appliances = fields.Integer(**about("Appliances in service."))
    gpus = fields.Integer()
    gpu_hours = fields.Float(**about("The sum of the tenants'."))
    active_jobs = fields.Integer()
    utilization_percent = fields.Float(allow_none=True)
    points_per_second = fields.Float(allow_none=True)
    storage_bytes = fields.Integer(allow_none=True, **about("Null until first measured."))
    appliances_by_state = fields.Dict(
        keys=fields.String(), values=fields.Integer(), attribute="by_status"
    )
    appliances_by_class = fields.Dict(
        keys=fields.String(), values=fields.Integer(), attribute="by_class"
    )
    tenants = fields.List(fields.Nested(TenantFiguresSchema))
    problem = fields.String(**about("Why values are missing; empty otherwise."))


class ProcessSchema(Schema):
    """A process of the portal, with its load in its last ten seconds."""

    name = fields.String(attribute="process.holder", **about("Host and process id."))
    url = fields.String(attribute="process.url", **about("Where other processes reach it."))
    parts = fields.Function(
        lambda listed: listed.process.parts.split(),
        **about(
            "What it serves: `access`, `portal`, `scheduler`.",
            type="array",
            items={"type": "string"},
        ),
    )
    version = fields.String(attribute="process.version")
    started_at = instant(attribute="process.started_at")
    seen_at = instant(attribute="process.seen_at")
    is_responding = fields.Boolean(**about("False if it has written nothing for 40 seconds."))
    is_scheduler = fields.Boolean(**about("It runs the periodic tasks."))
    requests_per_second = fields.Float(
        attribute="load.requests_per_second",
        dump_default=None,
        **about("Null, as its other load, if it does not respond."),
    )
    cpu_percent = fields.Float(
        attribute="load.cpu_percent", dump_default=None, **about("100 is one core.")
    )
    memory_bytes = fields.Integer(attribute="load.memory_bytes", dump_default=None)
    broker = fields.String(
        attribute="load.broker",
        dump_default=None,
        validate=OneOf([state.value for state in BrokerState]),
        **about(
            "Whether messages of other processes arrive through Redis: `connected`, "
            "`away`, or `none` without `redis_url`."
        ),
    )
    broker_since = instant(attribute="load.broker_since", dump_default=None)


class GrowthSchema(Schema):
    """Usage of a tenant on one day."""

    tenant_id = fields.String()
    day = fields.Date()
    measured_at = instant()
    appliances = fields.Integer()
    gpus = fields.Integer()
    points = fields.Integer()
    storage_bytes = fields.Integer()


class GrowthQuery(PageQuery):
    """Filters of the list."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(GROWTH_SORTS, default="day")


@platform.operation("GET", "/summary", answer=PlatformSchema)
def show_summary() -> PlatformFigures:
    """Return the figures of the platform and of each tenant (operator)."""
    return figures()


@platform.operation("GET", "/growth", query=GrowthQuery, answer=page_of(GrowthSchema))
def show_growth(query: dict[str, Any]) -> dict[str, Any]:
    """List the daily usage of each tenant over the last 90 days, oldest first (operator)."""
    with database() as session:
        since = (now() - GROWTH_OVER).date()
        return envelope(list_growth(session, current_scope(), since=since, **query))


class ProcessQuery(PageQuery):
    """Order of the list."""

    sort = sort_field(PROCESS_SORTS, default="name")


@platform.operation("GET", "/processes", query=ProcessQuery, answer=page_of(ProcessSchema))
def show_processes(query: dict[str, Any]) -> dict[str, Any]:
    """List the processes of the portal with their versions and load (operator)."""
    with database() as session:
        return envelope(list_processes(session, current_scope(), now=now(), **query))


outage = APIBlueprint(
    "Fleet outage", "/fleet-outage", "Mass-outage guard.", changes=Permission.OPERATE
)


class OutageSchema(Schema):
    """State of the mass-outage guard; only operators see the counts."""

    is_active = fields.Boolean(**about("While active, no appliance is marked lost."))
    began_at = instant()
    unreachable_count = fields.Integer(allow_none=True)
    fleet_count = fields.Integer(allow_none=True)


@outage.operation("GET", answer=OutageSchema)
def show_guard() -> dict[str, Any]:
    """Return whether the mass-outage guard is active."""
    scope = current_scope()
    with database() as session:
        return _shaped_outage(current_outage(session), with_counts=scope.allows(Permission.OPERATE))


@outage.operation("POST", "/release-guard", answer=OutageSchema)
def release_guard() -> dict[str, Any]:
    """Release the mass-outage guard: silent appliances are marked lost (operator)."""
    with database() as session:
        release_mass_outage_guard(session, current_scope(), now=now())
        return _shaped_outage(None, with_counts=True)


def _shaped_outage(current: FleetOutage | None, *, with_counts: bool) -> dict[str, Any]:
    shown = current if with_counts else None
    return {
        "is_active": current is not None,
        "began_at": current and current.began_at,
        "unreachable_count": shown and shown.unreachable_count,
        "fleet_count": shown and shown.fleet_count,
    }
