"""`/platform`: the operators' console for programs."""

from http import HTTPStatus
from typing import Any

from flask import Response, send_file
from marshmallow import Schema, fields, validate

from alerting.models import Notification
from alerting.states import NotificationState
from alerting.stuck import discard, list_stuck, retry
from dash_app.queries.platform import PlatformFigures
from dash_app.queries.platform_charts import GROWTH_OVER
from jobqueue.cleaning import delete_ended
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of, whole_list
from portal.context import current_scope, current_user, database, now, portal
from portal.showing.platform import figures
from portal.showing.upkeep import JOBS_KEPT_DAYS, Upkeep, ended_before, upkeep
from tenants.customers.removal import (
    discard_export,
    export_file,
    get_removal,
    list_removals,
    request_removal,
)
from tenants.customers.usage import growth
from tenants.models import RemovalState, TenantRemoval, TenantState
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
    storage_bytes = fields.Integer()
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


class RemovalSchema(Schema):
    """The removal of a tenant."""

    id = fields.String()
    tenant_id = fields.String()
    tenant_slug = fields.String()
    tenant_name = fields.String()
    state = fields.Enum(RemovalState, by_value=True)
    done = fields.Integer()
    total = fields.Integer()
    error = fields.String()
    requested_by = fields.String()
    requested_at = instant()
    exported_at = instant()
    finished_at = instant()
    discarded_at = instant()
    file_bytes = fields.Integer()
    has_file = fields.Boolean()


class RemovalRequestSchema(StrictSchema):
    """Which tenant, by its id and, so that it is the right one, its name."""

    tenant_id = fields.String(required=True, validate=validate.Length(max=36))
    name = fields.String(required=True)


class StuckMessageSchema(Schema):
    """A message that does not get out."""

    id = fields.String()
    tenant_id = fields.String()
    receiver_id = fields.String()
    state = fields.Enum(NotificationState, by_value=True)
    tries = fields.Integer()
    next_try_at = instant()
    last_error = fields.String()
    created_at = instant()


class ExpiringCertificateSchema(Schema):
    """A certificate in use that ends soon."""

    appliance_id = fields.String()
    appliance_name = fields.String()
    tenant_name = fields.String()
    not_after = instant()


class HousekeepingSchema(Schema):
    """What wants looking after."""

    ended_jobs = fields.Integer(
        metadata={"description": f"Jobs that ended more than {JOBS_KEPT_DAYS} days ago."}
    )
    stuck_jobs = fields.Integer()
    stuck_messages = fields.Integer()
    expiring_certificates = fields.List(fields.Nested(ExpiringCertificateSchema))
    to_prune = fields.Dict(keys=fields.String(), values=fields.Integer())
    database_bytes = fields.Integer(allow_none=True)
    store_bytes = fields.Integer(allow_none=True)
    sample_retention_days = fields.Integer()
    minute_retention_days = fields.Integer()
    hour_retention_days = fields.Integer()


class CleanedSchema(Schema):
    """What was deleted."""

    deleted = fields.Integer()


_FILE = {"schema": {"type": "string", "format": "binary"}}


@platform.operation("GET", "/figures", answer=PlatformSchema)
def show_figures() -> dict[str, Any]:
    """Return what there is, and what each tenant uses (operator)."""
    return _shaped(figures())


@platform.operation("GET", "/growth", answer=page_of(GrowthSchema))
def show_growth() -> dict[str, Any]:
    """Return what each tenant used on each of the last 90 days (operator)."""
    current_scope().require(Permission.OPERATE)
    with database() as session:
        return whole_list(growth(session, since=(now() - GROWTH_OVER).date()))


@platform.operation("GET", "/removals", query=PageQuery, answer=page_of(RemovalSchema))
def removals(query: dict[str, Any]) -> dict[str, Any]:
    """List tenants that are being removed, and that were (operator)."""
    with database() as session:
        return envelope(list_removals(session, current_scope(), **query))


@platform.operation(
    "POST", "/removals", body=RemovalRequestSchema, answer=RemovalSchema, status=HTTPStatus.ACCEPTED
)
def remove(body: dict[str, Any]) -> TenantRemoval:
    """Export a closed tenant, then delete everything it has, samples included (operator)."""
    with database() as session:
        return request_removal(
            session, current_scope(), body["tenant_id"], name=body["name"],
            by=current_user().email, now=now(),
        )  # fmt: skip


@platform.operation("GET", "/removals/<removal_id>", answer=RemovalSchema)
def show_removal(removal_id: str) -> TenantRemoval:
    """Return how far the removal of a tenant is (operator)."""
    with database() as session:
        return get_removal(session, current_scope(), removal_id)


@platform.operation("GET", "/removals/<removal_id>/export")
@platform.doc(  # type: ignore[untyped-decorator] # flask-smorest
    responses={"200": {"description": "The export.", "content": {"application/zip": _FILE}}}
)
def export(removal_id: str) -> Response:
    """Return the export of a tenant as a ZIP file (operator)."""
    folder = portal().settings.exports_dir
    with database() as session:
        path = export_file(session, current_scope(), removal_id, folder=folder, now=now())
    return send_file(
        path.resolve(), mimetype="application/zip", as_attachment=True, download_name=path.name
    )


@platform.operation("DELETE", "/removals/<removal_id>/export", status=HTTPStatus.NO_CONTENT)
def discard_file(removal_id: str) -> None:
    """Delete the export of a removed tenant for good (operator)."""
    folder = portal().settings.exports_dir
    with database() as session:
        discard_export(session, current_scope(), removal_id, folder=folder, now=now())


@platform.operation("GET", "/housekeeping", answer=HousekeepingSchema)
def housekeeping() -> dict[str, Any]:
    """Return what wants looking after (operator)."""
    with database() as session:
        return _shaped_upkeep(upkeep(session, current_scope(), portal().settings, now=now()))


@platform.operation("POST", "/jobs/clean", answer=CleanedSchema)
def clean_jobs() -> dict[str, int]:
    """Delete up to 500 jobs that ended long ago, with their attempts and logs (operator)."""
    with database() as session:
        scope = current_scope()
        return {"deleted": delete_ended(session, scope, before=ended_before(now()), now=now())}


@platform.operation("GET", "/messages", query=PageQuery, answer=page_of(StuckMessageSchema))
def messages(query: dict[str, Any]) -> dict[str, Any]:
    """List messages of all tenants that don't get out (operator)."""
    with database() as session:
        return envelope(list_stuck(session, current_scope(), now=now(), **query))


@platform.operation("POST", "/messages/<notification_id>/retry", answer=StuckMessageSchema)
def retry_message(notification_id: str) -> Notification:
    """Try a message again now (operator)."""
    with database() as session:
        return retry(session, current_scope(), notification_id, now=now())


@platform.operation("DELETE", "/messages/<notification_id>", status=HTTPStatus.NO_CONTENT)
def discard_message(notification_id: str) -> None:
    """Give a message up (operator)."""
    with database() as session:
        discard(session, current_scope(), notification_id, now=now())


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


def _shaped_upkeep(found: Upkeep) -> dict[str, Any]:
    names = (
        "database_bytes", "store_bytes", "sample_retention_days", "minute_retention_days",
        "hour_retention_days",
    )  # fmt: skip
    return {
        **{name: getattr(found, name) for name in names},
        "ended_jobs": found.jobs.ended,
        "stuck_jobs": found.jobs.stuck,
        "stuck_messages": found.messages.total,
        "expiring_certificates": found.certificates,
        "to_prune": found.useless,
    }
