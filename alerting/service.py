"""Rules and alerts as people see and change them; receivers and messages are in `receivers`."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import case, delete, func, select
from sqlalchemy.orm import Session

from alerting.expression import rule_expression
from alerting.models import Alert, AlertTransition, Receiver, Rule
from alerting.receivers import (
    create_receiver,
    delete_receiver,
    get_receiver,
    list_notifications,
    list_receivers,
)
from alerting.recording import resolve_alerts
from alerting.rule_request import RuleRequest, refuse, rule_faults
from alerting.states import AlertState, Severity
from core.paging import DEFAULT_PAGE_SIZE, Page, paginate
from core.sorting import Columns, sorted_by
from tenants.permissions import Permission
from tenants.scope import Scope

ALERT_SORTS: Columns = {
    "state": Alert.state,
    "severity": Alert.severity,
    "active_since_at": Alert.active_since_at,
    "fired_at": Alert.fired_at,
    "updated_at": Alert.updated_at,
}

RULE_SORTS: Columns = {
    "name": Rule.name,
    "created_at": Rule.created_at,
    "measurement": Rule.measurement,
    "is_enabled": Rule.is_enabled,
}

__all__ = [
    "RuleRequest",
    "alert_counts",
    "alert_transitions",
    "create_receiver",
    "create_rule",
    "delete_receiver",
    "delete_rule",
    "get_alert",
    "get_receiver",
    "get_rule",
    "list_alerts",
    "list_notifications",
    "list_receivers",
    "list_rules",
    "rule_expression",
    "set_rule_enabled",
    "update_rule",
]

# What a rule asks the store. Alerts found by another question are no answer to the new one.
_QUESTION = ("measurement", "field", "aggregate", "group_by", "filters", "comparison")
_ORDER = (
    AlertState.FIRING,
    AlertState.NO_DATA,
    AlertState.PENDING,
    AlertState.RESOLVED,
    AlertState.INACTIVE,
)
_SHOWN = frozenset(_ORDER) - {AlertState.INACTIVE}


def create_rule(session: Session, scope: Scope, request: RuleRequest, *, now: datetime) -> Rule:
    """Add a rule to the scope's tenant.

    Raises:
        InvalidInputError: names every faulty field.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    _check(session, request, tenant_id=tenant_id, rule_id=None)
    rule = Rule(tenant_id=tenant_id, created_by=scope.user_id, created_at=now, **_values(request))
    session.add(rule)
    session.flush()
    return rule


def update_rule(
    session: Session,
    scope: Scope,
    rule_id: str,
    request: RuleRequest,
    *,
    now: datetime,
    public_url: str = "",
) -> Rule:
    """Change a rule. One that now asks something else starts afresh: its alerts end and go."""
    rule = _editable(session, scope, rule_id)
    _check(session, request, tenant_id=rule.tenant_id, rule_id=rule.id)
    values = _values(request)
    asks_anew = any(getattr(rule, name) != values[name] for name in _QUESTION)
    if asks_anew or not request.is_enabled:
        resolve_alerts(session, rule, now=now, public_url=public_url)
    if asks_anew:
        session.execute(delete(Alert).where(Alert.rule_id == rule.id))
    for name, value in values.items():
        setattr(rule, name, value)
    session.flush()
    return rule


def set_rule_enabled(
    session: Session,
    scope: Scope,
    rule_id: str,
    *,
    is_enabled: bool,
    now: datetime,
    public_url: str = "",
) -> Rule:
    """Switch a rule on, or off, which resolves its alerts."""
    rule = _editable(session, scope, rule_id)
    if rule.is_enabled and not is_enabled:
        resolve_alerts(session, rule, now=now, public_url=public_url)
    rule.is_enabled = is_enabled
    session.flush()
    return rule


def delete_rule(
    session: Session, scope: Scope, rule_id: str, *, now: datetime, public_url: str = ""
) -> None:
    """Delete a rule with its alerts and their history; those that fire are told as resolved."""
    rule = _editable(session, scope, rule_id)
    resolve_alerts(session, rule, now=now, public_url=public_url)
    session.delete(rule)
    session.flush()


def get_rule(session: Session, scope: Scope, rule_id: str) -> Rule:
    """Return a rule; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Rule, rule_id, kind="rule")


def list_rules(
    session: Session,
    scope: Scope,
    *,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Rule]:
    """Return the rules that the scope may see, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Rule).order_by(Rule.name, Rule.id), Rule)
    return paginate(
        session, sorted_by(statement, sort, RULE_SORTS, last=Rule.id), number=page, size=page_size
    )


