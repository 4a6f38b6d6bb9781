"""`/maintenance-windows`: silences that recur."""

from marshmallow import fields

from alerting.models import MaintenanceWindow
from alerting.notification.maintenance_windows import (
    WINDOW_SORTS,
    WindowRequest,
    create_window,
    delete_window,
    get_window,
    list_windows,
    update_window,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import instant, page_query
from portal.api.spec_schemas import request_schema, response_schema
from tenants.permissions import Permission

maintenance_windows = APIBlueprint(
    "Maintenance windows",
    "/maintenance-windows",
    "Silences that recur, by a schedule.",
    changes=Permission.EDIT_ALERTS,
)


class WindowRequestSchema(request_schema(WindowRequest)):  # type: ignore[misc] # a class made at run time
    """A new maintenance window, or the replacement of one."""


class WindowSchema(response_schema(WindowRequest)):  # type: ignore[misc] # a class made at run time
    """A maintenance window."""

    id = fields.String()
    tenant_id = fields.String()
    next_at = instant()
    created_by = fields.String(allow_none=True)
    created_at = instant()


objects = Objects(
    maintenance_windows,
    "/<window_id>",
    read=get_window,
    answer=WindowSchema,
    model=MaintenanceWindow,
    # Without the field that the scheduler changes.
    etag=WindowSchema(exclude=("next_at",)),
    body=WindowRequestSchema,
    request=WindowRequest,
)
objects.lists(
    "List maintenance windows.", list_windows, query=page_query(WINDOW_SORTS, default="name")
)
objects.creates("Create a maintenance window; each occurrence is a silence.", create_window)
objects.shows("Return a maintenance window.")
objects.replaces(
    "Replace a maintenance window; its current and its next silence are made anew.", update_window
)
objects.deletes("Delete a maintenance window, and end its silence.", delete_window)
