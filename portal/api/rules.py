"""`/rules`: threshold rules and their preview."""

from functools import partial
from http import HTTPStatus
from typing import Any

from marshmallow import Schema, ValidationError, fields, pre_load, validate, validates_schema
from sqlalchemy.orm import Session

from alerting.backtest import MAX_DAYS, Backtest, backtest_rule
from alerting.expression import check_metric, preview_rule
from alerting.models import Rule
from alerting.rule_files import ChangeAction, RuleEntry, apply_rules, check_metrics, plan_rules
from alerting.rule_pack import rule_pack
from alerting.rule_request import RuleRequest
from alerting.rule_text import EXAMPLE, parse_expression, rule_expression
from alerting.service import (
    RULE_SORTS,
    create_rule,
    delete_rule,
    get_rule,
    list_rules,
    set_rule_enabled,
    update_rule,
)
from alerting.states import FUNCTIONS, Comparison, NoDataPolicy, Operator, Severity
from core.errors import InvalidInputError
from portal.api.blueprint import APIBlueprint
from portal.api.schemas import StrictSchema, envelope, instant, page_of, page_query, whole_list
from portal.context import current_scope, database, now, portal, public_url
from tenants.permissions import Permission
from timeseries.store import Aggregate

rules = APIBlueprint("Rules", "/rules", "Alert rules.", changes=Permission.EDIT_ALERTS)


