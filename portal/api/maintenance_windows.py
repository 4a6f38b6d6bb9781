"""`/maintenance-windows`: silences that recur."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import fields
from sqlalchemy.orm import Session

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
from portal.api.schemas import envelope, instant, page_of, page_query
from portal.api.spec_schemas import request_schema, response_schema
from portal.context import current_scope, database, now
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


# The fields that the scheduler changes.
_ETAG = WindowSchema(exclude=("next_at",))


@maintenance_windows.operation(
    "GET", query=page_query(WINDOW_SORTS, default="name"), answer=page_of(WindowSchema)
)
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List maintenance windows."""
    with database() as session:
        return envelope(list_windows(session, current_scope(), **query))


@maintenance_windows.operation(
    "POST", body=WindowRequestSchema, answer=WindowSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> MaintenanceWindow:
    """Create a maintenance window; each occurrence is a silence."""
    with database() as session:
        return create_window(session, current_scope(), WindowRequest(**body), now=now())


@maintenance_windows.operation("GET", "/<window_id>", answer=WindowSchema, etag=_ETAG)
def show(window_id: str) -> MaintenanceWindow:
    """Return a maintenance window."""
    with database() as session:
        return get_window(session, current_scope(), window_id)


@maintenance_windows.operation(
    "PUT", "/<window_id>", body=WindowRequestSchema, answer=WindowSchema, etag=_ETAG
)
def replace(window_id: str, body: dict[str, Any]) -> MaintenanceWindow:
    """Replace a maintenance window; its current and its next silence are made anew."""
    request = WindowRequest(**body)
    with database() as session:
        _check_if_match(session, window_id)
        return update_window(session, current_scope(), window_id, request, now=now())


@maintenance_windows.operation("DELETE", "/<window_id>", status=HTTPStatus.NO_CONTENT)
def delete(window_id: str) -> None:
    """Delete a maintenance window, and end its silence."""
    with database() as session:
        _check_if_match(session, window_id)
        delete_window(session, current_scope(), window_id, now=now())


def _check_if_match(session: Session, window_id: str) -> None:
    read = partial(get_window, session, current_scope(), window_id)
    maintenance_windows.check_if_match(session, MaintenanceWindow, window_id, read, _ETAG)