def list_alerts(
    session: Session,
    scope: Scope,
    *,
    states: Collection[AlertState] | None = None,
    rule_id: str | None = None,
    sort: str = "",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[Alert]:
    """Return alerts, those that need a look first: by state, severity, then the newest.

    Args:
        session: the database session.
        scope: who asks.
        states: only those in one of these states; None is every state but inactive.
        rule_id: only those of this rule.
        sort: names of `ALERT_SORTS`, see `core.sorting`.
        page: the page's number, from 1.
        page_size: how many on a page.
    """
    scope.require(Permission.VIEW)
    rank = {state: number for number, state in enumerate(_ORDER)}
    statement = scope.select(select(Alert), Alert).where(
        Alert.state.in_(_SHOWN if states is None else states)
    )
    if rule_id is not None:
        statement = statement.where(Alert.rule_id == rule_id)
    is_critical = case((Alert.severity == Severity.CRITICAL, 0), else_=1)
    order = (case(rank, value=Alert.state), is_critical, Alert.active_since_at.desc(), Alert.id)
    return paginate(
        session,
        sorted_by(statement.order_by(*order), sort, ALERT_SORTS, last=Alert.id),
        number=page,
        size=page_size,
    )


def get_alert(session: Session, scope: Scope, alert_id: str) -> Alert:
    """Return an alert; another tenant's is as good as missing."""
    scope.require(Permission.VIEW)
    return scope.get(session, Alert, alert_id, kind="alert")


def alert_transitions(
    session: Session,
    scope: Scope,
    alert_id: str,
    *,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[AlertTransition]:
    """Return one page of an alert's history, newest first."""
    alert = get_alert(session, scope, alert_id)
    statement = select(AlertTransition).where(AlertTransition.alert_id == alert.id)
    newest_first = statement.order_by(AlertTransition.at.desc(), AlertTransition.id.desc())
    return paginate(session, newest_first, number=page, size=page_size)


def alert_counts(session: Session, scope: Scope) -> dict[Severity, int]:
    """Return how many alerts fire now, by severity; a severity without any has 0."""
    scope.require(Permission.VIEW)
    counted: Any = select(Alert.severity, func.count()).where(Alert.state == AlertState.FIRING)
    firing = scope.select(counted.group_by(Alert.severity), Alert)
    found = {row[0]: row[1] for row in session.execute(firing)}
    return {severity: found.get(severity, 0) for severity in Severity}


def _editable(session: Session, scope: Scope, rule_id: str) -> Rule:
    scope.require(Permission.EDIT_ALERTS)
    return get_rule(session, scope, rule_id)


def _check(session: Session, request: RuleRequest, *, tenant_id: str, rule_id: str | None) -> None:
    faults = rule_faults(request)
    same_name = select(Rule.id).where(
        Rule.tenant_id == tenant_id, Rule.name == request.name.strip()
    )
    if session.scalar(same_name) not in {None, rule_id}:
        faults.setdefault("name", []).append(
            f"Another rule is called {request.name.strip()!r}. Choose another name."
        )
    owned = select(Receiver.id).where(Receiver.tenant_id == tenant_id)
    unknown = sorted(set(request.receiver_ids) - set(session.scalars(owned)))
    if unknown:
        faults["receiver_ids"] = [f"There is no receiver {ident!r} here." for ident in unknown]
    refuse(faults)


def _values(request: RuleRequest) -> dict[str, Any]:
    return {
        "name": request.name.strip(),
        "measurement": request.measurement,
        "field": request.field,
        "aggregate": request.aggregate,
        "window_seconds": float(request.window_seconds),
        "group_by": list(dict.fromkeys(request.group_by)),
        "filters": {tag: list(values) for tag, values in request.filters.items()},
        "comparison": request.comparison,
        "warning_threshold": request.warning_threshold,
        "critical_threshold": request.critical_threshold,
        "warning_reset": request.warning_reset,
        "critical_reset": request.critical_reset,
        "for_seconds": float(request.for_seconds),
        "keep_firing_seconds": float(request.keep_firing_seconds),
        "no_data": request.no_data,
        "is_enabled": request.is_enabled,
        "receiver_ids": list(dict.fromkeys(request.receiver_ids)),
    }
