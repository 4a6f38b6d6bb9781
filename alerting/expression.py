"""A rule as a store query; its preview before it is saved."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import add, mul, sub
from statistics import linear_regression

from alerting.machine import severity_of
from alerting.models import Rule
from alerting.rule_request import ANY_VALUE, RuleRequest, raise_errors, rule_errors
from alerting.rule_text import group_tags, unit_field
from alerting.states import FORECAST, Comparison, Operator, Severity
from core.clock import NS_PER_SECOND, to_ns
from core.quantities import format_value
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Aggregate, RangeQuery, Store

FORECAST_STEPS = 60
"""The windows of a forecast's range whose averages it continues."""
FORECAST_MIN_VALUES = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Tags of one series group, without empty ones, and its value over the window.

    A preview also has the severity that the value breaches.
    """

    tags: Mapping[str, str]
    value: float
    severity: Severity | None = None


def read_groups(
    store: Store,
    rule: Rule | RuleRequest,
    *,
    tenants: tuple[str, ...] | None,
    now: datetime,
    only_breaches: bool = False,
    whole_appliances: Collection[str] = (),
) -> list[Group]:
    """Return the groups, always split by `appliance`, with their values over the window.

    Args:
        store: the samples.
        rule: the rule.
        tenants: whose samples to read.
        now: the end of the window.
        only_breaches: whether groups that breach no threshold may be left out.
        whole_appliances: those of which none are left out.
    """
    end_ns = to_ns(now)
    window_ns = round(rule.window_seconds * NS_PER_SECOND)
    query = rule_query(rule, start_ns=end_ns - window_ns, end_ns=end_ns, tenants=tenants)
    if only_breaches and not rule.operator and rule.aggregate != FORECAST:
        warning, critical = rule.warning_threshold, rule.critical_threshold
        level = critical if warning is None else warning
        is_above = rule.comparison is Comparison.ABOVE
        query = replace(
            query,
            above=level if is_above else None,
            below=None if is_above else level,
            whole_appliances=tuple(whole_appliances),
        )
    if rule.aggregate == FORECAST:
        step_ns = max(NS_PER_SECOND, window_ns // FORECAST_STEPS)
        start_ns, last_ns = (at - at % step_ns for at in (query.start_ns, end_ns))
        query = replace(query, start_ns=start_ns, end_ns=last_ns, step_ns=step_ns)
    groups = []
    needed = [tag for tag, values in rule.filters.items() if ANY_VALUE in values]
    for tags, times_ns, values in values_by_group(store, rule, query):
        if not values or not all(tags[tag] for tag in needed):
            continue
        value: float | None = values[-1]
        if rule.aggregate == FORECAST:
            at_ns = end_ns + round(rule.ahead_seconds * NS_PER_SECOND)
            value = forecast(times_ns, values, at_ns=at_ns)
            # A short beginning says little about the trend.
            if len(values) < FORECAST_STEPS // 2 and (times_ns[-1] - times_ns[0]) * 2 < window_ns:
                value = None
        if value is not None and math.isfinite(value):
            groups.append(Group({tag: text for tag, text in tags.items() if text}, value))
    return groups


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
        group_by=group_tags(rule),
    )


def values_by_group(
    store: Store, rule: Rule | RuleRequest, query: RangeQuery
) -> list[tuple[Mapping[str, str], Sequence[int], Sequence[float]]]:
    """Return the starts of the windows and the values of a rule by group, oldest first.

    The arithmetic of two fields is that of their aggregates, where both have one.
    """
    found = store.query_range(query)
    if not rule.operator:
        return [(series.tags, series.times_ns, series.values) for series in found]
    combine = _OPERATIONS[Operator(rule.operator)]
    others = {
        tuple(series.tags.values()): dict(zip(series.times_ns, series.values, strict=True))
        for series in found
        if series.field == rule.other_field
    }
    groups: list[tuple[Mapping[str, str], Sequence[int], Sequence[float]]] = []
    for series in found:
        right = others.get(tuple(series.tags.values()), {})
        if series.field == rule.field:
            pairs = zip(series.times_ns, series.values, strict=True)
            both = {at: combine(left, right[at]) for at, left in pairs if at in right}
            groups.append((series.tags, list(both), list(both.values())))
    return groups


def forecast(times_ns: Sequence[int], values: Sequence[float], *, at_ns: int) -> float | None:
    """Return the value at a time that the line through values by time (least squares) has."""
    if len(values) < FORECAST_MIN_VALUES:
        return None
    seconds = [(time_ns - at_ns) / NS_PER_SECOND for time_ns in times_ns]
    return linear_regression(seconds, values).intercept


def _quotient(left: float, right: float) -> float:
    return left / right if right else math.nan


def preview_rule(store: Store, scope: Scope, request: RuleRequest, *, now: datetime) -> list[Group]:
    """Return every group of the rule now, regardless of its `for` duration.

    Raises:
        InvalidInputError: the request is invalid; the name is not checked.
    """
    scope.require(Permission.VIEW)
    errors = rule_errors(request)
    errors.pop("name", None)
    raise_errors("rule", errors)
    return [
        replace(group, severity=severity_of(group.value, request))
        for group in read_groups(store, request, tenants=scope.tenants, now=now)
    ]


def group_key(tags: Mapping[str, str]) -> str:
    """Return the hash of a group's tags, independent of their order."""
    canonical = json.dumps(dict(tags), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def value_text(rule: Rule | RuleRequest, value: float) -> str:
    """Return a value with the unit of the rule's field; a count has none."""
    return format_value(unit_field(rule), value)


_OPERATIONS: Mapping[Operator, Callable[[float, float], float]] = {
    Operator.PLUS: add,
    Operator.MINUS: sub,
    Operator.TIMES: mul,
    Operator.DIVIDED_BY: _quotient,
}
