"""Backtests: when a rule would have fired, from the stored samples, before it is saved.

The range is cut into steps, of which each is one evaluation with the aggregate over the step. That
is coarser than the rule's own evaluation, so that 30 days of a fleet come from roll-ups. A group
that never breaches a threshold is not replayed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from alerting.expression import FORECAST_MIN_VALUES, rule_query
from alerting.firing_steps import Floats, breaching_groups, firing_steps
from alerting.rolling_forecast import rolling_forecast
from alerting.rule_request import ANY_VALUE, RuleRequest, raise_errors, rule_errors
from alerting.rule_text import group_tags
from alerting.states import FORECAST, Operator
from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.quantities import format_duration
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.columns import SeriesColumns
from timeseries.store import Store

MAX_DAYS = 30
MAX_STEPS = 1000
# The range is read in so many parts, to show how far it is.
PARTS = 10
# Multiples of the roll-ups' windows.
_STEPS_SECONDS = (300, 900, 3600)
_OPERATIONS: Mapping[Operator, Callable[[Floats, Floats], Floats]] = {
    Operator.PLUS: np.add,
    Operator.MINUS: np.subtract,
    Operator.TIMES: np.multiply,
    Operator.DIVIDED_BY: np.divide,
}


@dataclass(slots=True)
class Firings:
    """The times at which the alert of one group would have fired; the last one may go on."""

    tags: Mapping[str, str]
    periods: list[tuple[datetime, datetime]] = field(default_factory=list)

    @property
    def firing_seconds(self) -> float:
        """For how long it would have fired in all."""
        return sum((end - start).total_seconds() for start, end in self.periods)

    @property
    def longest_seconds(self) -> float:
        """The longest time for which it would have fired."""
        return max((end - start).total_seconds() for start, end in self.periods)

    @property
    def last_fired_at(self) -> datetime:
        """When it would have fired last."""
        return self.periods[-1][0]


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result: the groups that would have fired, most often first.

    Attributes:
        step_seconds: the time between two evaluations.
        groups: how many groups had values.
        firings: those that would have fired.
    """

    step_seconds: float
    groups: int
    firings: list[Firings]


def backtest_rule(
    store: Store, scope: Scope, request: RuleRequest, *, now: datetime, days: int
) -> Backtest:
    """Replay a rule over the last days.

    Raises:
        InvalidInputError: the request is invalid; the name is not checked.
    """
    for found in backtest_in_parts(store, scope, request, now=now, days=days):
        if isinstance(found, Backtest):
            return found
    raise AssertionError("a backtest ends with its result")


def backtest_in_parts(
    store: Store, scope: Scope, request: RuleRequest, *, now: datetime, days: int
) -> Iterator[float | Backtest]:
    """Check a rule, then replay it: yield the share that is done, again and again, and the result.

    Raises:
        InvalidInputError: as `backtest_rule`, at once.
    """
    scope.require(Permission.VIEW)
    errors = rule_errors(request)
    errors.pop("name", None)
    if not 1 <= days <= MAX_DAYS:
        errors["days"] = [f"Choose 1 to {MAX_DAYS} days, not {days}."]
    step_seconds = next(
        (one for one in _STEPS_SECONDS if days * 86_400 <= one * MAX_STEPS), _STEPS_SECONDS[-1]
    )
    least_seconds = FORECAST_MIN_VALUES * step_seconds
    if request.aggregate == FORECAST and request.window_seconds < least_seconds:
        errors.setdefault("window_seconds", []).append(
            f"A forecast over {days} days is replayed in steps of {format_duration(step_seconds)}: "
            f"use a window of {format_duration(least_seconds)} or more, or fewer days."
        )
    raise_errors("backtest", errors)
    step_ns = step_seconds * NS_PER_SECOND
    end_ns = to_ns(now) // step_ns * step_ns
    start_ns = to_ns(now - timedelta(days=days)) // step_ns * step_ns
    return _replayed(store, scope, request, range(start_ns, end_ns, step_ns))


