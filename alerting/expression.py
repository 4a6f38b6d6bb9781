"""A rule as a store query; its preview before it is saved."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from alerting.machine import severity_of
from alerting.models import Rule
from alerting.rule_request import RuleRequest, raise_errors, rule_errors
from alerting.rule_text import group_tags
from alerting.states import Severity
from core.clock import NS_PER_SECOND, to_ns
from core.quantities import format_value
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.sample_query import unknown_name
from timeseries.store import (
    Aggregate,
    RangeQuery,
    Store,
    StoreUnavailableError,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Tags of one series group, without empty ones, and its value over the window.

    A preview also has the severity that the value breaches.
    """

    tags: Mapping[str, str]
    value: float
    severity: Severity | None = None


def read_groups(
    store: Store, rule: Rule | RuleRequest, *, tenants: tuple[str, ...] | None, now: datetime
) -> list[Group]:
    """Return the groups, always split by `appliance`, with their values over the window."""
    end_ns = to_ns(now)
    query = RangeQuery(
        measurement=rule.measurement,
        fields=(rule.field,),
        start_ns=end_ns - round(rule.window_seconds * NS_PER_SECOND),
        end_ns=end_ns,
        aggregate=Aggregate(rule.aggregate),
        tenants=tenants,
        filters={tag: tuple(values) for tag, values in rule.filters.items()},
        group_by=group_tags(rule),
    )
    return [
        Group({tag: text for tag, text in series.tags.items() if text}, series.values[-1])
        for series in store.query_range(query)
        if series.values and math.isfinite(series.values[-1])
    ]


def check_metric(store: Store, scope: Scope, request: RuleRequest) -> None:
    """Check the metric against the samples; one whose measurement has none yet is accepted.

    Raises:
        InvalidInputError: the measurement has samples, but not of this field.
    """
    try:
        known = store.fields(request.measurement, tenants=scope.tenants)
    except StoreUnavailableError:
        return
    if known and request.field not in known:
        raise_errors("rule", {"field": [unknown_name("field", request.field, known)]})


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
    return format_value("" if rule.aggregate == Aggregate.COUNT.value else rule.field, value)
