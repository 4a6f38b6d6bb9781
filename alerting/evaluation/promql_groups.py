"""Rules in PromQL: each series of the result is a group that fulfills the condition."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from alerting.models import Rule
from alerting.rule_request import RuleRequest
from core.clock import to_ns
from timeseries.promql.queries import query_instant, query_range
from timeseries.promql.selection import Source
from timeseries.promql.syntax import EvaluationError
from timeseries.promql.values import NAME_LABEL, Grid, Labels, Samples, Vector
from timeseries.store import APPLIANCE_TAG, Store

MAX_ALERTS = 10_000
MAX_SECONDS = 10.0
_NS_PER_MS = 1_000_000
_LARGEST = 1.7e308
Names = Mapping[str, str]
"""The names of appliances by ID: PromQL has names, and alerts have IDs."""
NO_NAMES: Names = {}


def promql_groups(
    store: Store,
    rule: Rule | RuleRequest,
    *,
    tenants: tuple[str, ...] | None,
    now: datetime,
    names: Names = NO_NAMES,
) -> list[tuple[Mapping[str, str], float]]:
    """Return the tags and the value of each series of a rule's result at an instant.

    Raises:
        EvaluationError: two of them have the same tags, or there are too many.
    """
    source = Source(store, tenants, names=names, max_seconds=MAX_SECONDS)
    value = query_instant(source, rule.promql, at_ms=to_ns(now) // _NS_PER_MS).value
    if isinstance(value, str | Samples):
        raise EvaluationError("The condition of a rule is an instant vector or a scalar.")
    if not isinstance(value, Vector):
        return [(dict(rule.labels), storable(float(value[0])))]
    present = value.compact()
    tags = alert_tags(rule, present.labels, names)
    return list(zip(tags, map(storable, present.values[:, 0].tolist()), strict=True))


def promql_steps(
    store: Store,
    rule: RuleRequest,
    starts: range,
    *,
    tenants: tuple[str, ...] | None,
    names: Names = NO_NAMES,
) -> tuple[list[Mapping[str, str]], Vector]:
    """Return the tags and the values of a rule's result at the ends of steps, in nanoseconds."""
    grid = Grid((starts[0] + starts.step) // _NS_PER_MS, starts.step // _NS_PER_MS, len(starts))
    answer = query_range(Source(store, tenants, names=names), rule.promql, grid)
    if not isinstance(answer.value, Vector):
        raise EvaluationError("A backtest needs an instant vector.")
    return alert_tags(rule, answer.value.labels, names), answer.value


def alert_tags(
    rule: Rule | RuleRequest, labels: Sequence[Labels], names: Names
) -> list[Mapping[str, str]]:
    """Return the tags of alerts: labels without the metric, with those of the rule.

    Raises:
        EvaluationError: two alerts have the same tags, or there are too many.
    """
    if len(labels) > MAX_ALERTS:
        raise EvaluationError(
            f"The rule has {len(labels):,} series, more than {MAX_ALERTS:,}. Aggregate them."
        )
    ids = {name: appliance_id for appliance_id, name in names.items()}
    tags = list[Mapping[str, str]]()
    for own in labels:
        named = {name: text for name, text in own.items() if name != NAME_LABEL}
        if APPLIANCE_TAG in named:
            named[APPLIANCE_TAG] = ids.get(named[APPLIANCE_TAG], named[APPLIANCE_TAG])
        tags.append({**named, **rule.labels})
    if len({frozenset(own.items()) for own in tags}) < len(tags):
        raise EvaluationError(
            "Several series of the rule have the same labels, but for the metric's name. "
            "Aggregate them."
        )
    return tags


def storable(value: float) -> float:
    """Return a value that databases have: NaN is 0, and infinity the largest number."""
    return 0.0 if math.isnan(value) else max(-_LARGEST, min(_LARGEST, value))
