"""`/rules`: threshold rules, and what they would say now."""

from http import HTTPStatus
from typing import Any

from marshmallow import Schema, fields

from alerting.models import Rule
from alerting.preview import preview_rule
from alerting.service import (
    RULE_SORTS,
    RuleRequest,
    create_rule,
    delete_rule,
    get_rule,
    list_rules,
    rule_expression,
    set_rule_enabled,
    update_rule,
)
from alerting.states import Comparison, NoDataPolicy, Severity
from portal.api.blueprint import resource
from portal.api.schemas import PageQuery, StrictSchema, envelope, instant, page_of, whole_list
from portal.api.sorting import sort_field
from portal.context import current_scope, database, now, portal, public_url
from tenants.permissions import Permission
from timeseries.store import Aggregate

rules = resource("Rules", "/rules", "Threshold rules.", changes=Permission.EDIT_ALERTS)


class RuleSchema(Schema):
    """A threshold on an aggregate of a field over a window, by series group."""

    id = fields.String()
    tenant_id = fields.String()
    name = fields.String()
    expression = fields.Function(rule_expression)
    measurement = fields.String()
    field = fields.String()
    aggregate = fields.String()
    window_seconds = fields.Float()
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
    is_enabled = fields.Boolean()
    receiver_ids = fields.List(fields.String())
    created_at = instant()
    evaluated_at = instant()
    evaluation_error = fields.String()


class RuleRequestSchema(StrictSchema):
    """A rule as its author writes it."""

    name = fields.String(required=True)
    measurement = fields.String(required=True)
    field = fields.String(required=True)
    aggregate = fields.Enum(Aggregate, by_value=True, load_default=Aggregate.AVG)
    window_seconds = fields.Float(load_default=300.0)
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
    is_enabled = fields.Boolean(load_default=True)
    receiver_ids = fields.List(fields.String(), load_default=list)


class RuleQuery(PageQuery):
    """In which order."""

    sort = sort_field(RULE_SORTS, default="name")


class PreviewGroupSchema(Schema):
    """What a rule says of one series group now."""

    tags = fields.Dict(keys=fields.String(), values=fields.String())
    value = fields.Float(allow_none=True)
    severity = fields.Enum(Severity, by_value=True, allow_none=True)


@rules.operation("GET", query=RuleQuery, answer=page_of(RuleSchema))
def list_all(query: dict[str, Any]) -> dict[str, Any]:
    """List rules by name."""
    with database() as session:
        return envelope(list_rules(session, current_scope(), **query))


@rules.operation("POST", body=RuleRequestSchema, answer=RuleSchema, status=HTTPStatus.CREATED)
def create(body: dict[str, Any]) -> Rule:
    """Add a rule."""
    with database() as session:
        return create_rule(session, current_scope(), RuleRequest(**body), now=now())


@rules.operation(
    "POST",
    "/preview",
    body=RuleRequestSchema,
    answer=page_of(PreviewGroupSchema),
    needs=Permission.VIEW,
)
def preview(body: dict[str, Any]) -> dict[str, Any]:
    """Return what a rule would say now, without saving it."""
    groups = preview_rule(portal().store, current_scope(), RuleRequest(**body), now=now())
    return whole_list(groups)


@rules.operation(
    "GET", "/<rule_id>", answer=RuleSchema, volatile=("evaluated_at", "evaluation_error")
)
def show(rule_id: str) -> Rule:
    """Return a rule."""
    with database() as session:
        return get_rule(session, current_scope(), rule_id)


@rules.operation("PUT", "/<rule_id>", body=RuleRequestSchema, answer=RuleSchema, row=Rule)
def replace(rule_id: str, body: dict[str, Any]) -> Rule:
    """Replace a rule by another under the same id."""
    with database() as session:
        return update_rule(
            session,
            current_scope(),
            rule_id,
            RuleRequest(**body),
            now=now(),
            public_url=public_url(),
        )


@rules.operation("DELETE", "/<rule_id>", status=HTTPStatus.NO_CONTENT, row=Rule)
def delete(rule_id: str) -> None:
    """Delete a rule with its alerts."""
    with database() as session:
        delete_rule(session, current_scope(), rule_id, now=now(), public_url=public_url())


@rules.operation("POST", "/<rule_id>/enable", answer=RuleSchema)
def enable(rule_id: str) -> Rule:
    """Evaluate the rule again."""
    with database() as session:
        set_rule_enabled(
            session, current_scope(), rule_id, is_enabled=True, now=now(), public_url=public_url()
        )
        return get_rule(session, current_scope(), rule_id)


@rules.operation("POST", "/<rule_id>/disable", answer=RuleSchema)
def disable(rule_id: str) -> Rule:
    """Keep the rule and evaluate it no more."""
    with database() as session:
        set_rule_enabled(
            session, current_scope(), rule_id, is_enabled=False, now=now(), public_url=public_url()
        )
        return get_rule(session, current_scope(), rule_id)
