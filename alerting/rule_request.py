"""A rule as a user writes it, and its validation."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alerting.action_request import action_errors
from alerting.annotations import annotation_errors
from alerting.states import FORECAST, FUNCTIONS, Comparison, NoDataPolicy, Operator
from core.errors import InvalidInputError
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Aggregate

MAX_NAME_LENGTH = 100
MAX_SECONDS = 30 * 24 * 3600.0
MIN_WINDOW_SECONDS = 1.0
MAX_GROUP_TAGS = 8
ANY_VALUE = "*"
"""As a filter: series that have the tag, with any value."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")

Errors = dict[str, list[str]]


def _field(default: Any, description: str = "", **metadata: object) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Return a field whose metadata documents it in the REST API."""
    described = {"description": description} if description else {}
    return dataclasses.field(default=default, metadata={**described, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRequest:
    """The fields of a rule that a user sets, with their defaults.

    The columns of `alerting.models.Rule`, the REST API, forms and the audit log follow these fields
    by name. `filters` maps a tag to its allowed values.
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
    comparison: Comparison = Comparison.ABOVE
    warning_threshold: float | None = None
    critical_threshold: float | None = None
    warning_reset: float | None = None
    critical_reset: float | None = None
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
    """As `alerting.action_request` has them."""


FIELDS = tuple(one.name for one in dataclasses.fields(RuleRequest))
EXPRESSED = tuple(
    name
    for name in FIELDS
    if name not in {"name", "is_enabled", "receiver_ids", "annotation", "actions"}
)
"""The fields that an expression has; see `alerting.rule_text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEntry:
    """A rule of a file."""

    name: str
    expression: str
    receivers: Sequence[str] = _field((), "Names of receivers.")
    is_enabled: bool = True
    annotation: str = ""
    actions: Sequence[Mapping[str, Any]] = ()


def rule_errors(request: RuleRequest) -> Errors:
    """Return the validation errors by field, without a look at the database."""
    errors: Errors = {
        "name": _name_errors(request.name),
        "measurement": _identifier_errors("measurement", request.measurement, "gpu"),
        "field": _identifier_errors("field", request.field, "temperature_celsius"),
        "aggregate": []
        if request.aggregate in FUNCTIONS
        else [f"Unknown aggregate {request.aggregate!r}. Use one of {', '.join(FUNCTIONS)}."],
        "other_field": _arithmetic_errors(request),
        "ahead_seconds": _ahead_errors(request),
        "interval_seconds": _seconds_errors("every", request.interval_seconds),
        "window_seconds": _seconds_errors(
            "window", request.window_seconds, minimum=MIN_WINDOW_SECONDS
        ),
        "group_by": _tag_errors("group_by", request.group_by),
        "filters": _filter_errors(request.filters, (APPLIANCE_TAG, *request.group_by)),
        "for_seconds": _seconds_errors("for", request.for_seconds),
        "keep_firing_seconds": _seconds_errors("keep firing", request.keep_firing_seconds),
    }
    errors["annotation"] = annotation_errors(request.annotation)
    errors["actions"] = action_errors(request.actions)
    errors |= _threshold_errors(request)
    return {name: found for name, found in errors.items() if found}


def raise_errors(kind: str, errors: Errors) -> None:
    """Raise `InvalidInputError` with all errors, if there are any."""
    if errors:
        details = " ".join(error for found in errors.values() for error in found)
        raise InvalidInputError(f"The {kind} is invalid. {details}", errors=errors)


def _name_errors(name: str) -> list[str]:
    if not name.strip() or len(name.strip()) > MAX_NAME_LENGTH:
        return [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    return [] if name.isprintable() else ["The name contains control characters. Remove them."]


def _identifier_errors(label: str, text: str, example: str) -> list[str]:
    if len(text) <= MAX_NAME_LENGTH and _IDENTIFIER.fullmatch(text):
        return []
    return [
        f"The {label} {text!r} is invalid. Use letters, digits and _ . : / - as in {example!r}."
    ]


def _arithmetic_errors(request: RuleRequest) -> list[str]:
    if not request.operator and not request.other_field:
        return []
    if request.operator not in set(Operator):
        operators = " ".join(Operator)
        return [f"The operator {request.operator!r} is not supported. Use one of {operators}."]
    return _identifier_errors("field", request.other_field, "total_bytes")


def _ahead_errors(request: RuleRequest) -> list[str]:
    if request.aggregate != FORECAST:
        text = f"Only a {FORECAST} looks ahead. Set 'ahead' to 0."
        return [text] if request.ahead_seconds else []
    return _seconds_errors("ahead", request.ahead_seconds, minimum=1.0)


def _seconds_errors(label: str, seconds: float, *, minimum: float = 0.0) -> list[str]:
    if math.isfinite(seconds) and minimum <= seconds <= MAX_SECONDS:
        return []
    return [f"'{label}' is {seconds:g} s. It must be {minimum:g} to {MAX_SECONDS:g} s."]


def _tag_errors(label: str, tags: Sequence[str]) -> list[str]:
    errors = [error for tag in tags for error in _identifier_errors("tag", tag, "gpu")]
    if TENANT_TAG in tags:
        errors.append("A rule applies to its own tenant only. Remove the tag 'tenant'.")
    if len(tags) > MAX_GROUP_TAGS:
        errors.append(f"{label} has {len(tags)} tags. The maximum is {MAX_GROUP_TAGS}.")
    return errors


def _filter_errors(filters: Mapping[str, Sequence[str]], group_by: Sequence[str]) -> list[str]:
    errors = _tag_errors("filters", list(filters))
    for tag, values in filters.items():
        if ANY_VALUE in values and tag not in group_by:
            errors.append(f"The filter {tag}={ANY_VALUE} needs the tag {tag!r} in 'group_by'.")
        if isinstance(values, str) or not values or not all(isinstance(v, str) for v in values):
            errors.append(f"The filter on {tag!r} needs a list of values such as ['0', '1'].")
    return errors


def _threshold_errors(request: RuleRequest) -> Errors:
    for name in ("warning_threshold", "critical_threshold", "warning_reset", "critical_reset"):
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            return {name: [f"{value} is not a finite number."]}
    warning, critical = request.warning_threshold, request.critical_threshold
    if warning is None and critical is None:
        return {"warning_threshold": ["Set a warning or a critical threshold, or both."]}
    comparison = request.comparison
    side = "above" if comparison is Comparison.ABOVE else "below"
    errors: Errors = {
        "warning_reset": _reset_errors(comparison, "warning", warning, request.warning_reset),
        "critical_reset": _reset_errors(comparison, "critical", critical, request.critical_reset),
    }
    if not (warning is None or critical is None or comparison.is_breached(critical, warning)):
        errors["critical_threshold"] = [
            f"The critical threshold {critical:g} must be {side} the warning threshold {warning:g}."
        ]
    return errors


def _reset_errors(
    comparison: Comparison, severity: str, threshold: float | None, reset: float | None
) -> list[str]:
    if reset is None:
        return []
    if threshold is None:
        return [f"The {severity} reset {reset:g} needs a {severity} threshold."]
    if not comparison.is_breached(reset, threshold):
        return []
    side = "above" if comparison is Comparison.ABOVE else "below"
    text = (
        f"The {severity} reset {reset:g} must not be {side} the {severity} threshold "
        f"{threshold:g}: the alert would never resolve."
    )
    return [text]
