"""A rule as a store query; its preview before it is saved."""

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import linear_regression
from typing import Any

from alerting.evaluation.promql_groups import NO_NAMES, Names, promql_groups
from alerting.evaluation.rule_values import rule_query, values_by_group
from alerting.language.checks import rule_errors
from alerting.language.text import condition_of
from alerting.machine import severity_of
from alerting.models import Rule
from alerting.rule_request import (
    ANY_VALUE,
    RuleRequest,
    group_tags,
    raise_errors,
    rule_thresholds,
)
from alerting.states import FORECAST, Comparison, Severity
from core.clock import NS_PER_SECOND, to_ns
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, Store

FORECAST_STEPS = 60
"""The windows of a forecast's range whose averages it continues."""
FORECAST_MIN_VALUES = 3


@dataclass(frozen=True, slots=True)
class Group:
    """Tags of one series group, without empty ones, and its value over the window.

    `holds` says whether the second condition of the rule holds, too. A preview also has the
    severity that the value breaches.
    """

    tags: Mapping[str, str]
    value: float
    severity: Severity | None = None
    holds: bool = True


def read_groups(
    store: Store,
    rule: Rule | RuleRequest,
    *,
    tenants: tuple[str, ...] | None,
    now: datetime,
    only_breaches: bool = False,
    whole_appliances: Collection[str] = (),
    names: Names = NO_NAMES,
) -> list[Group]:
    """Return the groups, always split by `appliance`, with their values over the window.

    Those of a rule in PromQL are the series of its result.

    Args:
        store: the samples.
        rule: the rule.
        tenants: whose samples to read.
        now: the end of the window.
        only_breaches: whether groups that breach no threshold may be left out.
        whole_appliances: those of which none are left out.
        names: of appliances by ID, for a rule in PromQL.
    """
    if rule.promql:
        series = promql_groups(store, rule, tenants=tenants, now=now, names=names)
        return [Group(tags, value) for tags, value in series]
    end_ns = to_ns(now)
    window_ns = round(rule.window_seconds * NS_PER_SECOND)
    query = rule_query(rule, start_ns=end_ns - window_ns, end_ns=end_ns, tenants=tenants)
    is_plain = not rule.operator and not rule.compared_with and rule.aggregate != FORECAST
    if only_breaches and is_plain and rule.comparison.has_side:
        query = replace(query, **_limit(rule), whole_appliances=tuple(whole_appliances))
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
    return _with_condition(store, rule, groups, tenants=tenants, now=now)


def _limit(rule: Rule | RuleRequest) -> dict[str, Any]:
    """Return the limit of a query beyond which values breach the lower threshold of a rule."""
    _, level = rule_thresholds(rule)[0]
    is_upper = rule.comparison.is_upper
    if rule.comparison in {Comparison.AT_LEAST, Comparison.AT_MOST}:
        level = math.nextafter(level, -math.inf if is_upper else math.inf)
    return {"above": level} if is_upper else {"below": level}


def forecast(times_ns: Sequence[int], values: Sequence[float], *, at_ns: int) -> float | None:
    """Return the value at a time that the line through values by time (least squares) has."""
    if len(values) < FORECAST_MIN_VALUES:
        return None
    seconds = [(time_ns - at_ns) / NS_PER_SECOND for time_ns in times_ns]
    return linear_regression(seconds, values).intercept


def _with_condition(
    store: Store,
    rule: Rule | RuleRequest,
    groups: list[Group],
    *,
    tenants: tuple[str, ...] | None,
    now: datetime,
) -> list[Group]:
    """Return the groups with whether the second condition of their rule holds.

    It is not read while no value could breach the first one.
    """
    condition = condition_of(rule)
    firing = (None, *Severity)
    if condition is None or not any(
        severity_of(group.value, rule, firing=severity) for group in groups for severity in firing
    ):
        return groups
    if TENANT_TAG in rule.group_by:
        condition = replace(condition, group_by=(TENANT_TAG, *condition.group_by))
    tags = group_tags(condition)
    holding = {
        tuple(group.tags.get(tag, "") for tag in tags)
        for group in read_groups(store, condition, tenants=tenants, now=now, only_breaches=True)
        if group_severity(group, condition) is not None
    }
    return [
        replace(group, holds=tuple(group.tags.get(tag, "") for tag in tags) in holding)
        for group in groups
    ]


def group_severity(group: Group, rule: Rule | RuleRequest) -> Severity | None:
    """Return the severity that a group breaches, of an alert that does not fire yet."""
    return severity_of(group.value, rule) if group.holds else None


def preview_rule(
    store: Store,
    scope: Scope,
    request: RuleRequest,
    *,
    now: datetime,
    names: Names = NO_NAMES,
) -> list[Group]:
    """Return every group of the rule now, regardless of its `for` duration.

    Raises:
        InvalidInputError: the request is invalid; the name is not checked.
    """
    scope.require(Permission.VIEW)
    errors = rule_errors(request)
    errors.pop("name", None)
    raise_errors("rule", errors)
    return [
        replace(group, severity=group_severity(group, request))
        for group in read_groups(store, request, tenants=scope.tenants, now=now, names=names)
    ]


def group_key(tags: Mapping[str, str]) -> str:
    """Return the hash of a group's tags, independent of their order."""
    canonical = json.dumps(dict(tags), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
