"""A rule as a user writes it; its validation is in `rule_checks`."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from alerting.states import FUNCTIONS, Comparison, NoDataPolicy, Operator, Severity
from core.errors import InvalidInputError
from core.spec import About
from timeseries.store import APPLIANCE_TAG, Aggregate

if TYPE_CHECKING:  # commands parse rules without the server's packages
    from alerting.models import Rule

MAX_NAME_LENGTH = 100
ANY_VALUE = "*"
"""As a filter: series that have the tag, with any value."""

Errors = dict[str, list[str]]
Level = tuple[Severity, float | None, float | None]
"""A severity of a rule with its threshold and its reset, as far as it has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """The fields that are beside a rule's expression, also in files and rules of the platform."""

    name: str
    is_enabled: bool = True
    annotation: Annotated[str, About("A template of the alert's sentence; see docs/alerts.md.")] = (
        ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRequest(RuleSettings):
    """The fields of a rule that a user sets, with their defaults.

    The columns of `alerting.models.Rule`, the REST API, forms and the audit log follow these fields
    by name. `filters` maps a tag to its allowed values. A rule with an `and_condition` fires while
    both conditions hold. A rule in `promql` has neither measurement nor field.
    """

    measurement: str = ""
    field: str = ""
    promql: Annotated[
        str,
        About(
            "An expression in PromQL, instead of a metric: each series of its result is an alert, "
            "with the severity of the only threshold."
        ),
    ] = ""
    labels: Annotated[
        Mapping[str, str], About("What alerts of an expression in PromQL have besides its labels.")
    ] = dataclasses.field(default_factory=dict)
    operator: Annotated[
        str,
        About(
            "Arithmetic of the aggregates of `field` and `other_field`.",
            choices=("", *Operator),
        ),
    ] = ""
    other_field: str = ""
    aggregate: Annotated[str, About(choices=tuple(FUNCTIONS))] = Aggregate.AVG.value
    window_seconds: float = 300.0
    ahead_seconds: Annotated[float, About("How far a `forecast` looks ahead.")] = 0.0
    group_by: Sequence[str] = (APPLIANCE_TAG,)
    filters: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    matchers: Annotated[
        Sequence[str],
        About("More conditions on tags, as in silences: `gpu!=0`, `mount=~/data.*`."),
    ] = ()
    compared_with: Annotated[
        str,
        About(
            "Arithmetic with another aggregate, as in an expression: "
            "`/ avg(gpu.power_watts) over 1d offset 1d`."
        ),
    ] = ""
    comparison: Comparison = Comparison.ABOVE
    info_threshold: float | None = None
    warning_threshold: float | None = None
    critical_threshold: float | None = None
    info_reset: float | None = None
    warning_reset: float | None = None
    critical_reset: float | None = None
    and_condition: Annotated[
        str,
        About("A second condition, as in an expression: `last(disk.used_percent) over 5m > 70`."),
    ] = ""
    for_seconds: float = 0.0
    keep_firing_seconds: float = 0.0
    no_data: NoDataPolicy = NoDataPolicy.KEEP
    interval_seconds: Annotated[
        float, About("How often to evaluate; 0 is as often as the server does.")
    ] = 0.0
    receiver_ids: Sequence[str] = ()
    actions: Sequence[Mapping[str, Any]] = ()
    """As `alerting.language.checks` has them."""


LEVEL_FIELDS = tuple(
    f"{severity}_{kind}" for kind in ("threshold", "reset") for severity in Severity
)
FIELDS = tuple(field.name for field in dataclasses.fields(RuleRequest))
SETTINGS = tuple(field.name for field in dataclasses.fields(RuleSettings))
EXPRESSED = tuple(name for name in FIELDS if name not in {*SETTINGS, "receiver_ids", "actions"})
"""The fields that an expression has; see `alerting.language.text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry(RuleSettings):
    """A rule of a file."""

    expression: str
    receivers: Annotated[Sequence[str], About("Names of receivers.")] = ()
    actions: Sequence[Mapping[str, Any]] = ()


def settings_of(rule: "Rule | RuleSettings") -> dict[str, Any]:
    """Return the settings of a rule."""
    return {name: getattr(rule, name) for name in SETTINGS}


def levels_of(rule: "Rule | RuleRequest") -> tuple[Level, Level, Level]:
    """Return the levels of a rule, the least severe first."""
    return (
        (Severity.INFO, rule.info_threshold, rule.info_reset),
        (Severity.WARNING, rule.warning_threshold, rule.warning_reset),
        (Severity.CRITICAL, rule.critical_threshold, rule.critical_reset),
    )


def rule_thresholds(rule: "Rule | RuleRequest") -> list[tuple[Severity, float]]:
    """Return the thresholds that a rule has, the least severe first."""
    return [(severity, level) for severity, level, _ in levels_of(rule) if level is not None]


def raise_errors(kind: str, errors: Errors) -> None:
    """Raise `InvalidInputError` with all errors, if there are any."""
    if errors:
        details = " ".join(error for messages in errors.values() for error in messages)
        raise InvalidInputError(f"The {kind} is invalid. {details}", errors=errors)


def unit_field(rule: "Rule | RuleRequest") -> str:
    """Return the name of a field with the unit of the rule's values; see `core.quantities`."""
    operators = {rule.operator, rule.compared_with[:1]}
    if rule.aggregate == Aggregate.COUNT or operators & {Operator.TIMES, Operator.DIVIDED_BY}:
        return ""
    return rule.field + ("_per_second" if rule.aggregate == Aggregate.RATE else "")


def group_tags(rule: "Rule | RuleRequest") -> tuple[str, ...]:
    """Return the tags that split a rule's series: its own, and always `appliance`."""
    return tuple(dict.fromkeys((APPLIANCE_TAG, *rule.group_by)))


def promql_severity(rule: "Rule | RuleRequest") -> Severity:
    """Return the severity of a rule in PromQL, whose only threshold stands for it."""
    return rule_thresholds(rule)[0][0]
