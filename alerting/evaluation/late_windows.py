"""Evaluate a rule over windows whose samples arrived after their evaluation.

A rule of a level that some sample must cross is read for the windows around such samples alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from alerting.evaluation.expression import Group, group_key, group_severity, read_groups
from alerting.evaluation.rule_query import rule_query
from alerting.evaluation.rule_series import request_of
from alerting.machine import severity_of
from alerting.models import Rule
from alerting.rule_request import ANY_VALUE, RuleRequest
from alerting.states import FORECAST, Severity
from core.clock import NS_PER_SECOND, to_ns
from timeseries.store import APPLIANCE_TAG, Aggregate, Store

# The shortest time between the ends of two windows.
MIN_STEP = timedelta(seconds=10)
# A value beyond a level of these means that a sample is beyond it.
_BOUNDED_BY_SAMPLES = frozenset(
    {
        *(Aggregate.AVG, Aggregate.MIN, Aggregate.MAX, Aggregate.LAST),
        *(Aggregate.P50, Aggregate.P95, Aggregate.P99),
    }
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Late samples of a tenant.

    Attributes:
        appliances: whose samples they are.
        measurements: those that have late samples.
        first_at: the time of the oldest one.
        last_at: the time of the newest one.
        arrived_at: when the last ones arrived.
    """

    appliances: frozenset[str]
    measurements: frozenset[str]
    first_at: datetime
    last_at: datetime
    arrived_at: datetime


@dataclass(slots=True)
class LateFiring:
    """A group that would have fired.

    Attributes:
        group: its tags, and its value when it would have fired.
        severity: what the value breaches.
        since_at: the end of the first window that breached.
        fires_at: the end of the window at which it would have fired.
        until_at: the end of the last window that breached.
    """

    group: Group
    severity: Severity
    since_at: datetime
    fires_at: datetime
    until_at: datetime


def late_firings(
    store: Store, rule: Rule, backlog: Backlog, *, delay: timedelta
) -> list[LateFiring]:
    """Return the groups that would have fired at the end of a window that late samples belong to.

    Args:
        store: the samples.
        rule: the rule.
        backlog: the late samples.
        delay: how long after the end of its window an evaluation takes place.
    """
    window, for_duration = (
        timedelta(seconds=seconds) for seconds in (rule.window_seconds, rule.for_seconds)
    )
    last_at = min(backlog.last_at, backlog.arrived_at - window - delay)
    first_at = max(backlog.first_at, rule.created_at)
    request = _of_appliances(request_of(rule), backlog.appliances)
    if last_at < first_at or rule.aggregate == FORECAST or not request.filters[APPLIANCE_TAG]:
        return []  # its evaluations have seen all of them, or they say nothing about the future
    tenants = (rule.tenant_id,)
    step = max(window / 2, MIN_STEP)
    # The windows before show since when a threshold has been crossed.
    newest_at = min(last_at + window + step, backlog.arrived_at)
    ends = _window_ends(first_at - for_duration, newest_at, step)
    firings: list[LateFiring] = []
    newest: dict[str, LateFiring] = {}
    for end_at in _worth_reading(store, request, tenants, ends):
        for group in read_groups(store, request, tenants=tenants, now=end_at, only_breaches=True):
            severity = group_severity(group, request)
            if severity is None:
                continue
            key = group_key(group.tags)
            firing = newest.get(key)
            if firing is None or end_at - firing.until_at > step:
                firing = newest[key] = LateFiring(group, severity, end_at, end_at, end_at)
                firings.append(firing)
            is_worse = severity.rank > firing.severity.rank
            if is_worse or firing.fires_at - firing.since_at < for_duration:
                firing.group, firing.severity, firing.fires_at = group, severity, end_at
            firing.until_at = end_at
    return [
        firing
        for firing in firings
        if firing.until_at >= first_at and firing.fires_at - firing.since_at >= for_duration
    ]


def _of_appliances(rule: RuleRequest, appliances: frozenset[str]) -> RuleRequest:
    """Return a rule that reads only some appliances."""
    allowed = rule.filters.get(APPLIANCE_TAG, (ANY_VALUE,))
    chosen = appliances if ANY_VALUE in allowed else appliances.intersection(allowed)
    return replace(rule, filters={**rule.filters, APPLIANCE_TAG: tuple(sorted(chosen))})


def _window_ends(start_at: datetime, end_at: datetime, step: timedelta) -> list[datetime]:
    return [start_at + number * step for number in range((end_at - start_at) // step + 1)]


def _worth_reading(
    store: Store, rule: RuleRequest, tenants: tuple[str, ...], ends: Sequence[datetime]
) -> Sequence[datetime]:
    """Return the ends of windows that may breach a threshold, found with one query if possible."""
    is_plain = not rule.operator and not rule.compared_with and rule.comparison.has_side
    if not is_plain or rule.aggregate not in _BOUNDED_BY_SAMPLES:
        return ends
    step_ns = round(rule.window_seconds * NS_PER_SECOND)
    start_ns = to_ns(ends[0]) // step_ns * step_ns - step_ns
    query = rule_query(
        rule, start_ns=start_ns, end_ns=to_ns(ends[-1]), tenants=tenants, step_ns=step_ns
    )
    is_upper = rule.comparison.is_upper
    query = replace(query, aggregate=Aggregate.MAX if is_upper else Aggregate.MIN)
    breached = {
        at_ns // step_ns
        for series in store.query_range(query)
        for at_ns, value in zip(series.times_ns, series.values, strict=True)
        if severity_of(value, rule) is not None
    }
    # A window has parts of two of these steps.
    return [
        end_at
        for end_at in ends
        if not breached.isdisjoint({(to_ns(end_at) - 1) // step_ns, to_ns(end_at) // step_ns - 1})
    ]
