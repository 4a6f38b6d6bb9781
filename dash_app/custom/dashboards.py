"""Custom dashboards: who sees which, who may change them, and how many there may be.

A private dashboard is its author's alone. A shared one is seen by the whole tenant, and changed by
its author and the tenant's admins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Unpack

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from core.errors import ConflictError, NotFoundError
from core.paging import Page, Paging, list_page
from dash_app.custom.models import (
    MAX_DESCRIPTION_LENGTH,
    MAX_NAME_LENGTH,
    CustomDashboard,
    SavedView,
)
from dash_app.custom.panels import (
    Errors,
    Panel,
    panels_errors,
    raise_errors,
    store_panels,
)
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_OF_USER = 50
MAX_SHARED = 200
DASHBOARD_SORTS = {
    "name": CustomDashboard.name,
    "created_at": CustomDashboard.created_at,
    "updated_at": CustomDashboard.updated_at,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardRequest:
    """A dashboard as its author defines it."""

    name: str
    description: str = ""
    is_shared: bool = False
    panels: Sequence[Panel] = ()


def visible(scope: Scope, model: type[CustomDashboard] | type[SavedView]) -> Select[Any]:
    """Select the rows of `model` that the current user sees: their own, and shared ones."""
    statement = scope.select(select(model), model)
    return statement.where(or_(model.is_shared, model.user_id == scope.user_id))


def list_dashboards(
    session: Session, scope: Scope, *, search: str = "", **paging: Unpack[Paging]
) -> Page[CustomDashboard]:
    """Return a page of the dashboards that the user sees; `search` is a part of the name."""
    scope.require(Permission.VIEW)
    statement = visible(scope, CustomDashboard)
    if search:
        statement = statement.where(CustomDashboard.name.icontains(search, autoescape=True))
    return list_page(session, statement, DASHBOARD_SORTS, last=CustomDashboard.id, **paging)


def get_dashboard(session: Session, scope: Scope, ident: str) -> CustomDashboard:
    """Return a dashboard.

    Raises:
        NotFoundError: there is none, or the user doesn't see it.
    """
    scope.require(Permission.VIEW)
    statement = visible(scope, CustomDashboard).where(CustomDashboard.id == ident)
    found: CustomDashboard | None = session.scalars(statement).unique().one_or_none()
    if found is None:
        raise NotFoundError.of("dashboard", ident)
    return found


def may_change(scope: Scope, dashboard: CustomDashboard) -> bool:
    """Whether the user may change or delete a dashboard that they see."""
    is_own = dashboard.user_id == scope.user_id
    return scope.allows(Permission.EDIT_DASHBOARDS if is_own else Permission.EDIT_ANY_DASHBOARD)


def create_dashboard(
    session: Session, scope: Scope, request: DashboardRequest, *, now: datetime
) -> CustomDashboard:
    """Save a new dashboard of the user.

    Raises:
        InvalidInputError: names every invalid field.
        ConflictError: the name is taken, or there are too many dashboards.
    """
    scope.require(Permission.EDIT_DASHBOARDS)
    dashboard = CustomDashboard(
        tenant_id=scope.require_tenant(), user_id=scope.user_id, created_at=now, is_shared=False
    )
    raise_errors(request_errors(request))
    check_room(session, CustomDashboard, scope, most=MAX_OF_USER, noun="dashboards")
    _fill(session, dashboard, request, now=now)
    session.add(dashboard)
    session.flush()
    session.refresh(dashboard)
    return dashboard


def replace_dashboard(
    session: Session, scope: Scope, ident: str, request: DashboardRequest, *, now: datetime
) -> CustomDashboard:
    """Replace a dashboard; its author stays the same. Raises as `create_dashboard`."""
    dashboard = _changeable(session, scope, ident)
    raise_errors(request_errors(request))
    _fill(session, dashboard, request, now=now)
    session.flush()
    return dashboard


def delete_dashboard(session: Session, scope: Scope, ident: str) -> str:
    """Delete a dashboard; return its name."""
    dashboard = _changeable(session, scope, ident)
    session.delete(dashboard)
    session.flush()
    return dashboard.name


def request_of(dashboard: CustomDashboard) -> DashboardRequest:
    """Return a dashboard as a request."""
    return DashboardRequest(
        name=dashboard.name,
        description=dashboard.description,
        is_shared=dashboard.is_shared,
        panels=dashboard.panel_list,
    )


def request_errors(request: DashboardRequest) -> Errors:
    """Return the errors of a request by field, without a look at the database."""
    errors: Errors = name_errors(request.name)
    if len(request.description) > MAX_DESCRIPTION_LENGTH:
        errors["description"] = [f"Use at most {MAX_DESCRIPTION_LENGTH} characters."]
    return errors | panels_errors(request.panels)


def name_errors(name: str) -> Errors:
    """Return the errors of the name of a dashboard or a view."""
    if not name.strip() or len(name.strip()) > MAX_NAME_LENGTH or not name.isprintable():
        return {"name": [f"The name must have 1 to {MAX_NAME_LENGTH} printable characters."]}
    return {}


def check_room(
    session: Session,
    model: type[CustomDashboard] | type[SavedView],
    scope: Scope,
    *,
    most: int,
    noun: str,
) -> None:
    """Raise `ConflictError` if the user has the most rows of a model."""
    tenant_id = scope.require_tenant()
    statement = select(func.count()).select_from(model)
    own = statement.where(model.tenant_id == tenant_id, model.user_id == scope.user_id)
    if (session.scalar(own) or 0) >= most:
        raise ConflictError(f"You have {most} {noun} already. Delete one first.")


def check_shared(
    session: Session,
    model: type[CustomDashboard] | type[SavedView],
    tenant_id: str,
    *,
    most: int,
    noun: str,
) -> None:
    """Raise `ConflictError` if the tenant has the most shared rows of a model."""
    statement = select(func.count()).select_from(model)
    if (
        session.scalar(statement.where(model.tenant_id == tenant_id, model.is_shared)) or 0
    ) >= most:
        raise ConflictError(f"Your tenant shares {most} {noun} already. Delete one first.")


def check_name(session: Session, row: CustomDashboard | SavedView, name: str, *, noun: str) -> None:
    """Raise `ConflictError` if another row of the same user has the name."""
    model = type(row)
    taken = select(model.id).where(
        model.tenant_id == row.tenant_id,
        model.user_id == row.user_id,
        model.name == name,
        model.id != (row.id or ""),
    )
    if session.scalar(taken):
        message = f"There is a {noun} {name!r} already. Use another name."
        raise ConflictError(message, errors={"name": [message]})


def _fill(
    session: Session, dashboard: CustomDashboard, request: DashboardRequest, *, now: datetime
) -> None:
    name = request.name.strip()
    with session.no_autoflush:
        check_name(session, dashboard, name, noun="dashboard")
        if request.is_shared and not dashboard.is_shared:
            check_shared(
                session, CustomDashboard, dashboard.tenant_id, most=MAX_SHARED, noun="dashboards"
            )
    values: Mapping[str, Any] = {
        "name": name,
        "description": request.description.strip(),
        "is_shared": request.is_shared,
        "panels": store_panels(request.panels),
        "updated_at": now,
    }
    for field, value in values.items():
        setattr(dashboard, field, value)


def _changeable(session: Session, scope: Scope, ident: str) -> CustomDashboard:
    dashboard = get_dashboard(session, scope, ident)
    is_own = dashboard.user_id == scope.user_id
    scope.require(Permission.EDIT_DASHBOARDS if is_own else Permission.EDIT_ANY_DASHBOARD)
    return dashboard
