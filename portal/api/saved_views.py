"""`/saved-views`: addresses of dashboards and reports under names."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields
from sqlalchemy.orm import Session

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
from portal.api.schemas import StrictSchema, instant, page_of, whole_list
from portal.context import current_scope, database, now

saved_views = APIBlueprint("Saved views", "/saved-views", "Saved views of dashboards and reports.")


class SavedViewSchema(Schema):
    """A saved view."""

    id = fields.String()
    name = fields.String()
    address = fields.String()
    is_shared = fields.Boolean()
    is_default = fields.Boolean(metadata={"description": "The start page of its user."})
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
        metadata={
            "description": "Path and query of a dashboard or a report.",
            "example": "/dashboards/?range=6h&state=unhealthy",
        },
    )
    is_shared = fields.Boolean(
        load_default=False, metadata={"description": "All users of the tenant see it."}
    )
    is_default = fields.Boolean(
        load_default=False, metadata={"description": "Your start page, instead of the last one."}
    )


@saved_views.operation("GET", answer=page_of(SavedViewSchema))
def list_all() -> dict[str, Any]:
    """List your views, and those that your tenant shares."""
    with database() as session:
        return whole_list(list_views(session, current_scope()))


@saved_views.operation(
    "POST", body=SavedViewRequestSchema, answer=SavedViewSchema, status=HTTPStatus.CREATED
)
def create(body: dict[str, Any]) -> SavedView:
    """Save a view."""
    with database() as session:
        return create_view(session, current_scope(), ViewRequest(**body), now=now())


@saved_views.operation("GET", "/<view_id>", answer=SavedViewSchema)
def show(view_id: str) -> SavedView:
    """Return a view."""
    with database() as session:
        return get_view(session, current_scope(), view_id)


@saved_views.operation("PUT", "/<view_id>", body=SavedViewRequestSchema, answer=SavedViewSchema)
def replace(view_id: str, body: dict[str, Any]) -> SavedView:
    """Replace a view of yours; admins may replace shared ones of others."""
    with database() as session:
        _check_if_match(session, view_id)
        return replace_view(session, current_scope(), view_id, ViewRequest(**body))


@saved_views.operation("DELETE", "/<view_id>", status=HTTPStatus.NO_CONTENT)
def delete(view_id: str) -> None:
    """Delete a view of yours; admins may delete shared ones of others."""
    with database() as session:
        _check_if_match(session, view_id)
        delete_view(session, current_scope(), view_id)


def _check_if_match(session: Session, view_id: str) -> None:
    read = partial(get_view, session, current_scope(), view_id)
    saved_views.check_if_match(session, SavedView, view_id, read, SavedViewSchema)
