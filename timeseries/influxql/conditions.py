"""WHERE: the span of time of a statement, and its conditions on tags and fields.

Those on tags are checked for each series, those on fields for each sample; what a store can check
by itself, it is given as matchers, so that it reads less.
"""

import operator as operators
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.clock import to_ns
from timeseries.influxql.syntax import (
    Binary,
    Call,
    Duration,
    Expression,
    Logical,
    Name,
    Number,
    Regex,
    StatementError,
    Text,
)
from timeseries.promql.patterns import check_pattern, full_matches
from timeseries.store import APPLIANCE_TAG, TagMatcher

TIME = "time"
_MAX_NS = 2**62
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS: Mapping[str, Callable[[Any, float], Any]] = {
    "=": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
Tags = Mapping[str, str]


class _FieldComparison(NamedTuple):
    """A condition on a field."""

    field: str
    operator: str
    number: float


class _Comparison(NamedTuple):
    """A condition on a tag: the value is a text, or a pattern."""

    name: Name
    operator: str
    wanted: str | Regex

    @property
    def tag(self) -> str:
        return self.name.text

    @property
    def is_negated(self) -> bool:
        return self.operator.startswith("!")


@dataclass(frozen=True, slots=True)
class Where:
    """A condition, apart into `[start_ns, end_ns)`, None where it is open, and one on tags."""

    start_ns: int | None
    end_ns: int | None
    tags: Expression | None


def divided(condition: Expression | None, *, now_ns: int) -> Where:
    """Return the parts of a condition: as in InfluxDB, one on time holds wherever it stands.

    Raises:
        StatementError: a time can't be read.
    """
    spans: list[tuple[int | None, int | None]] = []
    tags = _without_times(condition, spans, now_ns) if condition is not None else None
    starts = [start_ns for start_ns, _ in spans if start_ns is not None]
    ends = [end_ns for _, end_ns in spans if end_ns is not None]
    return Where(max(starts, default=None), min(ends, default=None), tags)


def _without_times(
    condition: Expression, spans: list[tuple[int | None, int | None]], now_ns: int
) -> Expression | None:
    """Return a condition without comparisons of time, whose spans are added to a list."""
    if isinstance(condition, Logical):
        parts = [_without_times(operand, spans, now_ns) for operand in condition.operands]
        operands = tuple(part for part in parts if part is not None)
        if len(operands) > 1:
            return Logical(condition.operator, operands)
        return operands[0] if operands else None
    if isinstance(condition, Binary) and Name(TIME) in (condition.left, condition.right):
        spans.append(_span(condition, now_ns))
        return None
    return condition


def holding(condition: Expression | None, tags: Sequence[Tags]) -> list[bool]:
    """Return for each series whether a condition on its tags holds.

    Raises:
        StatementError: the condition is about something else than tags.
    """
    if condition is None:
        return [True] * len(tags)
    if isinstance(condition, Logical):
        columns = [holding(operand, tags) for operand in condition.operands]
        combine = all if condition.operator == "and" else any
        return [combine(flags) for flags in zip(*columns, strict=True)]
    comparison = _comparison_of(condition)
    texts = [own.get(comparison.tag, "") for own in tags]
    distinct = list(dict.fromkeys(texts))
    matches = dict(zip(distinct, _matches(distinct, comparison.wanted), strict=True))
    return [matches[text] is not comparison.is_negated for text in texts]


def check_condition(condition: Expression | None, fields: Collection[str]) -> None:
    """Check that a condition compares fields with numbers, and else tags.

    Raises:
        StatementError: it does not.
    """
    for part in _leaves(condition):
        if _field_comparison(part, fields) is not None:
            continue
        comparison = _comparison_of(part)
        if comparison.tag in fields or comparison.name.kind == "field":
            raise StatementError(
                f"{comparison.tag!r} is a field with numbers. Compare it with a number."
            )


def fields_of(condition: Expression | None, fields: Collection[str]) -> list[str]:
    """Return which of some fields a condition compares with numbers."""
    comparisons = (_field_comparison(part, fields) for part in _leaves(condition))
    return sorted({comparison.field for comparison in comparisons if comparison is not None})


def holding_rows(
    condition: Expression | None,
    tags: Sequence[Tags],
    series: NDArray[np.int64],
    values: Mapping[str, NDArray[np.float64]],
) -> NDArray[np.bool_]:
    """Return for each row whether a condition holds.

    Args:
        condition: on tags and fields.
        tags: those of each series.
        series: the series of each row.
        values: of the fields at each row, NaN where there is none: no comparison with it holds.
    """
    if isinstance(condition, Logical):
        flags = [holding_rows(operand, tags, series, values) for operand in condition.operands]
        combine = np.logical_and if condition.operator == "and" else np.logical_or
        combined: NDArray[np.bool_] = combine.reduce(flags)
        return combined
    comparison = None if condition is None else _field_comparison(condition, values)
    if comparison is None:
        return np.array(holding(condition, tags), dtype=bool)[series]
    own = values[comparison.field]
    is_true: NDArray[np.bool_] = _NUMBERS[comparison.operator](own, comparison.number)
    return is_true & ~np.isnan(own)


def _field_comparison(part: Expression, fields: Collection[str]) -> _FieldComparison | None:
    """Return a condition as the comparison of a field with a number; None if it is none."""
    if not isinstance(part, Binary) or part.operator not in _NUMBERS:
        return None
    name, operator, number = part.left, part.operator, _number_of(part.right)
    if number is None:
        name, operator, number = part.right, _FLIPPED.get(operator, operator), _number_of(part.left)
    if number is None or not isinstance(name, Name) or name.kind == "tag":
        return None
    return _FieldComparison(name.text, operator, number) if name.text in fields else None


def _number_of(expression: Expression) -> float | None:
    if isinstance(expression, Number):
        return expression.value
    if isinstance(expression, Binary) and expression.operator == "*":  # a number below 0
        left, right = _number_of(expression.left), _number_of(expression.right)
        return None if left is None or right is None else left * right
    return None


def matchers(
    condition: Expression | None,
    tags: Collection[str],
    names: Mapping[str, str],
    fields: Collection[str],
) -> tuple[list[TagMatcher], bool]:
    """Return what a store checks of a condition by itself, and whether that is all of it.

    Args:
        condition: the condition on tags and fields.
        tags: the tags that the measurement has.
        names: of appliances by ID: conditions are about names, and stores have IDs.
        fields: those that the condition compares, which no store checks.
    """
    listed = list[TagMatcher]()
    is_exact = True
    for operand in _conjuncts(condition):
        is_of_tags = not fields_of(operand, fields)
        matcher = _matcher(operand, tags, names) if is_of_tags else None
        is_exact &= matcher is not None
        listed += [matcher] if matcher else []
    return listed, is_exact


def _matcher(
    operand: Expression, tags: Collection[str], names: Mapping[str, str]
) -> TagMatcher | None:
    """Return what a store checks of a condition on one tag; None where it can't."""
    alternatives = operand.operands if isinstance(operand, Logical) else (operand,)
    if not all(isinstance(part, Binary) for part in alternatives):
        return None
    comparisons = [_comparison_of(part) for part in alternatives]
    first = comparisons[0]
    if first.tag not in tags or any(comparison.tag != first.tag for comparison in comparisons):
        return None
    if len(comparisons) == 1 and isinstance(first.wanted, str) and first.tag != APPLIANCE_TAG:
        return first.tag, first.operator, first.wanted
    if len(comparisons) > 1 and any(comparison.is_negated for comparison in comparisons):
        return None
    patterns = [_pattern(comparison.wanted) for comparison in comparisons]
    if first.tag == APPLIANCE_TAG:
        of_names, of_ids = (
            {
                key
                for comparison in comparisons
                for key, is_wanted in zip(names, _matches(texts, comparison.wanted), strict=True)
                if is_wanted
            }
            for texts in (list(names.values()), list(names))
        )
        if of_ids - of_names:
            return None
        # The name of an appliance that was deleted is its ID.
        patterns += map(re.escape, sorted(of_names))
    return first.tag, "!~" if first.is_negated else "=~", "|".join(patterns)


def _pattern(wanted: str | Regex) -> str:
    """Return what RE2 matches whole texts with."""
    if isinstance(wanted, str):
        return re.escape(wanted)
    check_pattern(wanted.pattern)
    return f"(?s:.*)(?:{wanted.pattern})(?s:.*)"


def _matches(texts: Sequence[str], wanted: str | Regex) -> list[bool]:
    if isinstance(wanted, str):
        return [text == wanted for text in texts]
    return full_matches(texts, _pattern(wanted))


def search(texts: Sequence[str], wanted: str | Regex) -> list[str]:
    """Return the texts that are equal to a name, or that a pattern matches anywhere."""
    flags = _matches(texts, wanted)
    return [text for text, is_wanted in zip(texts, flags, strict=True) if is_wanted]


def _conjuncts(condition: Expression | None) -> tuple[Expression, ...]:
    """Return the conditions that all must hold, also of those in parentheses."""
    if condition is None:
        return ()
    if isinstance(condition, Logical) and condition.operator == "and":
        return tuple(part for operand in condition.operands for part in _conjuncts(operand))
    return (condition,)


def _leaves(condition: Expression | None) -> list[Expression]:
    """Return all comparisons of a condition."""
    if condition is None:
        return []
    if isinstance(condition, Logical):
        return [part for operand in condition.operands for part in _leaves(operand)]
    return [condition]


def _comparison_of(condition: Expression) -> _Comparison:
    """Return a condition as the comparison of a tag.

    Raises:
        StatementError: it is none.
    """
    if not isinstance(condition, Binary) or not isinstance(condition.left, Name):
        raise StatementError(
            "A condition compares a tag with a text or a pattern, or time with a time."
        )
    name, operator, right = condition.left, condition.operator, condition.right
    if operator in {"=", "!="} and isinstance(right, Text):
        return _Comparison(name, operator, right.value)
    if operator in {"=~", "!~"} and isinstance(right, Regex):
        return _Comparison(name, operator, right)
    raise StatementError(
        f"The condition on {name.text!r} is not supported. Compare a tag with a text in single "
        "quotes by = or !=, or with a pattern between slashes by =~ or !~."
    )


def _span(condition: Binary, now_ns: int) -> tuple[int | None, int | None]:
    """Return the span of a comparison of time."""
    operator, bound = condition.operator, condition.right
    if condition.right == Name(TIME):
        operator, bound = _FLIPPED.get(operator, operator), condition.left
    at_ns = int(_time_ns(bound, now_ns))
    spans = {
        "=": (at_ns, at_ns + 1),
        ">": (at_ns + 1, None),
        ">=": (at_ns, None),
        "<": (None, at_ns),
        "<=": (None, at_ns + 1),
    }
    if operator not in spans:
        raise StatementError(f"time can't be compared by {operator}. Use >, >=, <, <= or =.")
    return spans[operator]


def _time_ns(bound: Expression, now_ns: int) -> int:
    """Return an instant, or a duration of arithmetic with it."""
    if isinstance(bound, Call) and bound.function == "now" and not bound.arguments:
        return now_ns
    if isinstance(bound, Duration):
        return bound.ns
    if isinstance(bound, Number) and abs(bound.value) < _MAX_NS:
        return int(bound.value)
    if isinstance(bound, Text):
        return _instant_ns(bound.value)
    if isinstance(bound, Binary) and bound.operator in {"+", "-", "*"}:
        left, right = (_time_ns(side, now_ns) for side in (bound.left, bound.right))
        at_ns = {"+": left + right, "-": left - right, "*": left * right}[bound.operator]
        if abs(at_ns) < _MAX_NS:
            return at_ns
    raise StatementError(
        "A time is a number with a unit (1700000000000ms), a text in RFC 3339, or now() - 6h."
    )


def _instant_ns(text: str) -> int:
    try:
        instant = datetime.fromisoformat(text)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        return to_ns(instant)
    except (ValueError, OverflowError):
        raise StatementError(f"{text[:100]!r} is not a time in RFC 3339.") from None
