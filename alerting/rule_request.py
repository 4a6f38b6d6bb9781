"""What a user asks of a rule, and every fault that it may have."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alerting.states import Comparison, NoDataPolicy
from core.errors import InvalidInputError
from timeseries.store import TENANT_TAG, Aggregate

MAX_NAME_LENGTH = 100
MAX_SECONDS = 30 * 24 * 3600.0
MIN_WINDOW_SECONDS = 1.0
MAX_GROUP_TAGS = 8
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]*")

Faults = dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRequest:
    """Everything about a rule that a user sets; see `alerting.models.Rule` for the meaning.

    `filters` maps a tag to the values it may have.
    """

    name: str
    measurement: str
    field: str
    aggregate: str = Aggregate.AVG.value
    window_seconds: float = 300.0
    group_by: Sequence[str] = ()
    filters: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    comparison: Comparison = Comparison.ABOVE
    warning_threshold: float | None = None
    critical_threshold: float | None = None
    warning_reset: float | None = None
    critical_reset: float | None = None
    for_seconds: float = 0.0
    keep_firing_seconds: float = 0.0
    no_data: NoDataPolicy = NoDataPolicy.KEEP
    is_enabled: bool = True
    receiver_ids: Sequence[str] = ()


def rule_faults(request: RuleRequest) -> Faults:
    """Return field to faults of what the request says by itself, without a look at the database."""
    faults: Faults = {
        "name": _name_faults(request.name),
        "measurement": _identifier_faults("measurement", request.measurement, "gpu"),
        "field": _identifier_faults("field", request.field, "temperature_celsius"),
        "aggregate": _aggregate_faults(request.aggregate),
        "window_seconds": _seconds_faults(
            "window", request.window_seconds, minimum=MIN_WINDOW_SECONDS
        ),
        "group_by": _tags_faults("group_by", request.group_by),
        "filters": _filter_faults(request.filters),
        "for_seconds": _seconds_faults("for", request.for_seconds),
        "keep_firing_seconds": _seconds_faults("keep firing", request.keep_firing_seconds),
    }
    faults |= _threshold_faults(request)
    return {name: found for name, found in faults.items() if found}


def refuse(faults: Faults) -> None:
    """Raise `InvalidInputError` with all faults together, if there are any."""
    if faults:
        details = " ".join(fault for found in faults.values() for fault in found)
        raise InvalidInputError(f"The rule has faults. {details}", errors=faults)


def _name_faults(name: str) -> list[str]:
    if not name.strip() or len(name.strip()) > MAX_NAME_LENGTH:
        return [f"The name must have 1 to {MAX_NAME_LENGTH} characters."]
    return [] if name.isprintable() else ["The name has control characters. Leave them out."]


def _identifier_faults(what: str, text: str, example: str) -> list[str]:
    if len(text) <= MAX_NAME_LENGTH and _IDENTIFIER.fullmatch(text):
        return []
    return [
        f"The {what} {text!r} is not a name of letters, digits and _ . : / - such as {example!r}."
    ]


def _aggregate_faults(aggregate: str) -> list[str]:
    known = [a.value for a in Aggregate]
    if aggregate in known:
        return []
    return [f"The aggregate {aggregate!r} is unknown. Choose one of {', '.join(known)}."]


def _seconds_faults(what: str, seconds: float, *, minimum: float = 0.0) -> list[str]:
    if math.isfinite(seconds) and minimum <= seconds <= MAX_SECONDS:
        return []
    return [f"The time '{what}' is {seconds:g} s; give {minimum:g} to {MAX_SECONDS:g} s."]


def _tags_faults(what: str, tags: Sequence[str]) -> list[str]:
    faults = [fault for tag in tags for fault in _identifier_faults("tag", tag, "gpu")]
    if TENANT_TAG in tags:
        faults.append("A rule sees only its own tenant. Leave the tag 'tenant' out.")
    if len(tags) > MAX_GROUP_TAGS:
        faults.append(f"{what} has {len(tags)} tags; use at most {MAX_GROUP_TAGS}.")
    return faults


def _filter_faults(filters: Mapping[str, Sequence[str]]) -> list[str]:
    faults = _tags_faults("filters", list(filters))
    for tag, values in filters.items():
        if isinstance(values, str) or not values or not all(isinstance(v, str) for v in values):
            faults.append(f"The filter on {tag!r} needs a list of values, such as ['0', '1'].")
    return faults


def _threshold_faults(request: RuleRequest) -> Faults:
    for name in ("warning_threshold", "critical_threshold", "warning_reset", "critical_reset"):
        value = getattr(request, name)
        if value is not None and not math.isfinite(value):
            return {name: [f"{value} is no number that a value can be held against."]}
    warning, critical = request.warning_threshold, request.critical_threshold
    if warning is None and critical is None:
        return {"warning_threshold": ["Give a warning or a critical threshold, or both."]}
    comparison = request.comparison
    return {
        "critical_threshold": _order_faults(comparison, warning, critical),
        "warning_reset": _reset_faults(comparison, "warning", warning, request.warning_reset),
        "critical_reset": _reset_faults(comparison, "critical", critical, request.critical_reset),
    }


def _order_faults(
    comparison: Comparison, warning: float | None, critical: float | None
) -> list[str]:
    if warning is None or critical is None or _is_beyond(comparison, critical, warning):
        return []
    fault = (
        f"The critical threshold {critical:g} must be {_side(comparison)} "
        f"the warning threshold {warning:g}."
    )
    return [fault]


def _reset_faults(
    comparison: Comparison, level: str, threshold: float | None, reset: float | None
) -> list[str]:
    if reset is None:
        return []
    if threshold is None:
        return [f"There is no {level} threshold that {reset:g} could reset. Leave it out."]
    if not _is_beyond(comparison, reset, threshold):
        return []
    fault = (
        f"The {level} reset {reset:g} must not be {_side(comparison)} "
        f"the {level} threshold {threshold:g}: the alert could never end."
    )
    return [fault]


def _is_beyond(comparison: Comparison, value: float, threshold: float) -> bool:
    return value > threshold if comparison is Comparison.ABOVE else value < threshold


def _side(comparison: Comparison) -> str:
    return "above" if comparison is Comparison.ABOVE else "below"
