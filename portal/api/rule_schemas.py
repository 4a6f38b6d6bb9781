"""Schemas of `/rules`; the fields of a rule are those of `alerting.rule_request`."""

from typing import Any, ClassVar

from marshmallow import Schema, ValidationError, fields, pre_load, validate, validates_schema

from alerting.language.checks import DEFAULT_MAX_PER_HOUR, MAX_PER_HOUR
from alerting.language.parser import EXAMPLE
from alerting.language.text import parse_expression, rule_expression
from alerting.rule_request import EXPRESSED, RuleEntry, RuleRequest
from alerting.rules.backtest import MAX_DAYS
from alerting.rules.files import ChangeAction
from alerting.states import ActionKind, Severity
from core.errors import InvalidInputError
from portal.api.schemas import StrictSchema, about, instant
from portal.api.spec_schemas import request_schema, response_schema

MAX_RULES = 1000
# The fields of a rule that evaluations change.
EVALUATED = (
    *("evaluated_at", "evaluation_error", "query_seconds", "series"),
    *("skipped_evaluations", "skipped_at"),
)


class RuleActionSchema(StrictSchema):
    """An action of a rule when one of its alerts fires."""

    kind = fields.String(required=True, validate=validate.OneOf([*ActionKind]))
    is_dry_run = fields.Boolean(load_default=False, **about("Only record what would be done."))
    max_per_hour = fields.Integer(
        load_default=DEFAULT_MAX_PER_HOUR,
        validate=validate.Range(1, MAX_PER_HOUR),
        **about("What is over it is recorded and not done."),
    )
    severity = fields.String(
        load_default=Severity.WARNING.value,
        validate=validate.OneOf([*Severity]),
        **about("The least severity of an alert that has the action."),
    )
    labels = fields.Dict(
        keys=fields.String(),
        values=fields.String(),
        **about("Of the appliance; only with `label`."),
    )
    receiver = fields.String(**about("A webhook's name; only with `webhook`."))


def _actions() -> fields.List[Any]:
    return fields.List(
        fields.Nested(RuleActionSchema), load_default=list, **about("At most one of each kind.")
    )


class RuleSchema(response_schema(RuleRequest)):  # type: ignore[misc] # a class made at run time
    """An alert rule: a threshold on an aggregate of a field over a window, by series group."""

    actions = _actions()
    id = fields.String()
    tenant_id = fields.String()
    expression = fields.Function(rule_expression)
    pack_key = fields.String(**about("Its rule of the pack, and its runbook."))
    is_platform = fields.Function(
        lambda rule: rule.platform_rule_id is not None,
        **about("Only operators can change it.", type="boolean"),
    )
    created_at = instant()
    evaluated_at = instant()
    evaluation_error = fields.String()
    query_seconds = fields.Float()
    series = fields.Integer(**about("Series groups with values, counted every ten minutes."))
    skipped_evaluations = fields.Integer(
        **about("How often it was due while the evaluation before still ran.")
    )
    skipped_at = instant()


def _check_expression(text: str) -> None:
    try:
        parse_expression(text)
    except InvalidInputError as error:
        raise ValidationError(error.errors["expression"]) from error


class RuleRequestSchema(request_schema(RuleRequest)):  # type: ignore[misc] # a class made at run time
    """A new rule, or the replacement of one; without `expression`, the metric is required."""

    # A change of the expression replaces these, and the other way round.
    alternatives: ClassVar = {"expression": EXPRESSED}

    actions = _actions()
    expression = fields.String(
        validate=_check_expression,
        **about(
            "The rule as text, instead of `measurement`, `field` and the fields "
            "that describe query and condition.",
            example=EXAMPLE,
        ),
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
        if not isinstance(original, dict) or self.partial:
            return
        if "expression" in original:
            wrong_names = [name for name in EXPRESSED if name in original]
            message = "Leave it out: the expression has it."
        elif "promql" in original:
            wrong_names = []
        else:
            wrong_names = [name for name in ("measurement", "field") if name not in original]
            message = "Missing data for required field."
        if wrong_names:
            raise ValidationError({name: [message] for name in wrong_names})


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
    count = fields.Function(lambda firings: len(firings.periods), metadata={"type": "integer"})
    firing_seconds = fields.Float()
    longest_seconds = fields.Float()
    last_fired_at = instant()


class BacktestSchema(Schema):
    """Which series groups would have fired, most often first."""

    step_seconds = fields.Float(**about("Time between two evaluations; values are over this time."))
    groups = fields.Integer(**about("Series groups with values."))
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


class RuleEntrySchema(request_schema(RuleEntry)):  # type: ignore[misc] # a class made at run time
    """A rule of a file."""

    expression = fields.String(required=True, metadata={"example": EXAMPLE})
    actions = _actions()


class PrometheusGroupsSchema(StrictSchema):
    """Groups of rules as Prometheus' files have them."""

    groups = fields.List(
        fields.Dict(),
        required=True,
        validate=validate.Length(max=MAX_RULES),
    )


class ConvertedRulesSchema(Schema):
    """Rules for `POST /rules/apply`, and what was left out of them."""

    rules = fields.List(fields.Nested(RuleEntrySchema))
    left_out = fields.List(fields.String())


class RuleFileSchema(StrictSchema):
    """The rules of a file."""

    rules = fields.List(
        fields.Nested(RuleEntrySchema), required=True, validate=validate.Length(max=MAX_RULES)
    )
    deletes_others = fields.Boolean(
        load_default=False, **about("Delete rules that the file doesn't have.")
    )
    is_dry_run = fields.Boolean(load_default=False, **about("Only return what would change."))


class RuleChangeSchema(Schema):
    """The change of a rule when a file is applied."""

    name = fields.String()
    action = fields.Enum(ChangeAction, by_value=True)
    before = fields.Nested(RuleEntrySchema, allow_none=True)
    after = fields.Nested(RuleEntrySchema, allow_none=True)
