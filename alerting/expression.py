"""A rule as a question to the store, as levels for the state machine, and as one line to read."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from alerting.machine import RuleLevels
from alerting.models import Rule
from alerting.rule_request import RuleRequest
from core.clock import NS_PER_SECOND, to_ns
from core.units import format_value
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery, Store

_DURATIONS = ((86400, "d"), (3600, "h"), (60, "m"))


@dataclass(frozen=True, slots=True)
class Group:
    """One series group's tags (empty ones left out) and its value in the window."""

    tags: Mapping[str, str]
    value: float

    @property
    def key(self) -> str:
        """The same text for the same tags always."""
        return group_key(self.tags)


def read_groups(
    store: Store, rule: Rule | RuleRequest, *, tenants: tuple[str, ...] | None, now: datetime
) -> list[Group]:
    """Ask the store for each group's value over the window that ends now."""
    series = store.query_range(range_query(rule, tenants=tenants, now=now))
    return [
        Group({tag: text for tag, text in found.tags.items() if text}, found.values[-1])
        for found in series
        if found.values and math.isfinite(found.values[-1])
    ]


def range_query(
    rule: Rule | RuleRequest, *, tenants: tuple[str, ...] | None, now: datetime
) -> RangeQuery:
    """Return the question that the rule asks; the appliance is always a part of the group."""
    end_ns = to_ns(now)
    return RangeQuery(
        measurement=rule.measurement,
        fields=(rule.field,),
        start_ns=end_ns - round(rule.window_seconds * NS_PER_SECOND),
        end_ns=end_ns,
        aggregate=Aggregate(rule.aggregate),
        tenants=tenants,
        filters={tag: tuple(values) for tag, values in rule.filters.items()},
        group_by=group_tags(rule),
    )


def group_tags(rule: Rule | RuleRequest) -> tuple[str, ...]:
    """Return the tags that split a rule's groups, `appliance` first."""
    return tuple(dict.fromkeys((APPLIANCE_TAG, *rule.group_by)))


def group_key(tags: Mapping[str, str]) -> str:
    """Return the hash of a group's tags, whatever their order."""
    canonical = json.dumps(dict(tags), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def levels_of(rule: Rule | RuleRequest) -> RuleLevels:
    """Return what the state machine needs of a rule."""
    return RuleLevels(
        comparison=rule.comparison,
        warning_threshold=rule.warning_threshold,
        critical_threshold=rule.critical_threshold,
        warning_reset=rule.warning_reset,
        critical_reset=rule.critical_reset,
        for_seconds=rule.for_seconds,
        keep_firing_seconds=rule.keep_firing_seconds,
        no_data=rule.no_data,
    )


def rule_expression(rule: Rule | RuleRequest) -> str:
    """Return a rule as one line.

    `avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85 °C, critical > 95 °C for 1m`
    """
    filters = ", ".join(f"{tag}={'|'.join(values)}" for tag, values in sorted(rule.filters.items()))
    measured = f"{rule.measurement}.{rule.field}" + (f"{{{filters}}}" if filters else "")
    levels = [
        f"{label}{rule.comparison.value} {value_text(rule, threshold)}"
        for label, threshold in (
            ("", rule.warning_threshold),
            ("critical ", rule.critical_threshold),
        )
        if threshold is not None
    ]
    if rule.warning_threshold is None:
        levels = [level.removeprefix("critical ") for level in levels]
    waiting = f" for {duration_text(rule.for_seconds)}" if rule.for_seconds else ""
    return (
        f"{rule.aggregate}({measured}) over {duration_text(rule.window_seconds)} "
        f"by {', '.join(group_tags(rule))} {', '.join(levels)}{waiting}"
    )


def value_text(rule: Rule | RuleRequest, value: float) -> str:
    """Return a value with the unit of what the rule measures; a count has none."""
    return format_value("" if rule.aggregate == Aggregate.COUNT.value else rule.field, value)


def duration_text(seconds: float) -> str:
    """Return seconds in the largest unit that divides them: `5m`, `90s`, `1.5s`."""
    for size, unit in _DURATIONS:
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
