"""`/platform`: the whole platform in figures, for operators; what it grew by."""

from typing import Any

from marshmallow import Schema, fields

from dash_app.queries.platform import PlatformFigures
from dash_app.queries.platform_charts import GROWTH_OVER
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now
from portal.showing.platform import figures
from tenants.customers.usage import GROWTH_SORTS, list_growth
from tenants.models import TenantState
from tenants.permissions import Permission

platform = resource(
    "Platform",
    "/platform",
    "The whole platform, for operators.",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)


class TenantFiguresSchema(Schema):
    """What one tenant uses."""

    id = fields.String()
    name = fields.String()
    slug = fields.String()
    state = fields.Enum(TenantState, by_value=True)
    users = fields.Integer()
    appliances = fields.Integer()
    gpus = fields.Integer()
    active_jobs = fields.Integer()
    gpu_hours = fields.Float(metadata={"description": "Of the last 30 days."})
    utilization_percent = fields.Float(
        allow_none=True, metadata={"description": "Mean of its GPUs in the last 24 hours."}
    )
    points_per_second = fields.Float(
        allow_none=True, metadata={"description": "Mean of the last 15 minutes."}
    )
    storage_bytes = fields.Integer(allow_none=True)
    series = fields.Integer(
        allow_none=True, metadata={"description": "Active ones, as the server counts them."}
    )
    is_near_a_quota = fields.Boolean()


class PlatformSchema(Schema):
    """What there is, at most a minute ago."""

    at = instant()
    appliances = fields.Integer(metadata={"description": "Those in service."})
    gpus = fields.Integer()
    gpu_hours = fields.Float()
    active_jobs = fields.Integer()
    utilization_percent = fields.Float(allow_none=True)
    points_per_second = fields.Float(allow_none=True)
    storage_bytes = fields.Integer(
        allow_none=True, metadata={"description": "Null before the first measurement."}
    )
    appliances_by_state = fields.Dict(keys=fields.String(), values=fields.Integer())
    appliances_by_class = fields.Dict(keys=fields.String(), values=fields.Integer())
    tenants = fields.List(fields.Nested(TenantFiguresSchema))
    problem = fields.String(metadata={"description": "Why readings are missing, or empty."})


class GrowthSchema(Schema):
    """What a tenant used on a day."""

    tenant_id = fields.String()
    day = fields.Date()
    measured_at = instant()
    appliances = fields.Integer()
    gpus = fields.Integer()
    points = fields.Integer()
    storage_bytes = fields.Integer()


class GrowthQuery(PageQuery):
    """Of whom, and in which order."""

    tenant_id = fields.String(load_default=None)
    sort = sort_field(GROWTH_SORTS, default="day")


@platform.operation("GET", "/figures", answer=PlatformSchema)
def show_figures() -> dict[str, Any]:
    """Return what there is, and what each tenant uses (operator)."""
    return _shaped(figures())


@platform.operation("GET", "/growth", query=GrowthQuery, answer=page_of(GrowthSchema))
def show_growth(query: dict[str, Any]) -> dict[str, Any]:
    """List what each tenant used on each of the last 90 days, the oldest first (operator)."""
    with database() as session:
        since = (now() - GROWTH_OVER).date()
        return envelope(list_growth(session, current_scope(), since=since, **query))


def _shaped(found: PlatformFigures) -> dict[str, Any]:
    names = (
        "at", "appliances", "gpus", "gpu_hours", "active_jobs", "utilization_percent",
        "points_per_second", "storage_bytes", "tenants", "problem",
    )  # fmt: skip
    return {
        **{name: getattr(found, name) for name in names},
        "appliances_by_state": {life.value: count for life, count in found.by_life.items()},
        "appliances_by_class": found.by_class,
    }
