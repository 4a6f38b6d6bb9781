"""Rules and alerts: create, change, list. Receivers are in `receivers`."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from sqlalchemy import ColumnElement, case, delete, func, select
from sqlalchemy.orm import Session

from alerting.evaluation.recorder import ACTIVE_STATES, resolve_alerts
from alerting.language.checks import required_permissions, rule_errors, stored_action
from alerting.language.text import other_parts, with_canonical_parts
from alerting.models import Alert, AlertTransition, Receiver, Rule
from alerting.rule_request import Errors, RuleRequest, group_tags, raise_errors
from alerting.states import AlertState, ReceiverKind, Severity
from core.errors import ConflictError, ForbiddenError
from core.paging import DEFAULT_PAGE_SIZE, Columns, Page, Paging, list_page, paginate
from tenants.permissions import Permission
from tenants.quotas import count_rows, reserve_quota
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, NeededField

_SEVERITY_RANK = case({severity: severity.rank for severity in Severity}, value=Alert.severity)
ALERT_SORTS: Columns = {
    "state": Alert.state,
    "severity": _SEVERITY_RANK,
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

# A change of these, or of the tags to group by, makes a new query: the alerts end.
_QUERY_FIELDS = (
    "promql",
    "labels",
    "measurement",
    "field",
    "operator",
    "other_field",
    "aggregate",
    "ahead_seconds",
    "compared_with",
    "comparison",
)
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
        InvalidInputError: with the errors by field.
    """
    scope.require(Permission.EDIT_ALERTS)
    tenant_id = scope.require_tenant()
    require_actions(scope, request.actions)
    check_rule(session, request, tenant_id=tenant_id, rule_id=None)
    reserve_rules(session, tenant_id, 1)
    rule = new_rule(scope, request, now=now)
    session.add(rule)
    session.flush()
    return rule


def reserve_rules(session: Session, tenant_id: str, adding: int) -> None:
    """Raise `ConflictError` if a tenant may not have so many more rules of its own."""
    reserve_quota(
        session, tenant_id, "rules", partial(count_rules, session, tenant_id), adding=adding
    )


def count_rules(session: Session, tenant_id: str) -> int:
    """Return the number of a tenant's rules, without those of the platform and the rule pack."""
    is_own = (Rule.platform_rule_id.is_(None), Rule.pack_key == "")
    return count_rows(session, Rule.tenant_id == tenant_id, *is_own)


def new_rule(scope: Scope, request: RuleRequest, *, now: datetime) -> Rule:
    """Return a rule of the scope's tenant, without a check."""
    values = rule_values(request)
    tenant_id = scope.require_tenant()
    return Rule(tenant_id=tenant_id, created_by=scope.user_id, created_at=now, **values)


def update_rule(
    session: Session,
    scope: Scope,
    rule_id: str,
    request: RuleRequest,
    *,
    now: datetime,
    public_url: str = "",
) -> Rule:
    """Change a rule. A new query resolves and deletes its alerts."""
    rule = _editable(session, scope, rule_id)
    require_actions(scope, [*rule.actions, *request.actions])
    check_rule(session, request, tenant_id=rule.tenant_id, rule_id=rule.id)
    change_rule(session, rule, request, now=now, public_url=public_url)
    session.flush()
    return rule


def change_rule(
    session: Session, rule: Rule, request: RuleRequest, *, now: datetime, public_url: str = ""
) -> None:
    """Give a rule other values, without a check."""
    values = rule_values(request)
    has_new_query = set(group_tags(rule)) != set(group_tags(request)) or any(
        getattr(rule, name) != values[name] for name in _QUERY_FIELDS
    )
    if has_new_query or not request.is_enabled:
        resolve_alerts(session, rule, now=now, public_url=public_url)
    if has_new_query:
        session.execute(delete(Alert).where(Alert.rule_id == rule.id))
    has_new_filters = any(getattr(rule, name) != values[name] for name in ("filters", "matchers"))
    if has_new_query or not rule.is_enabled or has_new_filters:
        # Earlier windows are not evaluated later, and alerts that the filters exclude now end.
        rule.evaluated_at = None
    for name, value in values.items():
        if getattr(rule, name) != value:
            setattr(rule, name, value)


def set_rule_enabled(
    session: Session,
    scope: Scope,
    rule_id: str,
    *,
    is_enabled: bool,
    now: datetime,
    public_url: str = "",
) -> Rule:
    """Enable a rule, or disable it, which resolves its alerts."""
    rule = _editable(session, scope, rule_id)
    if rule.is_enabled and not is_enabled:
        resolve_alerts(session, rule, now=now, public_url=public_url)
    elif is_enabled and not rule.is_enabled:
        require_actions(scope, rule.actions)
        rule.evaluated_at = None  # what was before is not evaluated later
    rule.is_enabled = is_enabled
    session.flush()
    return rule