def _replayed(
    store: Store, scope: Scope, request: RuleRequest, starts: range
) -> Iterator[float | Backtest]:
    evaluated = starts
    if request.aggregate == FORECAST:
        window_steps = round(request.window_seconds * NS_PER_SECOND) // starts.step
        starts = range(starts[0] - window_steps * starts.step, starts.stop, starts.step)
    table = _Table(tuple(filter(None, (request.field, request.other_field))), starts)
    for number in range(PARTS):
        first, last = (len(starts) * one // PARTS for one in (number, number + 1))
        yield number / PARTS
        if first == last:
            continue
        part = starts[first:last]
        query = rule_query(
            request,
            start_ns=part[0],
            end_ns=part[-1] + starts.step,
            tenants=scope.tenants,
            step_ns=starts.step,
        )
        for columns in store.query_columns(query):
            table.add(columns)
    yield _result(request, table, evaluated)


class _Table:
    """Values of the fields of a rule by group and step; NaN where there is none."""

    def __init__(self, fields: Sequence[str], starts: range) -> None:
        self._starts = starts
        self.groups: dict[tuple[str, ...], int] = {}
        self.values = {field: np.full((0, len(starts)), np.nan) for field in fields}

    def add(self, columns: SeriesColumns) -> None:
        """Add the values of a part of the steps."""
        numbers = [self.groups.setdefault(one, len(self.groups)) for one in columns.groups]
        rows = np.repeat(np.array(numbers, dtype=np.int64), columns.lengths)
        for name, values in self.values.items():
            missing = np.full((len(self.groups) - len(values), len(self._starts)), np.nan)
            self.values[name] = np.concatenate([values, missing]) if missing.size else values
        steps = (columns.times_ns - self._starts[0]) // self._starts.step
        self.values[columns.field][rows, steps] = columns.values


def _result(request: RuleRequest, table: _Table, starts: range) -> Backtest:
    tags = group_tags(request)
    needed = [tags.index(tag) for tag, allowed in request.filters.items() if ANY_VALUE in allowed]
    groups = [one for one in table.groups if all(one[position] for position in needed)]
    values = _combined(request, table)[[table.groups[one] for one in groups]]
    if request.aggregate == FORECAST:
        ahead = request.ahead_seconds * NS_PER_SECOND / starts.step
        window_steps = values.shape[1] - len(starts)
        values = rolling_forecast(values, window=window_steps, ahead=ahead)[:, window_steps:]
    values = np.where(np.isfinite(values), values, np.nan)
    breaching = breaching_groups(request, values)
    step_seconds = starts.step / NS_PER_SECOND
    firings = _firings(
        [
            {tag: text for tag, text in zip(tags, groups[one], strict=True) if text}
            for one in breaching
        ],
        firing_steps(request, values[breaching], step_seconds=step_seconds),
        # An evaluation is at the end of its step.
        [from_ns(start_ns + starts.step) for start_ns in starts],
    )
    firings.sort(key=lambda one: (-len(one.periods), -one.firing_seconds, sorted(one.tags.items())))
    known = int(np.isfinite(values).any(axis=1).sum())
    return Backtest(step_seconds, known, firings)


def _combined(request: RuleRequest, table: _Table) -> Floats:
    """Return the values of the rule: the arithmetic of two fields is that of their aggregates."""
    if not request.operator:
        return table.values[request.field]
    with np.errstate(divide="ignore", invalid="ignore"):
        return _OPERATIONS[Operator(request.operator)](
            table.values[request.field], table.values[request.other_field]
        )


def _firings(
    groups: Sequence[Mapping[str, str]], is_firing: NDArray[np.bool_], times: Sequence[datetime]
) -> list[Firings]:
    """Return the periods of groups that fire in some steps, at the times of their evaluations."""
    edges = np.diff(is_firing.astype(np.int8), axis=1, prepend=0, append=0)
    found = []
    for tags, row in zip(groups, edges, strict=True):
        starts, ends = np.flatnonzero(row > 0).tolist(), np.flatnonzero(row < 0).tolist()
        if starts:
            pairs = zip(starts, ends, strict=True)
            found.append(
                Firings(tags, [(times[a], times[min(b, len(times) - 1)]) for a, b in pairs])
            )
    return found
