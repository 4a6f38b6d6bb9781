"""`/saved-views`: addresses of dashboards and reports under names."""

from marshmallow import Schema, fields

from dash_app.custom.models import SavedView
from dash_app.custom.views import (
    ViewRequest,
    create_view,
    delete_view,
    get_view,
    list_views,
    replace_view,
)
from portal.api.blueprint import APIBlueprint
from portal.api.objects import Objects
from portal.api.schemas import StrictSchema, about, instant
from portal.context import current_scope

saved_views = APIBlueprint("Saved views", "/saved-views", "Saved views of dashboards and reports.")


class SavedViewSchema(Schema):
    """A saved view."""

    id = fields.String()
    name = fields.String()
    address = fields.String()
    is_shared = fields.Boolean()
    is_default = fields.Boolean(**about("The start page of its user."))
    is_own = fields.Function(
        lambda view: view.user_id == current_scope().user_id, metadata={"type": "boolean"}
    )
    user_email = fields.Function(
        lambda view: view.user.email if view.user else None,
        metadata={"type": ["string", "null"]},
    )
    created_at = instant()


class SavedViewRequestSchema(StrictSchema):
    """A view to save."""

    name = fields.String(required=True)
    address = fields.String(
        required=True,
        **about(
            "Path and query of a dashboard or a report.",
            example="/dashboards/?range=6h&state=unhealthy",
        ),
    )
    is_shared = fields.Boolean(load_default=False, **about("All users of the tenant see it."))
    is_default = fields.Boolean(
        load_default=False, **about("Your start page, instead of the last one.")
    )


objects = Objects(
    saved_views,
    "/<view_id>",
    read=get_view,
    answer=SavedViewSchema,
    model=SavedView,
    body=SavedViewRequestSchema,
    request=ViewRequest,
)
objects.lists("List your views, and those that your tenant shares.", list_views)
objects.creates("Save a view.", create_view)
objects.shows("Return a view.")
objects.replaces("Replace a view of yours; admins may replace shared ones of others.", replace_view)
objects.deletes("Delete a view of yours; admins may delete shared ones of others.", delete_view)