def delete_rule(
    session: Session, scope: Scope, rule_id: str, *, now: datetime, public_url: str = ""
) -> None:
    """Delete a rule with its alerts and their history; receivers get a resolved notification."""
    end_rule(session, _editable(session, scope, rule_id), now=now, public_url=public_url)


def end_rule(session: Session, rule: Rule, *, now: datetime, public_url: str = "") -> None:
    """Delete a rule, without a check."""
    resolve_alerts(session, rule, now=now, public_url=public_url)
    session.delete(rule)
    session.flush()


def get_rule(session: Session, scope: Scope, rule_id: str) -> Rule:
    """Return a rule of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, Rule, rule_id, kind="rule")


def list_rules(session: Session, scope: Scope, **paging: Unpack[Paging]) -> Page[Rule]:
    """Return the rules of the scope, by name."""
    scope.require(Permission.VIEW)
    statement = scope.select(select(Rule).order_by(Rule.name, Rule.id), Rule)
    return list_page(session, statement, RULE_SORTS, last=Rule.id, **paging)


def needed_fields(session: Session) -> set[NeededField]:
    """Return the fields that the enabled rules of all tenants read."""
    rules = session.execute(
        select(
            Rule.tenant_id,
            Rule.measurement,
            Rule.field,
            Rule.other_field,
            Rule.compared_with,
            Rule.and_condition,
        ).where(Rule.is_enabled)
    )
    needed: set[NeededField] = set()
    for tenant_id, measurement, field, other_field, compared_with, and_condition in rules:
        rule = RuleRequest(
            name="",
            measurement=measurement,
            field=field,
            other_field=other_field,
            compared_with=compared_with,
            and_condition=and_condition,
        )
        needed |= {
            (tenant_id, part.measurement, name)
            for part in (rule, *(part for _, part in other_parts(rule)))
            for name in (part.field, part.other_field)
            if name
        }
    return needed


def list_alerts(
    session: Session,
    scope: Scope,
    *,
    states: Collection[AlertState] | None = None,
    rule_id: str | None = None,
    severity: Severity | None = None,
    appliance_id: str | None = None,
    **paging: Unpack[Paging],
) -> Page[Alert]:
    """Return alerts by state (firing first), severity, and start (newest first).

    Without `states`, inactive alerts are left out.
    """
    scope.require(Permission.VIEW)
    rank = {state: number for number, state in enumerate(_ORDER)}
    statement = scope.select(select(Alert), Alert).where(
        Alert.state.in_(_SHOWN if states is None else states)
    )
    statement = statement.where(
        *alert_conditions(rule_id=rule_id, severity=severity, appliance_id=appliance_id)
    )
    most_severe = _SEVERITY_RANK.desc()
    order = (case(rank, value=Alert.state), most_severe, Alert.active_since_at.desc(), Alert.id)
    statement = statement.order_by(*order)
    return list_page(session, statement, ALERT_SORTS, last=Alert.id, **paging)


def alert_conditions(
    *, rule_id: str | None, severity: Severity | None, appliance_id: str | None
) -> list[ColumnElement[bool]]:
    """Return the conditions for alerts of a rule, with a severity, on an appliance."""
    return [
        *([Alert.rule_id == rule_id] if rule_id else []),
        *([Alert.severity == severity] if severity else []),
        *([Alert.tags[APPLIANCE_TAG].as_string() == appliance_id] if appliance_id else []),
    ]


def get_alert(session: Session, scope: Scope, alert_id: str) -> Alert:
    """Return an alert of the scope."""
    scope.require(Permission.VIEW)
    return scope.get(session, Alert, alert_id, kind="alert")


def acknowledge_alert(session: Session, scope: Scope, alert_id: str, *, now: datetime) -> Alert:
    """Note that the user works on an active alert, which stops its repeats and escalations.

    Raises:
        ConflictError: the alert is not active.
    """
    scope.require(Permission.EDIT_ALERTS)
    alert = get_alert(session, scope, alert_id)
    if alert.state not in ACTIVE_STATES:
        raise ConflictError("The alert is no longer active, so there is nothing to acknowledge.")
    if alert.acknowledged_at is None:
        alert.acknowledged_at, alert.acknowledged_by = now, scope.user_id
        fired = select(AlertTransition).where(
            AlertTransition.alert_id == alert.id, AlertTransition.to_state == AlertState.FIRING
        )
        newest = session.scalar(fired.order_by(AlertTransition.id.desc()).limit(1))
        if newest is not None and newest.acknowledged_at is None:
            newest.acknowledged_at = now
        session.flush()
    return alert


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


def alert_counts(
    session: Session, scope: Scope, *, appliances: Collection[str] | None = None
) -> dict[Severity, int]:
    """Return the number of firing alerts by severity, of all or of some appliances."""
    scope.require(Permission.VIEW)
    is_firing = Alert.state == AlertState.FIRING
    counts: Counter[Severity | None] = Counter()
    if appliances is None:
        counted: Any = select(Alert.severity, func.count()).where(is_firing)
        for severity, count in session.execute(
            scope.select(counted.group_by(Alert.severity), Alert)
        ):
            counts[severity] = count
    else:
        listed: Any = select(Alert.severity, Alert.tags).where(is_firing)
        for severity, tags in session.execute(scope.select(listed, Alert)):
            counts[severity] += tags.get(APPLIANCE_TAG) in appliances
    return {severity: counts[severity] for severity in Severity}


@dataclass(frozen=True, slots=True)
class RuleSurroundings:
    """The surroundings that a tenant's rules must fit: taken names by rule, and its receivers."""

    rule_ids: Mapping[str, str]
    receiver_ids: Collection[str]
    webhooks: Collection[str]


