"""The unit, the limits and the thresholds of a panel's values.

A *unit* is one that metrics have, such as `bytes` or `celsius`, whose values are scaled, or a text
that follows each number, such as `tokens/s`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from alerting.states import Comparison, Severity
from core.quantities import UNITS, format_value

MAX_THRESHOLDS = 8
MAX_LABEL_LENGTH = 60
MAX_UNIT_LENGTH = 16
# Greater ones are no measured values, and overflow when an axis is divided.
_MAX_VALUE = 1e24
NAMED_UNITS = tuple(unit.suffix.removeprefix("_") for unit in UNITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelThreshold:
    """A value above or below which a panel shows a severity, in the field's own unit."""

    value: float
    severity: Severity = Severity.WARNING
    comparison: Comparison = Comparison.ABOVE
    label: str = ""

    def text(self, unit_field: str) -> str:
        """Return its label, and where it begins."""
        return f"{self.label} {self.comparison} {format_value(unit_field, self.value)}".strip()


def severity_of(value: float | None, thresholds: Sequence[PanelThreshold]) -> Severity | None:
    """Return the highest severity that a value has; None for none."""
    breached = {
        threshold.severity
        for threshold in thresholds
        if value is not None and threshold.comparison.is_breached(value, threshold.value)
    }
    return next((severity for severity in reversed(Severity) if severity in breached), None)


def unit_suffix(unit: str) -> str:
    """Return what `core.quantities` reads a unit of a panel from."""
    return f"_{unit}" if unit in NAMED_UNITS else f"[{unit}]"


def unit_errors(unit: str) -> list[str]:
    """Return the errors of a unit."""
    if len(unit) > MAX_UNIT_LENGTH or not unit.isprintable() or {"[", "]"} & {*unit}:
        named = ", ".join(NAMED_UNITS)
        return [f"Use at most {MAX_UNIT_LENGTH} characters without brackets, or one of {named}."]
    return []


def limit_errors(axis_min: float | None, axis_max: float | None) -> dict[str, list[str]]:
    """Return the errors of the ends of an axis, by field."""
    errors = {
        name: _number_errors(name, value)
        for name, value in (("axis_min", axis_min), ("axis_max", axis_max))
        if value is not None
    }
    has_both = axis_min is not None and axis_max is not None
    if has_both and not any(errors.values()) and not axis_min < axis_max:  # type: ignore[operator]
        errors["axis_max"] = [f"The axis ends at {axis_max:g}, before its begin {axis_min:g}."]
    return errors


def threshold_errors(thresholds: Sequence[PanelThreshold]) -> list[str]:
    """Return the errors of thresholds."""
    errors = [
        text for threshold in thresholds for text in _number_errors("threshold", threshold.value)
    ]
    if len(thresholds) > MAX_THRESHOLDS:
        errors.append(f"{len(thresholds)} thresholds are too many. Use at most {MAX_THRESHOLDS}.")
    errors += [
        f"The label of the threshold {threshold.value:g} must have at most {MAX_LABEL_LENGTH} "
        "printable characters."
        for threshold in thresholds
        if len(threshold.label) > MAX_LABEL_LENGTH or not threshold.label.isprintable()
    ]
    return errors


def _number_errors(name: str, value: float) -> list[str]:
    if isfinite(value) and abs(value) <= _MAX_VALUE:
        return []
    return [f"{name} is {value:g}. Use a number between -{_MAX_VALUE:g} and {_MAX_VALUE:g}."]
