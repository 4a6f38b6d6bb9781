"""The values of a rule by group, now or by steps: arithmetic of two fields or two aggregates.

Where values are read by steps, the windows of the other aggregate are put together from steps of
its own, which are a sixtieth of the window at least: that bounds the cost of a long window.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from operator import add, mul, sub

import numpy as np

from alerting.evaluation.firing_steps import Floats
from alerting.language.matchers import split_matcher
from alerting.language.text import Comparand, parse_comparand
from alerting.models import Rule
from alerting.rule_request import ANY_VALUE, RuleRequest, group_tags
from alerting.states import FORECAST, Operator
from core.clock import NS_PER_SECOND
from timeseries.columns import SeriesColumns
from timeseries.store import Aggregate, RangeQuery, Store

PARTS = 10
"""A range is read in so many parts, to show how far it is."""
OPERATIONS: Mapping[Operator, Callable[[Floats, Floats], Floats]] = {
    Operator.PLUS: np.add,
    Operator.MINUS: np.subtract,
    Operator.TIMES: np.multiply,
    Operator.DIVIDED_BY: np.divide,
}
WINDOW_STEPS = 60
_ADDED = {Aggregate.SUM, Aggregate.COUNT, Aggregate.CHANGE, Aggregate.INCREASE}
_EXTREMES = {Aggregate.MIN: np.fmin, Aggregate.MAX: np.fmax}
GroupKey = tuple[str, ...]


def rule_query(
    rule: Rule | RuleRequest,
    *,
    start_ns: int,
    end_ns: int,
    tenants: tuple[str, ...] | None,
    step_ns: int | None = None,
) -> RangeQuery:
    """Return the query for the fields of a rule; that of a forecast reads averages."""
    is_forecast = rule.aggregate == FORECAST
    matchers = map(split_matcher, rule.matchers)
    return RangeQuery(
        measurement=rule.measurement,
        fields=tuple(filter(None, (rule.field, rule.other_field))),
        start_ns=start_ns,
        end_ns=end_ns,
        aggregate=Aggregate.AVG if is_forecast else Aggregate(rule.aggregate),
        step_ns=step_ns,
        tenants=tenants,
        filters={
            tag: tuple(values) for tag, values in rule.filters.items() if ANY_VALUE not in values
        },
        matchers=tuple((matcher.label, matcher.operator, matcher.value) for matcher in matchers),
        group_by=group_tags(rule),
    )


class StepTable:
    """Values of the fields of a rule by group and step; NaN where there is none."""

    def __init__(self, fields: Sequence[str], starts: range) -> None:
        self._starts = starts
        self.groups: dict[tuple[str, ...], int] = {}
        self.values = {field: np.full((0, len(starts)), np.nan) for field in fields}

    def add(self, columns: SeriesColumns) -> None:
        """Add the values of a part of the steps."""
        numbers = [self.groups.setdefault(group, len(self.groups)) for group in columns.groups]
        rows = np.repeat(np.array(numbers, dtype=np.int64), columns.lengths)
        for name, values in self.values.items():
            missing = np.full((len(self.groups) - len(values), len(self._starts)), np.nan)
            self.values[name] = np.concatenate([values, missing]) if missing.size else values
        steps = (columns.times_ns - self._starts[0]) // self._starts.step
        self.values[columns.field][rows, steps] = columns.values

    def combined(self, request: RuleRequest) -> Floats:
        """Return the values of a rule: the arithmetic of two fields is that of their aggregates."""
        if not request.operator:
            return self.values[request.field]
        with np.errstate(divide="ignore", invalid="ignore"):
            return OPERATIONS[Operator(request.operator)](
                self.values[request.field], self.values[request.other_field]
            )


def read_steps(
    store: Store, request: RuleRequest, starts: range, *, tenants: tuple[str, ...] | None
) -> Generator[None, None, StepTable]:
    """Return the aggregates of a rule's fields over each step; it yields before each part."""
    table = StepTable(tuple(filter(None, (request.field, request.other_field))), starts)
    for number in range(PARTS):
        first, last = (len(starts) * index // PARTS for index in (number, number + 1))
        yield
        if first == last:
            continue
        part = starts[first:last]
        query = rule_query(
            request,
            start_ns=part[0],
            end_ns=part[-1] + starts.step,
            tenants=tenants,
            step_ns=starts.step,
        )
        for columns in store.query_columns(query):
            table.add(columns)
    return table


def rolling_sums(values: Floats, window: int) -> Floats:
    """Return the sums of the last `window` columns at each one."""
    sums = np.cumsum(values, axis=1)
    sums[:, window:] -= sums[:, :-window].copy()
    return sums


def values_by_group(
    store: Store, rule: Rule | RuleRequest, query: RangeQuery
) -> list[tuple[Mapping[str, str], Sequence[int], Sequence[float]]]:
    """Return the starts of the windows and the values of a rule by group, oldest first.

    The arithmetic of two fields is that of their aggregates, where both have one. So is that of a
    rule with what it is compared with.
    """
    series_list = store.query_range(query)
    if not rule.operator and not rule.compared_with:
        return [(series.tags, series.times_ns, series.values) for series in series_list]
    fields = {
        name: [
            (series.tags, dict(zip(series.times_ns, series.values, strict=True)))
            for series in series_list
            if series.field == name
        ]
        for name in query.fields
    }
    groups = fields[rule.field]
    if rule.operator:
        others = {tuple(tags.values()): values for tags, values in fields[rule.other_field]}
        groups = _combined(groups, Operator(rule.operator), others)
    if rule.compared_with:
        comparand = parse_comparand(rule.compared_with)
        groups = _combined(groups, comparand.operator, _compared_values(store, comparand, query))
    return [(tags, list(values), list(values.values())) for tags, values in groups]


def _combined(
    groups: Sequence[tuple[Mapping[str, str], Mapping[int, float]]],
    operator: Operator,
    others: Mapping[tuple[str, ...], Mapping[int, float]],
) -> list[tuple[Mapping[str, str], dict[int, float]]]:
    """Return the arithmetic of values by group and time with others, where both have one."""
    combine = _OPERATIONS[operator]
    combined = []
    for tags, values in groups:
        right = others.get(tuple(tags.values()), {})
        results = {at: combine(value, right[at]) for at, value in values.items() if at in right}
        combined.append((tags, results))
    return combined


def _compared_values(
    store: Store, comparand: Comparand, query: RangeQuery
) -> Mapping[GroupKey, Mapping[int, float]]:
    """Return the values of a comparand by group and by start of the windows of a rule's query."""
    if query.step_ns is not None:
        starts = range(query.start_ns, query.end_ns, query.step_ns)
        rows = _result(compared_steps(store, comparand, query, starts))
        return {
            group: {
                at: value
                for at, value in zip(starts, row.tolist(), strict=True)
                if math.isfinite(value)
            }
            for group, row in rows.items()
        }
    request = _within(comparand, query)
    end_ns = query.end_ns - round(comparand.offset_seconds * NS_PER_SECOND)
    start_ns = end_ns - round(request.window_seconds * NS_PER_SECOND)
    window = rule_query(request, start_ns=start_ns, end_ns=end_ns, tenants=query.tenants)
    return {
        tuple(tags.values()): {query.start_ns: values[-1]}
        for tags, _, values in values_by_group(store, request, window)
        if values
    }


def compared_steps(
    store: Store, comparand: Comparand, query: RangeQuery, starts: range
) -> Generator[None, None, dict[GroupKey, Floats]]:
    """Return the values of a comparand by group, at the ends of the steps of a rule's query.

    It yields before each part of the range that it reads.
    """
    request = _within(comparand, query)
    window_ns = round(request.window_seconds * NS_PER_SECOND)
    offset_ns = round(comparand.offset_seconds * NS_PER_SECOND)
    width_ns = starts.step * max(1, window_ns // (WINDOW_STEPS * starts.step))
    steps = max(1, round(window_ns / width_ns))
    ends = [(at + starts.step - offset_ns) // width_ns for at in starts]
    first = ends[0] - steps
    read = range(first * width_ns, ends[-1] * width_ns, width_ns)
    table = yield from read_steps(store, request, read, tenants=query.tenants)
    values = _rolled(table.combined(request), Aggregate(request.aggregate), steps)
    values = values[:, np.array(ends) - first - 1]
    return {group: values[number] for group, number in table.groups.items()}


def _within(comparand: Comparand, query: RangeQuery) -> RuleRequest:
    """Return what a comparand reads for the groups of a query."""
    of_groups = {tag: values for tag, values in query.filters.items() if tag in query.group_by}
    request = comparand.request
    return replace(request, group_by=query.group_by, filters={**of_groups, **request.filters})


def _rolled(values: Floats, aggregate: Aggregate, steps: int) -> Floats:
    """Return an aggregate over the last steps at each one, of the aggregates over each step.

    That of percentiles and standard deviations is their average.
    """
    if steps == 1 or not values.size:
        return values
    if aggregate in _EXTREMES:
        return _rolling_extreme(values, _EXTREMES[aggregate], steps)
    is_known = np.isfinite(values)
    if aggregate is Aggregate.LAST:
        columns = np.where(is_known, np.arange(values.shape[1]), -1)
        last = np.maximum.accumulate(columns, axis=1)
        is_recent = last > np.arange(values.shape[1]) - steps
        last_values = np.take_along_axis(values, np.maximum(last, 0), axis=1)
        return np.where(is_recent & (last >= 0), last_values, np.nan)
    sums = rolling_sums(np.where(is_known, values, 0.0), steps)
    counts = rolling_sums(is_known.astype(np.float64), steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 0, sums if aggregate in _ADDED else sums / counts, np.nan)


def _rolling_extreme(values: Floats, extreme: np.ufunc, steps: int) -> Floats:
    """Return the least or greatest of the last steps at each one, by windows that double."""
    size = 1
    while size < steps:
        shift = min(size, steps - size)
        earlier = np.full_like(values, np.nan)
        earlier[:, shift:] = values[:, :-shift]
        values = extreme(values, earlier)
        size += shift
    return values


def _result(reading: Generator[None, None, dict[GroupKey, Floats]]) -> dict[GroupKey, Floats]:
    """Read all parts at once."""
    while True:
        try:
            next(reading)
        except StopIteration as done:
            values: dict[GroupKey, Floats] = done.value
            return values


_OPERATIONS: Mapping[Operator, Callable[[float, float], float]] = {
    Operator.PLUS: add,
    Operator.MINUS: sub,
    Operator.TIMES: mul,
    Operator.DIVIDED_BY: lambda left, right: left / right if right else math.nan,
}
