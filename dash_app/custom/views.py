"""Saved views: addresses of dashboards and reports under a name.

Views are their user's own, or shared with the tenant. A user's default view is their start page.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import urlsplit

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from dash_app.custom.dashboards import name_errors
from dash_app.custom.models import MAX_ADDRESS_LENGTH, SavedView
from dash_app.custom.panels import Errors
from tenants.permissions import Permission
from tenants.saved_items import SavedItems
from tenants.scope import Scope

ITEMS = SavedItems(
    model=SavedView,
    noun="saved view",
    own=None,
    others=Permission.EDIT_ANY_DASHBOARD,
    max_items=100,
    max_shared=200,
)
# Pages whose address holds what they show.
PATHS = ("/dashboards/", "/reports", "/gpu-usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRequest:
    """A view as its user saves it."""

    name: str
    address: str
    is_shared: bool = False
    is_default: bool = False


def list_views(session: Session, scope: Scope) -> list[SavedView]:
    """Return the user's views and those that the tenant shares, by name."""
    scope.require(Permission.VIEW)
    statement = ITEMS.select(scope).order_by(SavedView.name, SavedView.id)
    return list(session.scalars(statement).unique())


def get_view(session: Session, scope: Scope, ident: str) -> SavedView:
    """Return a view; raise `NotFoundError` if there is none that the user sees."""
    return ITEMS.get(session, scope, ident)


def default_address(session: Session, scope: Scope) -> str | None:
    """Return the address of the user's default view, if there is one."""
    statement = select(SavedView.address).where(
        SavedView.tenant_id == scope.tenant_id,
        SavedView.user_id == scope.user_id,
        SavedView.is_default,
    )
    return session.scalar(statement)


def create_view(
    session: Session, scope: Scope, request: ViewRequest, *, now: datetime
) -> SavedView:
    """Save a view of the user.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or there are too many views.
    """
    view = SavedView(
        tenant_id=scope.tenant_id, user_id=scope.user_id, created_at=now, is_shared=False
    )
    _check(scope, request)
    ITEMS.check_room(session, scope)
    _fill(session, view, request)
    session.add(view)
    session.flush()
    session.refresh(view)
    return view


def replace_view(session: Session, scope: Scope, ident: str, request: ViewRequest) -> SavedView:
    """Replace a view. Raises as `create_view`."""
    view = ITEMS.changeable(session, scope, ident)
    _check(scope, request)
    if view.user_id != scope.user_id:
        request = replace(request, is_default=view.is_default)
    _fill(session, view, request)
    session.flush()
    return view


def delete_view(session: Session, scope: Scope, ident: str) -> None:
    """Delete a view."""
    session.delete(ITEMS.changeable(session, scope, ident))
    session.flush()


def _check(scope: Scope, request: ViewRequest) -> None:
    if request.is_shared:
        scope.require(Permission.EDIT_DASHBOARDS)
    errors: Errors = name_errors(request.name)
    parts = urlsplit(request.address)
    if parts.scheme or parts.netloc or not parts.path.startswith(PATHS):
        shown = repr(request.address[:100])
        errors["address"] = [
            f"{shown} is not the address of a dashboard or a report, such as /dashboards/?range=6h."
        ]
    elif len(request.address) > MAX_ADDRESS_LENGTH:
        errors["address"] = [f"Use at most {MAX_ADDRESS_LENGTH} characters."]
    if errors:
        details = " ".join(text for texts in errors.values() for text in texts)
        raise InvalidInputError(f"The view was not saved. {details}", errors=errors)


def _fill(session: Session, view: SavedView, request: ViewRequest) -> None:
    name = request.name.strip()
    with session.no_autoflush:
        ITEMS.check_name(session, name, tenant_id=view.tenant_id, user_id=view.user_id, but=view.id)
        if request.is_shared and not view.is_shared:
            ITEMS.check_shared(session, view.tenant_id)
    view.name, view.address, view.is_shared = name, request.address, request.is_shared
    view.is_default = request.is_default
    if request.is_default:
        others = update(SavedView).where(
            SavedView.tenant_id == view.tenant_id,
            SavedView.user_id == view.user_id,
            SavedView.id != (view.id or ""),
        )
        session.execute(others.values(is_default=False))
