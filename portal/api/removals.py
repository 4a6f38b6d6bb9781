"""`/platform/removals`: tenants that are being removed, and the exports that are left of them."""

from http import HTTPStatus
from typing import Any

from flask import Response, send_file
from marshmallow import Schema, fields, validate

from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of
from portal.api.sorting import sort_field
from portal.context import current_scope, current_user, database, now, portal
from tenants.customers.removal import (
    REMOVAL_SORTS,
    discard_export,
    export_file,
    get_removal,
    list_removals,
    request_removal,
)
from tenants.models import RemovalState, TenantRemoval
from tenants.permissions import Permission

removals = resource(
    "Removals",
    "/platform/removals",
    "Tenants that are being removed, for operators.",
    reads=Permission.OPERATE,
    changes=Permission.OPERATE,
)


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


class RemovalQuery(PageQuery):
    """In which order."""

    sort = sort_field(REMOVAL_SORTS, default="-requested_at")


_FILE = {"schema": {"type": "string", "format": "binary"}}


@removals.operation("GET", query=RemovalQuery, answer=page_of(RemovalSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List tenants that are being removed, and that were (operator)."""
    with database() as session:
        return envelope(list_removals(session, current_scope(), **query))


@removals.operation(
    "POST", body=RemovalRequestSchema, answer=RemovalSchema, status=HTTPStatus.ACCEPTED
)
def add(body: dict[str, Any]) -> TenantRemoval:
    """Export a closed tenant, then delete everything it has, samples included (operator)."""
    with database() as session:
        return request_removal(
            session, current_scope(), body["tenant_id"], name=body["name"],
            by=current_user().email, now=now(),
        )  # fmt: skip


@removals.operation("GET", "/<removal_id>", answer=RemovalSchema)
def show(removal_id: str) -> TenantRemoval:
    """Return how far the removal of a tenant is (operator)."""
    with database() as session:
        return get_removal(session, current_scope(), removal_id)


@removals.operation("GET", "/<removal_id>/export")
@removals.doc(  # type: ignore[untyped-decorator] # flask-smorest
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


@removals.operation("POST", "/<removal_id>/discard", answer=RemovalSchema)
def discard(removal_id: str) -> TenantRemoval:
    """Delete the export of a removed tenant for good (operator)."""
    folder = portal().settings.exports_dir
    with database() as session:
        return discard_export(session, current_scope(), removal_id, folder=folder, now=now())
