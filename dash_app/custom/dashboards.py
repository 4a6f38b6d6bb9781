"""Custom dashboards: who sees which, who may change them, and how many there may be.

A private dashboard is its author's alone. A shared one is seen by the whole tenant, and changed by
its author and the tenant's admins. Those of operators belong to no tenant; operators share them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from sqlalchemy.orm import Session

from core.paging import Page, Paging, list_page
from dash_app.custom.models import (
    MAX_DESCRIPTION_LENGTH,
    MAX_NAME_LENGTH,
    CustomDashboard,
)
from dash_app.custom.panels import (
    Errors,
    Panel,
    panels_errors,
    raise_errors,
    store_panels,
)
from dash_app.custom.variables import variable_errors
from tenants.permissions import Permission
from tenants.quotas import count_rows, reserve_quota
from tenants.saved_items import SavedItems
from tenants.scope import Scope

ITEMS = SavedItems(
    model=CustomDashboard,
    noun="dashboard",
    own=Permission.EDIT_DASHBOARDS,
    others=Permission.EDIT_ANY_DASHBOARD,
    max_items=50,
    max_shared=200,
)
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


def list_dashboards(
    session: Session, scope: Scope, *, search: str = "", **paging: Unpack[Paging]
) -> Page[CustomDashboard]:
    """Return a page of the dashboards that the user sees; `search` is a part of the name."""
    scope.require(Permission.VIEW)
    statement = ITEMS.select(scope)
    if search:
        statement = statement.where(CustomDashboard.name.icontains(search, autoescape=True))
    return list_page(session, statement, DASHBOARD_SORTS, last=CustomDashboard.id, **paging)


def get_dashboard(session: Session, scope: Scope, ident: str) -> CustomDashboard:
    """Return a dashboard; raise `NotFoundError` if there is none that the user sees."""
    return ITEMS.get(session, scope, ident)


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
        tenant_id=scope.tenant_id, user_id=scope.user_id, created_at=now, is_shared=False
    )
    raise_errors(request_errors(request))
    ITEMS.check_room(session, scope)
    if scope.tenant_id is not None:
        count = partial(count_dashboards, session, scope.tenant_id)
        reserve_quota(session, scope.tenant_id, "dashboards", count)
    _fill(session, dashboard, request, now=now)
    session.add(dashboard)
    session.flush()
    session.refresh(dashboard)
    return dashboard


def count_dashboards(session: Session, tenant_id: str) -> int:
    """Return the number of dashboards of a tenant's users."""
    return count_rows(session, CustomDashboard.tenant_id == tenant_id)


def replace_dashboard(
    session: Session, scope: Scope, ident: str, request: DashboardRequest, *, now: datetime
) -> CustomDashboard:
    """Replace a dashboard; its author stays the same. Raises as `create_dashboard`."""
    dashboard = ITEMS.changeable(session, scope, ident)
    raise_errors(request_errors(request))
    _fill(session, dashboard, request, now=now)
    session.flush()
    return dashboard


def delete_dashboard(session: Session, scope: Scope, ident: str) -> str:
    """Delete a dashboard; return its name."""
    dashboard = ITEMS.changeable(session, scope, ident)
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
    panel_errors, variables = panels_errors(request.panels), variable_errors(request.panels)
    both = {key: [*panel_errors.get(key, ()), *variables.get(key, ())] for key in variables}
    return errors | panel_errors | both


def name_errors(name: str) -> Errors:
    """Return the errors of the name of a dashboard or a view."""
    if not name.strip() or len(name.strip()) > MAX_NAME_LENGTH or not name.isprintable():
        return {"name": [f"The name must have 1 to {MAX_NAME_LENGTH} printable characters."]}
    return {}


def _fill(
    session: Session, dashboard: CustomDashboard, request: DashboardRequest, *, now: datetime
) -> None:
    name = request.name.strip()
    with session.no_autoflush:
        ITEMS.check_name(
            session,
            name,
            tenant_id=dashboard.tenant_id,
            user_id=dashboard.user_id,
            but=dashboard.id,
        )
        if request.is_shared and not dashboard.is_shared:
            ITEMS.check_shared(session, dashboard.tenant_id)
    values: Mapping[str, Any] = {
        "name": name,
        "description": request.description.strip(),
        "is_shared": request.is_shared,
        "panels": store_panels(request.panels),
        "updated_at": now,
    }
    for field, value in values.items():
        setattr(dashboard, field, value)
