"""A rule as a user writes it; its validation is in `rule_checks`."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alerting.states import FUNCTIONS, Comparison, NoDataPolicy, Operator, Severity
from core.errors import InvalidInputError
from timeseries.store import APPLIANCE_TAG, Aggregate

if TYPE_CHECKING:  # commands parse rules without the server's packages
    from alerting.models import Rule

MAX_NAME_LENGTH = 100
ANY_VALUE = "*"
"""As a filter: series that have the tag, with any value."""

Errors = dict[str, list[str]]
Level = tuple[Severity, float | None, float | None]
"""A severity of a rule with its threshold and its reset, as far as it has them."""


def _field(default: Any, description: str = "", **metadata: object) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field whose metadata documents it in the REST API."""
    described = {"description": description} if description else {}
    return dataclasses.field(default=default, metadata={**described, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRequest:
    """The fields of a rule that a user sets, with their defaults.

    The columns of `alerting.models.Rule`, the REST API, forms and the audit log follow these fields
    by name. `filters` maps a tag to its allowed values. A rule with an `and_condition` fires while
    both conditions hold.
    """

    name: str
    measurement: str
    field: str
    operator: str = _field(
        "",
        "Arithmetic of the aggregates of `field` and `other_field`.",
        choices=("", *Operator),
    )
    other_field: str = ""
    aggregate: str = _field(Aggregate.AVG.value, choices=FUNCTIONS)
    window_seconds: float = 300.0
    ahead_seconds: float = _field(0.0, "How far a `forecast` looks ahead.")
    group_by: Sequence[str] = (APPLIANCE_TAG,)
    filters: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    matchers: Sequence[str] = _field(
        (), "More conditions on tags, as in silences: `gpu!=0`, `mount=~/data.*`."
    )
    compared_with: str = _field(
        "",
        "Arithmetic with another aggregate, as in an expression: "
        "`/ avg(gpu.power_watts) over 1d offset 1d`.",
    )
    comparison: Comparison = Comparison.ABOVE
    info_threshold: float | None = None
    warning_threshold: float | None = None
    critical_threshold: float | None = None
    info_reset: float | None = None
    warning_reset: float | None = None
    critical_reset: float | None = None
    and_condition: str = _field(
        "",
        "A second condition, as in an expression: `last(disk.used_percent) over 5m > 70`.",
    )
    for_seconds: float = 0.0
    keep_firing_seconds: float = 0.0
    no_data: NoDataPolicy = NoDataPolicy.KEEP
    interval_seconds: float = _field(
        0.0, "How often to evaluate; 0 is as often as the server does."
    )
    is_enabled: bool = True
    receiver_ids: Sequence[str] = ()
    annotation: str = _field("", "A template of the alert's sentence; see docs/alerts.md.")
    actions: Sequence[Mapping[str, Any]] = ()
    """As `alerting.language.action_request` has them."""


LEVEL_FIELDS = tuple(
    f"{severity}_{kind}" for kind in ("threshold", "reset") for severity in Severity
)
FIELDS = tuple(field.name for field in dataclasses.fields(RuleRequest))
EXPRESSED = tuple(
    name
    for name in FIELDS
    if name not in {"name", "is_enabled", "receiver_ids", "annotation", "actions"}
)
"""The fields that an expression has; see `alerting.language.text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """A rule of a file."""

    name: str
    expression: str
    receivers: Sequence[str] = _field((), "Names of receivers.")
    is_enabled: bool = True
    annotation: str = ""
    actions: Sequence[Mapping[str, Any]] = ()


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