def read_surroundings(session: Session, tenant_id: str) -> RuleSurroundings:
    """Read what the rules of a tenant must fit."""
    named: Any = select(Rule.name, Rule.id).where(Rule.tenant_id == tenant_id)
    columns: Any = select(Receiver.id, Receiver.name, Receiver.kind)
    receivers = session.execute(columns.where(Receiver.tenant_id == tenant_id)).all()
    return RuleSurroundings(
        rule_ids=dict(session.execute(named).all()),
        receiver_ids={receiver.id for receiver in receivers},
        webhooks={receiver.name for receiver in receivers if receiver.kind is ReceiverKind.WEBHOOK},
    )


def surroundings_errors(
    request: RuleRequest, surroundings: RuleSurroundings, *, rule_id: str | None
) -> Errors:
    """Return why a rule that is new, or replaces the one with an ID, does not fit, by field."""
    errors: Errors = {}
    name = request.name.strip()
    if surroundings.rule_ids.get(name) not in {None, rule_id}:
        errors["name"] = [f"A rule named {name!r} already exists. Choose another name."]
    unknown = sorted(set(request.receiver_ids) - set(surroundings.receiver_ids))
    if unknown:
        errors["receiver_ids"] = [f"Receiver {ident!r} does not exist." for ident in unknown]
    called = [action["receiver"] for action in request.actions if action.get("receiver")]
    if set(called) - set(surroundings.webhooks):
        errors["actions"] = [
            f"{name!r} is not a webhook of the tenant. Add it as a receiver first."
            for name in called
            if name not in surroundings.webhooks
        ]
    return errors


def check_rule(
    session: Session, request: RuleRequest, *, tenant_id: str, rule_id: str | None
) -> None:
    """Check a rule that is created, or that replaces the one with an ID.

    Raises:
        InvalidInputError: with the errors by field.
    """
    errors = rule_errors(request)
    surroundings = read_surroundings(session, tenant_id)
    raise_errors(
        "rule", merged(errors, surroundings_errors(request, surroundings, rule_id=rule_id))
    )


def merged(errors: Errors, others: Errors) -> Errors:
    """Return the errors of both by field; invalid actions are not looked up."""
    messages = {name: texts for name, texts in others.items() if name != "actions"}
    if "actions" in others and "actions" not in errors:
        messages["actions"] = others["actions"]
    return errors | {name: [*errors.get(name, ()), *texts] for name, texts in messages.items()}


def _editable(session: Session, scope: Scope, rule_id: str) -> Rule:
    scope.require(Permission.EDIT_ALERTS)
    rule = get_rule(session, scope, rule_id)
    if rule.platform_rule_id is not None:
        raise ForbiddenError(
            "This rule is the platform's: only its operator can change it.", code="platform_rule"
        )
    return rule


def require_actions(scope: Scope, actions: Sequence[Mapping[str, Any]]) -> None:
    """Require what a user needs who does by hand what the actions do."""
    for permission in required_permissions(actions):
        scope.require(permission)


def rule_values(request: RuleRequest) -> dict[str, Any]:
    """Return the columns of a valid rule."""
    return asdict(with_canonical_parts(request)) | {
        "name": request.name.strip(),
        "group_by": list(dict.fromkeys(request.group_by)),
        "filters": {tag: list(values) for tag, values in request.filters.items()},
        "matchers": list(dict.fromkeys(request.matchers)),
        "receiver_ids": list(dict.fromkeys(request.receiver_ids)),
        "actions": [stored_action(action) for action in request.actions],
    }
