"""MetricsQL selectors and expressions, with escaped names and values.

MetricsQL looks back over `(t - window, t]`, while a `RangeQuery` has windows `[start, end)`: an
offset of 1 ms makes them the same. The server treats the last seconds specially (`latencyOffset`,
replaced newest points); `SHIFT_MS` evaluates every query three days earlier with an offset of three
days into its future, where that does not apply.
"""

import re
from collections.abc import Mapping, Sequence

from timeseries.store import Aggregate, TagMatcher
from timeseries.victoriametrics.lines import (
    MEASUREMENT_LABEL,
    METRIC_LABEL,
    RESERVED_LABELS,
    SCOPE_LABEL,
    scope_of,
)

SHIFT_MS = 3 * 86_400_000
# The position of the expression that a series of a result belongs to.
EXPRESSION_LABEL = "vedette_expression"
PERCENTILES = {Aggregate.P50: 0.5, Aggregate.P95: 0.95, Aggregate.P99: 0.99}

_SIMPLE = {
    Aggregate.MIN: ("min", "min_over_time"),
    Aggregate.MAX: ("max", "max_over_time"),
    Aggregate.SUM: ("sum", "sum_over_time"),
    Aggregate.COUNT: ("sum", "count_over_time"),
}
_PLAIN = re.compile(r"[A-Za-z0-9_]")
_LITERAL_ESCAPES = re.compile(r'["\\\x00-\x1f\x7f]')
_REGEX_ESCAPES = re.compile(r"[^A-Za-z0-9_\x80-\U0010ffff]")


def selector(
    database: str,
    *,
    measurement: str | None = None,
    tenants: Sequence[str] | None = None,
    filters: Mapping[str, Sequence[str]] | None = None,
    conditions: Sequence[TagMatcher] = (),
) -> str | None:
    """Return the selector of the visible series; None if none can match.

    Args:
        database: the database of the store.
        measurement: None for all.
        tenants: None for all.
        filters: tag to the allowed values; "" matches a series without the tag.
        conditions: more conditions on tags.
    """
    matchers = []
    if tenants is None:
        every = f"{_regex(scope_of(database, ''))}.*"
        matchers.append(f"{SCOPE_LABEL}=~{literal(every)}")
    else:
        scopes = [scope_of(database, tenant) for tenant in tenants if tenant and _is_text(tenant)]
        if not scopes:
            return None
        matchers.append(_matcher(SCOPE_LABEL, scopes))
    if measurement is not None:
        if not _is_text(measurement):
            return None
        matchers.append(f"{MEASUREMENT_LABEL}={literal(measurement)}")
    for tag, values in (filters or {}).items():
        possible = [value for value in values if _is_text(value) and (not value or _is_tag(tag))]
        if not possible:
            return None
        if _is_tag(tag):
            matchers.append(_matcher(tag, possible))
    matchers += [
        f"{identifier(tag)}{operator}{literal(value)}" for tag, operator, value in conditions
    ]
    return "{" + ",".join(matchers) + "}"


def metric_name(measurement: str, field: str) -> str:
    """Return the name that the server gives a field's series."""
    return f"{measurement}_{field}"


def field_selector(visible: str, measurement: str, field: str) -> str:
    """Return a selector narrowed to one field."""
    name = literal(metric_name(measurement, field))
    return f"{visible[:-1]},{METRIC_LABEL}={name}}}"


def over_all_series(combine: str, rollup: str, *, window_ms: int) -> str:
    """Return one rollup of every series that the request's filter allows, combined."""
    series = f'{{{METRIC_LABEL}!=""}}[{window_ms}ms] offset {1 - SHIFT_MS}ms'
    return f"{combine}({rollup}({series}))"


def points_of_all_series(*, window_ms: int) -> str:
    """Return the number of points: per tag set, the samples of the longest field."""
    counts = f'count_over_time({{{METRIC_LABEL}!=""}}[{window_ms}ms] offset {1 - SHIFT_MS}ms)'
    return f"sum(max({counts}) without ({METRIC_LABEL}))"