class RuleSchema(Schema):
    """An alert rule: a threshold on an aggregate of a field over a window, by series group."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    expression = fields.Function(rule_expression)
    measurement = fields.String()
    field = fields.String()
    operator = fields.String()
    other_field = fields.String()
    aggregate = fields.String()
    window_seconds = fields.Float()
    ahead_seconds = fields.Float()
    group_by = fields.List(fields.String())
    filters = fields.Dict()
    comparison = fields.Enum(Comparison, by_value=True)
    warning_threshold = fields.Float(allow_none=True)
    critical_threshold = fields.Float(allow_none=True)
    warning_reset = fields.Float(allow_none=True)
    critical_reset = fields.Float(allow_none=True)
    for_seconds = fields.Float()
    keep_firing_seconds = fields.Float()
    no_data = fields.Enum(NoDataPolicy, by_value=True)
    interval_seconds = fields.Float()
    is_enabled = fields.Boolean()
    receiver_ids = fields.List(fields.String())
    annotation = fields.String()
    pack_key = fields.String(metadata={"description": "Its rule of the pack, and its runbook."})
    created_at = instant()
    evaluated_at = instant()
    evaluation_error = fields.String()
    query_seconds = fields.Float()


_ETAG = RuleSchema(exclude=("evaluated_at", "evaluation_error", "query_seconds"))


MAX_RULES = 1000
# What an expression has: all but the name, the receivers and whether the rule is enabled.
EXPRESSED = (
    "measurement",
    "field",
    "operator",
    "other_field",
    "aggregate",
    "window_seconds",
    "ahead_seconds",
    "group_by",
    "filters",
    "comparison",
    "warning_threshold",
    "critical_threshold",
    "warning_reset",
    "critical_reset",
    "for_seconds",
    "keep_firing_seconds",
    "no_data",
    "interval_seconds",
)


def _check_expression(text: str) -> None:
    try:
        parse_expression(text)
    except InvalidInputError as error:
        raise ValidationError(error.errors["expression"]) from error


class RuleRequestSchema(StrictSchema):
    """A new rule, or the replacement of one."""

    name = fields.String(required=True)
    expression = fields.String(
        validate=_check_expression,
        metadata={
            "description": "The rule as text, instead of `measurement`, `field` and the fields "
            "that describe query and condition.",
            "example": EXAMPLE,
        },
    )
    measurement = fields.String(metadata={"description": "Required without `expression`."})
    field = fields.String(metadata={"description": "Required without `expression`."})
    operator = fields.String(
        load_default="",
        validate=validate.OneOf(["", *Operator]),
        metadata={"description": "Arithmetic of the aggregates of `field` and `other_field`."},
    )
    other_field = fields.String(load_default="")
    aggregate = fields.String(load_default=Aggregate.AVG.value, validate=validate.OneOf(FUNCTIONS))
    window_seconds = fields.Float(load_default=300.0)
    ahead_seconds = fields.Float(
        load_default=0.0, metadata={"description": "How far a `forecast` looks ahead."}
    )
    group_by = fields.List(fields.String(), load_default=lambda: ["appliance"])
    filters = fields.Dict(
        keys=fields.String(), values=fields.List(fields.String()), load_default=dict
    )
    comparison = fields.Enum(Comparison, by_value=True, load_default=Comparison.ABOVE)
    warning_threshold = fields.Float(load_default=None, allow_none=True)
    critical_threshold = fields.Float(load_default=None, allow_none=True)
    warning_reset = fields.Float(load_default=None, allow_none=True)
    critical_reset = fields.Float(load_default=None, allow_none=True)
    for_seconds = fields.Float(load_default=0.0)
    keep_firing_seconds = fields.Float(load_default=0.0)
    no_data = fields.Enum(NoDataPolicy, by_value=True, load_default=NoDataPolicy.KEEP)
    interval_seconds = fields.Float(
        load_default=0.0,
        metadata={"description": "How often to evaluate; 0 is as often as the server does."},
    )
    is_enabled = fields.Boolean(load_default=True)
    receiver_ids = fields.List(fields.String(), load_default=list)
    annotation = fields.String(
        load_default="",
        metadata={"description": "A template of the alert's sentence; see docs/alerts.md."},
    )

    @pre_load
    def expand(self, data: Any, **_options: object) -> Any:  # noqa: ANN401 - any JSON
        """Replace a valid expression with the fields that it has."""
        text = data.get("expression") if isinstance(data, dict) else None
        if not isinstance(text, str):
            return data
        try:
            rule = parse_expression(text)
        except InvalidInputError:
            return data  # reported by the validation of the field
        others = {name: value for name, value in data.items() if name != "expression"}
        return others | {name: getattr(rule, name) for name in EXPRESSED}

    @validates_schema(pass_original=True, skip_on_field_errors=False)
    def check_alternatives(self, _data: object, original: Any, **_options: object) -> None:  # noqa: ANN401 - any JSON
        """Require an expression, or a measurement and a field, but not both."""
        if not isinstance(original, dict):
            return
        if "expression" in original:
            found = [name for name in EXPRESSED if name in original]
            message = "Leave it out: the expression has it."
        else:
            found = [name for name in ("measurement", "field") if name not in original]
            message = "Missing data for required field."
        if found:
            raise ValidationError({name: [message] for name in found})


class PreviewGroupSchema(Schema):
    """Current result of a rule for one series group."""

    tags = fields.Dict(keys=fields.String(), values=fields.String())
    value = fields.Float(allow_none=True)
    severity = fields.Enum(Severity, by_value=True, allow_none=True)


class BacktestQuery(StrictSchema):
    """How far back."""

    days = fields.Integer(load_default=7, validate=validate.Range(1, MAX_DAYS))


class FiringsSchema(Schema):
    """How often and how long one series group would have fired."""

    tags = fields.Dict(keys=fields.String(), values=fields.String())
    count = fields.Function(lambda one: len(one.periods), metadata={"type": "integer"})
    firing_seconds = fields.Float()
    longest_seconds = fields.Float()
    last_fired_at = instant()


class BacktestSchema(Schema):
    """Which series groups would have fired, most often first."""

    step_seconds = fields.Float(
        metadata={"description": "Time between two evaluations; values are over this time."}
    )
    groups = fields.Integer(metadata={"description": "Series groups with values."})
    firings = fields.List(fields.Nested(FiringsSchema))


class PackRuleSchema(Schema):
    """A rule of the rule pack with its runbook."""

    key = fields.String()
    name = fields.String()
    expression = fields.String()
    source = fields.Url()
    annotation = fields.String()
    meaning = fields.String()
    steps = fields.List(fields.String())


class RulePackSchema(Schema):
    """The rules that every tenant has from the start."""

    rules = fields.List(fields.Nested(PackRuleSchema))


class RuleEntrySchema(StrictSchema):
    """A rule of a file."""

    name = fields.String(required=True)
    expression = fields.String(required=True, metadata={"example": EXAMPLE})
    receivers = fields.List(
        fields.String(), load_default=list, metadata={"description": "Names of receivers."}
    )
    is_enabled = fields.Boolean(load_default=True)
    annotation = fields.String(load_default="")


class RuleFileSchema(StrictSchema):
    """The rules of a file."""

    rules = fields.List(
        fields.Nested(RuleEntrySchema), required=True, validate=validate.Length(max=MAX_RULES)
    )
    deletes_others = fields.Boolean(
        load_default=False, metadata={"description": "Delete rules that the file doesn't have."}
    )
    is_dry_run = fields.Boolean(
        load_default=False, metadata={"description": "Only return what would change."}
    )


class RuleChangeSchema(Schema):
    """What applying a file does, or did, to a rule."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    before = fields.Nested(RuleEntrySchema, allow_none=True)
    after = fields.Nested(RuleEntrySchema, allow_none=True)


