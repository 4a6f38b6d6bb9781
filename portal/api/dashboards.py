"""`/dashboards`: custom dashboards, one by one and as files."""

from typing import Any

from marshmallow import Schema, fields

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
from portal.api.objects import Objects
from portal.api.schemas import PageQuery, about, instant, page_of, sort_field, whole_list
from portal.context import current_scope, portal
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

    search = fields.String(load_default="", **about("Part of the name."))
    sort = sort_field(DASHBOARD_SORTS, default="name")


class DashboardChangeSchema(Schema):
    """The change of a dashboard when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    dashboard_id = fields.String(allow_none=True)


def _checked(**body: Any) -> DashboardRequest:  # noqa: ANN401 - the fields of the body
    request = dashboard_request(body)
    raise_errors(metric_errors(portal().store, request.panels, tenants=current_scope().tenants))
    return request


objects = Objects(
    dashboards,
    "/<dashboard_id>",
    read=get_dashboard,
    answer=DashboardSchema,
    model=CustomDashboard,
    body=DashboardRequestSchema,
    request=_checked,
)
objects.lists(
    "List your dashboards, and those that your tenant shares.",
    list_dashboards,
    query=DashboardQuery,
)
objects.creates(
    "Create a dashboard; its fields and tags must exist if their measurement has samples.",
    create_dashboard,
)


@dashboards.operation(
    "POST", "/apply", body=DashboardFileSchema, answer=page_of(DashboardChangeSchema)
)
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Create and update dashboards by name to match a file: all of it or nothing."""
    requests = [dashboard_request(dashboard) for dashboard in body["dashboards"]]
    return whole_list(applied(requests, is_dry_run=body["is_dry_run"]))


objects.shows("Return a dashboard.")
objects.replaces(
    "Replace a dashboard of yours; admins may replace shared ones of others.", replace_dashboard
)
objects.deletes(
    "Delete a dashboard of yours; admins may delete shared ones of others.", delete_dashboard
)


def dashboard_file_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of dashboards."""
    return file_schema(
        DashboardFileSchema(exclude=("is_dry_run",)),
        title="Vedette dashboards",
        description="Custom dashboards, as `vedette dashboards apply -f FILE` reads them.",
    )
