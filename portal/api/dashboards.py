"""`/dashboards`: custom dashboards, one by one and as files."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

from dash_app.custom.dashboards import (
    DASHBOARD_SORTS,
    ITEMS,
    DashboardRequest,
    create_dashboard,
    delete_dashboard,
    get_dashboard,
    list_dashboards,
    replace_dashboard,
)
from dash_app.custom.files import ChangeAction
from dash_app.custom.models import CustomDashboard
from dash_app.custom.panels import metric_errors, raise_errors
from portal.api.blueprint import APIBlueprint
from portal.api.json_schema import file_schema
from portal.api.schemas import (
    PageQuery,
    envelope,
    instant,
    page_of,
    sort_field,
    whole_list,
)
from portal.context import current_scope, database, now, portal
from portal.presenters.dashboards import (
    DashboardFileSchema,
    DashboardRequestSchema,
    PanelSchema,
    applied,
    dashboard_request,
)
from tenants.permissions import Permission

dashboards = APIBlueprint(
    "Dashboards", "/dashboards", "Custom dashboards.", changes=Permission.EDIT_DASHBOARDS
)


class DashboardSchema(Schema):
    """A custom dashboard; its page is `/dashboards/custom/{id}`."""

    id = fields.String()
    name = fields.String()
    description = fields.String()
    is_shared = fields.Boolean()
    user_email = fields.Function(
        lambda dashboard: dashboard.user.email if dashboard.user else None,
        metadata={"type": ["string", "null"]},
    )
    is_changeable = fields.Function(
        lambda dashboard: ITEMS.may_change(current_scope(), dashboard), metadata={"type": "boolean"}
    )
    panels = fields.List(fields.Nested(PanelSchema), attribute="panel_list")
    created_at = instant()
    updated_at = instant()


class DashboardQuery(PageQuery):
    """Filters of the list."""

    search = fields.String(load_default="", metadata={"description": "Part of the name."})
    sort = sort_field(DASHBOARD_SORTS, default="name")


class DashboardChangeSchema(Schema):
    """The change of a dashboard when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    dashboard_id = fields.String(allow_none=True)


@dashboards.operation("GET", query=DashboardQuery, answer=page_of(DashboardSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List your dashboards, and those that your tenant shares."""
    with database() as session:
        return envelope(list_dashboards(session, current_scope(), **query))


@dashboards.operation(
    "POST", body=DashboardRequestSchema, answer=DashboardSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> CustomDashboard:
    """Create a dashboard; its fields and tags must exist if their measurement has samples."""
    request = _checked(body)
    with database() as session:
        return create_dashboard(session, current_scope(), request, now=now())


@dashboards.operation(
    "POST", "/apply", body=DashboardFileSchema, answer=page_of(DashboardChangeSchema)
)
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Create and update dashboards by name to match a file: all of it or nothing."""
    requests = [dashboard_request(dashboard) for dashboard in body["dashboards"]]
    return whole_list(applied(requests, is_dry_run=body["is_dry_run"]))


@dashboards.operation("GET", "/<dashboard_id>", answer=DashboardSchema)
def show(dashboard_id: str) -> CustomDashboard:
    """Return a dashboard."""
    with database() as session:
        return get_dashboard(session, current_scope(), dashboard_id)


@dashboards.operation("PUT", "/<dashboard_id>", body=DashboardRequestSchema, answer=DashboardSchema)
def replace(dashboard_id: str, body: dict[str, Any]) -> CustomDashboard:
    """Replace a dashboard of yours; admins may replace shared ones of others."""
    request = _checked(body)
    with database() as session:
        _check_if_match(session, dashboard_id)
        return replace_dashboard(session, current_scope(), dashboard_id, request, now=now())


@dashboards.operation("DELETE", "/<dashboard_id>", status=HTTPStatus.NO_CONTENT)
def delete(dashboard_id: str) -> None:
    """Delete a dashboard of yours; admins may delete shared ones of others."""
    with database() as session:
        _check_if_match(session, dashboard_id)
        delete_dashboard(session, current_scope(), dashboard_id)


def dashboard_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of dashboards."""
    return file_schema(
        DashboardFileSchema(exclude=("is_dry_run",)),
        title="Vedette dashboards",
        description="Custom dashboards, as `vedette dashboards apply -f FILE` reads them.",
    )


def _checked(body: dict[str, Any]) -> DashboardRequest:
    request = dashboard_request(body)
    raise_errors(metric_errors(portal().store, request.panels, tenants=current_scope().tenants))
    return request


def _check_if_match(session: Session, dashboard_id: str) -> None:
    read = partial(get_dashboard, session, current_scope(), dashboard_id)
    dashboards.check_if_match(session, CustomDashboard, dashboard_id, read, DashboardSchema)