@rules.operation("GET", query=page_query(RULE_SORTS, default="name"), answer=page_of(RuleSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List rules."""
    with database() as session:
        return envelope(list_rules(session, current_scope(), **query))


@rules.operation("POST", body=RuleRequestSchema, answer=RuleSchema, status=HTTPStatus.CREATED)
def create(body: dict[str, Any]) -> Rule:
    """Create a rule; its field must exist if its measurement has samples."""
    request = RuleRequest(**body)
    check_metric(portal().store, current_scope(), request)
    with database() as session:
        return create_rule(session, current_scope(), request, now=now())


@rules.operation(
    "POST",
    "/preview",
    body=RuleRequestSchema,
    answer=page_of(PreviewGroupSchema),
    needs=Permission.VIEW,
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Evaluate a rule now without saving it."""
    groups = preview_rule(portal().store, current_scope(), RuleRequest(**body), now=now())
    return whole_list(groups)


@rules.operation(
    "POST",
    "/backtest",
    query=BacktestQuery,
    body=RuleRequestSchema,
    answer=BacktestSchema,
    needs=Permission.VIEW,
)
def backtest(query: dict[str, Any], body: dict[str, Any]) -> Backtest:
    """Return when a rule would have fired in the last days, without saving it."""
    store, scope = portal().store, current_scope()
    return backtest_rule(store, scope, RuleRequest(**body), now=now(), days=query["days"])


@rules.operation("POST", "/apply", body=RuleFileSchema, answer=page_of(RuleChangeSchema))
def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Create, update and, if asked, delete rules by name to match a file: all of it or nothing."""
    scope = current_scope()
    entries = [RuleEntry(**entry) for entry in body["rules"]]
    deletes_others = body["deletes_others"]
    with database() as session:
        changes = plan_rules(session, scope, entries, deletes_others=deletes_others)
    check_metrics(portal().store, scope, changes)
    if not body["is_dry_run"]:
        with database() as session:
            # Planned again: another user may have changed rules meanwhile.
            changes = plan_rules(session, scope, entries, deletes_others=deletes_others)
            apply_rules(session, scope, changes, now=now(), public_url=public_url())
    return whole_list(changes)


@rules.operation("GET", "/pack", answer=RulePackSchema, has_etag=False)
def pack() -> dict[str, Any]:
    """Return the rule pack with its runbooks."""
    return {"rules": list(rule_pack().values())}


@rules.operation("GET", "/<rule_id>", answer=RuleSchema)
def show(rule_id: str) -> Rule:
    """Return a rule."""
    with database() as session:
        rule = get_rule(session, current_scope(), rule_id)
    rules.set_etag(rule, _ETAG)
    return rule


@rules.operation("PUT", "/<rule_id>", body=RuleRequestSchema, answer=RuleSchema)
def replace(rule_id: str, body: dict[str, Any]) -> Rule:
    """Replace a rule; its id stays the same."""
    request = RuleRequest(**body)
    with database() as session:
        before = get_rule(session, current_scope(), rule_id)
    if (before.measurement, before.field) != (request.measurement, request.field):
        check_metric(portal().store, current_scope(), request)
    with database() as session:
        _check_if_match(session, rule_id)
        rule = update_rule(
            session,
            current_scope(),
            rule_id,
            request,
            now=now(),
            public_url=public_url(),
        )
    rules.set_etag(rule, _ETAG)
    return rule


@rules.operation("DELETE", "/<rule_id>", status=HTTPStatus.NO_CONTENT)
def delete(rule_id: str) -> None:
    """Delete a rule and its alerts."""
    with database() as session:
        _check_if_match(session, rule_id)
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())


@rules.operation("POST", "/<rule_id>/enable", answer=RuleSchema)
def enable(rule_id: str) -> Rule:
    """Enable a rule."""
    return _set_enabled(rule_id, is_enabled=True)


@rules.operation("POST", "/<rule_id>/disable", answer=RuleSchema)
def disable(rule_id: str) -> Rule:
    """Disable a rule: it is no longer evaluated."""
    return _set_enabled(rule_id, is_enabled=False)


def _set_enabled(rule_id: str, *, is_enabled: bool) -> Rule:
    scope, url = current_scope(), public_url()
    with database() as session:
        set_rule_enabled(session, scope, rule_id, is_enabled=is_enabled, now=now(), public_url=url)
        return get_rule(session, scope, rule_id)


def _check_if_match(session: Session, rule_id: str) -> None:
    read = partial(get_rule, session, current_scope(), rule_id)
    rules.check_if_match(session, Rule, rule_id, read, _ETAG)
