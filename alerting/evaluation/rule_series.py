"""The series of a rule over time, each value as an evaluation would have had it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from alerting.evaluation.expression import forecast, group_severity, read_groups
from alerting.evaluation.promql_groups import NO_NAMES, Names, promql_steps
from alerting.evaluation.rule_values import rule_query, values_by_group
from alerting.machine import severity_of
from alerting.models import Rule
from alerting.rule_request import (
    ANY_VALUE,
    FIELDS,
    RuleRequest,
    group_tags,
    rule_thresholds,
    unit_field,
)
from alerting.states import FORECAST, Severity
from core.clock import NS_PER_SECOND, to_ns
from timeseries.store import Store

MAX_LINES = 8
MAX_POINTS = 1000
MAX_STEPS = 240
"""Of a rule in PromQL."""
_LEAST_SPAN = timedelta(minutes=15)
_MOST_SPAN = timedelta(days=7)
_WINDOWS = 72


@dataclass(frozen=True, slots=True)
class GroupSeries:
    """The values of one group by time, and where a forecast ends."""

    tags: Mapping[str, str]
    times_ns: Sequence[int]
    values: Sequence[float]
    trend: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSeries:
    """The worst groups of a rule, worst first.

    Attributes:
        field: a name with the unit of the values.
        groups: how many groups have values.
        breaching: how many of them breach a threshold with their last value.
    """

    field: str
    start_ns: int
    end_ns: int
    step_ns: int
    lines: Sequence[GroupSeries]
    groups: int
    breaching: int
    thresholds: Sequence[tuple[float, Severity]]


def read_series(
    store: Store,
    rule: RuleRequest,
    *,
    tenants: tuple[str, ...] | None,
    end: datetime,
    start: datetime | None = None,
    names: Names = NO_NAMES,
) -> RuleSeries:
    """Return the series of a valid rule; without a start, of 72 windows, a week at most.

    Those of a rule in PromQL are drawn where they are in its result.
    """
    window = timedelta(seconds=rule.window_seconds)
    is_forecast = rule.aggregate == FORECAST
    if start is None:
        usual = window if is_forecast else _WINDOWS * window
        start = end - min(max(usual, _LEAST_SPAN), _MOST_SPAN)
    span_ns = to_ns(end) - to_ns(start)
    least_ns = span_ns // _WINDOWS if is_forecast else round(rule.window_seconds * NS_PER_SECOND)
    step_ns = max(least_ns, -(-span_ns // MAX_POINTS), NS_PER_SECOND)
    # The last window may be incomplete.
    end_ns = -(-to_ns(end) // step_ns) * step_ns
    start_ns = to_ns(start) // step_ns * step_ns
    if rule.promql:
        width_ns = -(-span_ns // MAX_STEPS // NS_PER_SECOND) * NS_PER_SECOND
        steps = range(to_ns(end) - span_ns // width_ns * width_ns, to_ns(end), width_ns)
        return _promql_series(store, rule, steps, tenants=tenants, names=names)
    query = rule_query(rule, start_ns=start_ns, end_ns=end_ns, tenants=tenants, step_ns=step_ns)
    needed = [tag for tag, values in rule.filters.items() if ANY_VALUE in values]
    ahead_ns = round(rule.ahead_seconds * NS_PER_SECOND)
    lines = []
    for tags, times_ns, values in values_by_group(store, rule, query):
        finite = [
            (at, value) for at, value in zip(times_ns, values, strict=True) if math.isfinite(value)
        ]
        if finite and all(tags[tag] for tag in needed):
            starts, finite_values = zip(*finite, strict=True)
            # A value is known at the end of its window.
            times = [min(at + step_ns, to_ns(end)) for at in starts]
            shown = {tag: text for tag, text in tags.items() if text}
            ahead = to_ns(end) + ahead_ns
            trend = _trend(starts, finite_values, (starts[0], ahead)) if is_forecast else ()
            lines.append(GroupSeries(shown, times, list(finite_values), trend))
    lines.sort(key=_last, reverse=rule.comparison.is_upper)
    breaching = sum(severity_of(_last(line), rule) is not None for line in lines)
    if breaching and rule.and_condition:
        groups = read_groups(store, rule, tenants=tenants, now=end)
        breaching = sum(group_severity(group, rule) is not None for group in groups)
    return RuleSeries(
        field=unit_field(rule),
        start_ns=start_ns,
        end_ns=to_ns(end) + ahead_ns,
        step_ns=step_ns,
        lines=lines[:MAX_LINES],
        groups=len(lines),
        breaching=breaching,
        thresholds=[(threshold, severity) for severity, threshold in rule_thresholds(rule)],
    )


def _promql_series(
    store: Store,
    rule: RuleRequest,
    steps: range,
    *,
    tenants: tuple[str, ...] | None,
    names: Names,
) -> RuleSeries:
    tags, vector = promql_steps(store, rule, steps, tenants=tenants, names=names)
    ends = np.array(steps) + steps.step
    lines = [
        GroupSeries(own, ends[flags].tolist(), row[flags].tolist())
        for own, row, flags in zip(tags, vector.values, vector.is_present, strict=True)
        if all(own.get(tag) in texts for tag, texts in rule.filters.items())
    ]
    lines.sort(key=_last, reverse=True)
    return RuleSeries(
        field="",
        start_ns=steps[0],
        end_ns=steps.stop,
        step_ns=steps.step,
        lines=lines[:MAX_LINES],
        groups=len(lines),
        breaching=sum(line.times_ns[-1] == ends[-1] for line in lines),
        thresholds=[],
    )


def request_of(rule: Rule) -> RuleRequest:
    """Return a saved rule as a user writes it."""
    return RuleRequest(**{name: getattr(rule, name) for name in FIELDS})


def rule_of_group(rule: Rule, tags: Mapping[str, str]) -> RuleRequest:
    """Return a rule that has only the group with these tags; a missing tag is empty."""
    wanted = tags if rule.promql else group_tags(rule)
    only = {tag: (tags.get(tag, ""),) for tag in wanted}
    return replace(request_of(rule), filters={**rule.filters, **only})


def _trend(
    times_ns: Sequence[int], values: Sequence[float], ends_ns: Sequence[int]
) -> Sequence[tuple[int, float]]:
    """Return the line through values at some times."""
    ends = [(at, forecast(times_ns, values, at_ns=at)) for at in ends_ns]
    return [(at, value) for at, value in ends if value is not None]


def _last(series: GroupSeries) -> float:
    return series.trend[-1][1] if series.trend else series.values[-1]
