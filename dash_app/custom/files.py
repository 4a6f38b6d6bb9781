"""Dashboards as code: those of a file, compared by name with those that exist, applied together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
import yaml
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from core.untrusted_yaml import UntrustedYAMLError, load_untrusted_yaml
from dash_app.custom.dashboards import (
    ITEMS,
    DashboardRequest,
    create_dashboard,
    replace_dashboard,
    request_errors,
    request_of,
)
from dash_app.custom.models import CustomDashboard
from dash_app.custom.panels import Errors, Panel, metric_errors, raise_errors
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store

MAX_DASHBOARDS = 100


class ChangeAction(StrEnum):
    """The change that a file makes to a dashboard or a saved report."""

    CREATE = "create"
    UPDATE = "update"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class DashboardChange:
    """A file's change of a dashboard, planned or made; `dashboard_id` is None for a new one."""

    name: str
    action: ChangeAction
    dashboard_id: str | None
    request: DashboardRequest = field(repr=False)


def plan_dashboards(
    session: Session, scope: Scope, requests: Sequence[DashboardRequest]
) -> list[DashboardChange]:
    """Return the changes that make dashboards those of a file, in the file's order.

    A dashboard of the file is the user's own with its name, else a shared one that they may change,
    else a new one.

    Raises:
        InvalidInputError: with the errors of all dashboards, by `dashboards.NUMBER.FIELD`.
    """
    scope.require(Permission.EDIT_DASHBOARDS)
    rows = session.scalars(ITEMS.select(scope).order_by(CustomDashboard.id)).unique()
    others_first = sorted(rows, key=lambda row: row.user_id == scope.user_id)
    current = {row.name: row for row in others_first if ITEMS.may_change(scope, row)}
    counts = Counter(request.name.strip() for request in requests)
    errors: Errors = {}
    changes = []
    for number, request in enumerate(requests):
        field_errors = request_errors(request)
        name = request.name.strip()
        if counts[name] > 1:
            field_errors["name"] = [
                f"The file has several dashboards {name!r}. Rename all but one."
            ]
        errors |= {f"dashboards.{number}.{key}": texts for key, texts in field_errors.items()}
        row = current.get(name)
        changes.append(
            DashboardChange(name, _action(row, request), row.id if row else None, request)
        )
    raise_errors(errors)
    return changes


def check_change_metrics(store: Store, scope: Scope, changes: Sequence[DashboardChange]) -> None:
    """Check the metrics of new and changed dashboards; call it outside of transactions.

    Raises:
        InvalidInputError: with the errors of all dashboards, by `dashboards.NUMBER.panels...`.
    """
    errors: Errors = {}
    for number, change in enumerate(changes):
        if change.action is not ChangeAction.KEEP:
            panels, prefix = change.request.panels, f"dashboards.{number}."
            errors |= metric_errors(store, panels, tenants=scope.tenants, prefix=prefix)
    raise_errors(errors)


def apply_dashboards(
    session: Session, scope: Scope, changes: Sequence[DashboardChange], *, now: datetime
) -> None:
    """Make planned changes; on an error, the caller's transaction must undo those made before."""
    for change in changes:
        if change.dashboard_id is None:
            create_dashboard(session, scope, change.request, now=now)
        elif change.action is ChangeAction.UPDATE:
            replace_dashboard(session, scope, change.dashboard_id, change.request, now=now)


def to_yaml(requests: Sequence[DashboardRequest]) -> str:
    """Return dashboards as a file, without values that are defaults."""
    document = {"dashboards": [_entry(request) for request in requests]}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


def read_yaml(text: str) -> Any:  # noqa: ANN401 - any YAML
    """Return the document of a file.

    Raises:
        InvalidInputError: it is not YAML, is too large, or has no list of dashboards.
    """
    try:
        document = load_untrusted_yaml(text)
    except UntrustedYAMLError as error:
        message = f"The file can't be read as YAML: {error}."
        raise InvalidInputError(message, errors={"file": [message]}) from error
    if not isinstance(document, dict) or not isinstance(document.get("dashboards"), list):
        message = "The file has no list of dashboards. It begins with the line 'dashboards:'."
        raise InvalidInputError(message, errors={"file": [message]})
    return document


def _entry(request: DashboardRequest) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": request.name}
    entry |= {"description": request.description} if request.description else {}
    entry |= {"is_shared": True} if request.is_shared else {}
    return entry | {"panels": [_panel_entry(panel) for panel in request.panels]}


def _panel_entry(panel: Panel) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "title": panel.title,
        "chart": panel.chart.value,
        "measurement": panel.measurement,
        "fields": list(panel.fields),
        "aggregate": panel.aggregate.value,
    }
    entry |= {"group_by": list(panel.group_by)} if panel.group_by else {}
    filters = {tag: list(values) for tag, values in panel.filters.items()}
    entry |= {"filters": filters} if filters else {}
    entry |= {"is_wide": True} if panel.is_wide else {}
    entry |= {"unit": panel.unit} if panel.unit else {}
    limits = {"axis_min": panel.axis_min, "axis_max": panel.axis_max}
    entry |= {name: value for name, value in limits.items() if value is not None}
    thresholds = msgspec.to_builtins(panel.thresholds)
    return entry | ({"thresholds": thresholds} if thresholds else {})


def _action(row: CustomDashboard | None, request: DashboardRequest) -> ChangeAction:
    if row is None:
        return ChangeAction.CREATE
    is_same = _entry(request_of(row)) == _entry(request)
    return ChangeAction.KEEP if is_same else ChangeAction.UPDATE