def number_of_fields(*, window_ms: int) -> str:
    """Return the number of fields with samples."""
    series = f'last_over_time({{{METRIC_LABEL}!=""}}[{window_ms}ms] offset {1 - SHIFT_MS}ms)'
    return f"count(max({series}) by ({METRIC_LABEL}))"


class Rollup:
    """Expressions over one field of a measurement; windows end at the time of evaluation."""

    def __init__(
        self, measurement: str, field: str, *, window_ms: int, group_by: Sequence[str]
    ) -> None:
        name = literal(metric_name(measurement, field))
        self._series = f"{{{METRIC_LABEL}={name}}}[{window_ms}ms] offset {1 - SHIFT_MS}ms"
        self._groups = ",".join(identifier(tag) for tag in group_by if _is_tag(tag))

    def aggregate(self, aggregate: Aggregate) -> str:
        """Return an aggregate per group; a percentile is only right for groups of one series."""
        if aggregate is Aggregate.AVG:
            total, count = self.combined("sum", "sum_over_time"), self.count()
            return f"({total} / {count})"
        if aggregate is Aggregate.LAST:
            return self.last()
        if aggregate in PERCENTILES:
            of_series = f"quantile_over_time({PERCENTILES[aggregate]}, {self._series})"
            return f"max({of_series}) by ({self._groups})"
        return self.combined(*_SIMPLE[aggregate])

    def count(self) -> str:
        """Return the number of samples."""
        return self.combined("sum", "count_over_time")

    def last(self) -> str:
        """Return the newest value; the largest of several at one instant."""
        is_newest = (
            f"tlast_over_time({self._series}) "
            f"== on ({self._groups}) group_left() {self.combined('max', 'tlast_over_time')}"
        )
        newest = f"last_over_time({self._series}) if ({is_newest})"
        return f"max({newest}) by ({self._groups})"

    def newest(self) -> tuple[str, str]:
        """Return expressions for the newest value of each series and its time in seconds."""
        return f"last_over_time({self._series})", f"tlast_over_time({self._series})"

    def percentile_of_histogram(self, aggregate: Aggregate) -> str:
        """Return a percentile from histogram buckets whose width is a factor of 1.136."""
        groups = f"{self._groups},vmrange" if self._groups else "vmrange"
        buckets = f"sum(histogram_over_time({self._series})) by ({groups})"
        return f"histogram_quantile({PERCENTILES[aggregate]}, {buckets})"

    def combined(self, combine: str, rollup: str) -> str:
        """Return a rollup of each series, combined per group."""
        return f"{combine}({rollup}({self._series})) by ({self._groups})"


def joined(expressions: Sequence[str]) -> str:
    """Return the union of expressions, each labeled with its position."""
    marked = [
        f'label_set({expression}, "{EXPRESSION_LABEL}", "{position}")'
        for position, expression in enumerate(expressions)
    ]
    return f"union({', '.join(marked)})"


def group_of(metric: Mapping[str, str], group_by: Sequence[str]) -> tuple[str, ...]:
    """Return the values of a group's tags, "" for missing ones."""
    return tuple(metric.get(tag, "") if _is_tag(tag) else "" for tag in group_by)


def literal(text: str) -> str:
    """Return a text as a MetricsQL string literal."""
    return '"' + _LITERAL_ESCAPES.sub(lambda match: f"\\x{ord(match[0]):02x}", text) + '"'


def identifier(name: str) -> str:
    """Return a label name with all but letters and digits escaped."""
    return "".join(
        char if _PLAIN.match(char) and not (index == 0 and char.isdigit()) else _escaped(char)
        for index, char in enumerate(name)
    )


def _escaped(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="replace"))


def _matcher(tag: str, values: Sequence[str]) -> str:
    name = identifier(tag)
    if len(values) == 1:
        return f"{name}={literal(values[0])}"
    return f"{name}=~{literal('|'.join(map(_regex, values)))}"


def _regex(text: str) -> str:
    return _REGEX_ESCAPES.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _is_tag(name: str) -> bool:
    return name not in RESERVED_LABELS and name != "" and _is_text(name)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
