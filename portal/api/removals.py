"""`/platform/removals`: removals of tenants, and their exports."""

from http import HTTPStatus
from typing import Any

from flask import Response
from marshmallow import Schema, fields, validate

from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, file_response, instant, page_query
from portal.context import current_scope, current_user, database, now
from portal.presenters.removals import discard_removed, export_response
from tenants.lifecycle.removal import (
    REMOVAL_SORTS,
    get_removal,
    list_removals,
    request_removal,
)
from tenants.models import RemovalState, TenantRemoval
from tenants.permissions import Permission

removals = APIBlueprint(
    "Removals",
    "/platform/removals",
    "Removals of tenants (operators only).",
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
    """The tenant to remove; its name confirms the choice."""

    tenant_id = fields.String(required=True, validate=validate.Length(max=36))
    name = fields.String(required=True)


objects = Objects(removals, "/<removal_id>", read=get_removal, answer=RemovalSchema)
objects.lists(
    "List running and finished removals (operator).",
    list_removals,
    query=page_query(REMOVAL_SORTS, default="-requested_at"),
)


@removals.operation(
    "POST", body=RemovalRequestSchema, answer=RemovalSchema, status=HTTPStatus.ACCEPTED
)
def add(body: dict[str, Any]) -> TenantRemoval:
    """Export a closed tenant, then delete all its data including samples (operator)."""
    with database() as session:
        return request_removal(
            session,
            current_scope(),
            body["tenant_id"],
            name=body["name"],
            by=current_user().email,
            now=now(),
        )


objects.shows("Return a removal with its progress (operator).")


@removals.operation(
    "GET", "/<removal_id>/export", responses=file_response("The export.", "application/zip")
)
def export(removal_id: str) -> Response:
    """Download the export of a tenant as a ZIP file (operator)."""
    return export_response(removal_id)


@removals.operation("POST", "/<removal_id>/discard", answer=RemovalSchema)
def discard(removal_id: str) -> TenantRemoval:
    """Permanently delete the export of a removed tenant (operator)."""
    return discard_removed(removal_id)
