"""Backtests: when a rule would have fired, from the stored samples, before it is saved.

The range is cut into steps, of which each is one evaluation with the aggregate over the step. That
is coarser than the rule's own evaluation, so that 30 days of a fleet come from roll-ups. A group
that never breaches a threshold is not replayed. The line of a forecast rolls: the sums of a
regression over a window are differences of running sums.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count

import numpy as np
from numpy.typing import NDArray

from alerting.evaluation.expression import FORECAST_MIN_VALUES, FORECAST_STEPS
from alerting.evaluation.firing_steps import Floats, breaches, breaching_groups, firing_steps
from alerting.evaluation.promql_groups import NO_NAMES, Names, promql_steps
from alerting.evaluation.rule_values import (
    OPERATIONS,
    PARTS,
    GroupKey,
    compared_steps,
    read_steps,
    rolling_sums,
    rule_query,
)
from alerting.language.checks import rule_errors
from alerting.language.text import condition_of, other_parts, parse_comparand
from alerting.rule_request import ANY_VALUE, RuleRequest, group_tags, raise_errors
from alerting.states import FORECAST
from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.quantities import format_duration
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store

MAX_DAYS = 30
MAX_STEPS = 1000
# Multiples of the roll-ups' windows.
_STEPS_SECONDS = (300, 900, 3600)


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
    store: Store,
    scope: Scope,
    request: RuleRequest,
    *,
    now: datetime,
    days: int,
    names: Names = NO_NAMES,
) -> Backtest:
    """Replay a rule over the last days.

    Raises:
        InvalidInputError: the request is invalid; the name is not checked.
    """
    for part in backtest_in_parts(store, scope, request, now=now, days=days, names=names):
        if isinstance(part, Backtest):
            return part
    raise AssertionError("a backtest ends with its result")


def backtest_in_parts(
    store: Store,
    scope: Scope,
    request: RuleRequest,
    *,
    now: datetime,
    days: int,
    names: Names = NO_NAMES,
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
        (seconds for seconds in _STEPS_SECONDS if days * 86_400 <= seconds * MAX_STEPS),
        _STEPS_SECONDS[-1],
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
    return _replayed(store, scope, request, range(start_ns, end_ns, step_ns), names)


def _replayed(
    store: Store, scope: Scope, request: RuleRequest, starts: range, names: Names
) -> Iterator[float | Backtest]:
    if request.promql:
        yield _replayed_promql(store, scope, request, starts, names)
        return
    reads = 1 + sum(1 for _ in other_parts(request))
    replay = _replay(store, request, starts, tenants=scope.tenants)
    for number in count():
        try:
            next(replay)
        except StopIteration as done:
            yield done.value
            return
        yield number / (PARTS * reads)


def _replay(
    store: Store, request: RuleRequest, starts: range, *, tenants: tuple[str, ...] | None
) -> Generator[None, None, Backtest]:
    groups, values = yield from _values(store, request, starts, tenants=tenants)
    holds = yield from _holding(store, request, groups, starts, tenants=tenants)
    breaching = breaching_groups(request, values)
    step_seconds = starts.step / NS_PER_SECOND
    tags = group_tags(request)
    firings = _sorted_firings(
        [
            {tag: text for tag, text in zip(tags, groups[group], strict=True) if text}
            for group in breaching
        ],
        firing_steps(
            request,
            values[breaching],
            step_seconds=step_seconds,
            holds=None if holds is None else holds[breaching],
        ),
        starts,
    )
    series = int(np.isfinite(values).any(axis=1).sum())
    return Backtest(step_seconds, series, firings)


def _replayed_promql(
    store: Store, scope: Scope, request: RuleRequest, starts: range, names: Names
) -> Backtest:
    """Return the backtest of a rule in PromQL: its series fire where they are present."""
    tags, vector = promql_steps(store, request, starts, tenants=scope.tenants, names=names)
    step_seconds = starts.step / NS_PER_SECOND
    is_firing = firing_steps(
        request,
        np.ones(vector.values.shape),
        step_seconds=step_seconds,
        holds=vector.is_present,
    )
    return Backtest(step_seconds, len(tags), _sorted_firings(tags, is_firing, starts))


def _values(
    store: Store, request: RuleRequest, starts: range, *, tenants: tuple[str, ...] | None
) -> Generator[None, None, tuple[list[GroupKey], Floats]]:
    """Return the groups of a rule and their values at the ends of steps; NaN for none."""
    window_steps = 0
    if request.aggregate == FORECAST:
        window_steps = round(request.window_seconds * NS_PER_SECOND) // starts.step
    read = range(starts[0] - window_steps * starts.step, starts.stop, starts.step)
    table = yield from read_steps(store, request, read, tenants=tenants)
    tags = group_tags(request)
    needed = [tags.index(tag) for tag, allowed in request.filters.items() if ANY_VALUE in allowed]
    groups = [group for group in table.groups if all(group[position] for position in needed)]
    values = table.combined(request)[[table.groups[group] for group in groups]]
    if request.aggregate == FORECAST:
        ahead = request.ahead_seconds * NS_PER_SECOND / starts.step
        values = rolling_forecast(values, window=window_steps, ahead=ahead)[:, window_steps:]
    if request.compared_with:
        comparand = parse_comparand(request.compared_with)
        query = rule_query(request, start_ns=starts[0], end_ns=starts.stop, tenants=tenants)
        others = yield from compared_steps(store, comparand, query, starts)
        right = _rows(groups, others, len(starts))
        with np.errstate(divide="ignore", invalid="ignore"):
            values = OPERATIONS[comparand.operator](values, right)
    return groups, np.where(np.isfinite(values), values, np.nan)


def _holding(
    store: Store,
    request: RuleRequest,
    groups: Sequence[GroupKey],
    starts: range,
    *,
    tenants: tuple[str, ...] | None,
) -> Generator[None, None, NDArray[np.bool_] | None]:
    """Return in which steps the second condition of a rule holds for each group; None without."""
    condition = condition_of(request)
    if condition is None:
        return None
    others, values = yield from _values(store, condition, starts, tenants=tenants)
    tags = group_tags(request)
    positions = [tags.index(tag) for tag in group_tags(condition)]
    keys = [tuple(group[position] for position in positions) for group in groups]
    rows = _rows(keys, dict(zip(others, values, strict=True)), len(starts))
    return breaches(condition, rows)


def _rows(keys: Sequence[GroupKey], values: Mapping[GroupKey, Floats], steps: int) -> Floats:
    """Return the values by key as an array; NaN where there is none."""
    rows = np.full((len(keys), steps), np.nan)
    for number, key in enumerate(keys):
        if key in values:
            rows[number] = values[key]
    return rows


def _sorted_firings(
    groups: Sequence[Mapping[str, str]], is_firing: NDArray[np.bool_], starts: range
) -> list[Firings]:
    """Return the periods of groups that fire in some steps, those that fire most often first."""
    # An evaluation is at the end of its step.
    times = [from_ns(start_ns + starts.step) for start_ns in starts]
    edges = np.diff(is_firing.astype(np.int8), axis=1, prepend=0, append=0)
    firings = []
    for tags, row in zip(groups, edges, strict=True):
        begins, ends = np.flatnonzero(row > 0).tolist(), np.flatnonzero(row < 0).tolist()
        if begins:
            pairs = zip(begins, ends, strict=True)
            firings.append(
                Firings(tags, [(times[a], times[min(b, len(times) - 1)]) for a, b in pairs])
            )
    firings.sort(
        key=lambda firing: (
            -len(firing.periods),
            -firing.firing_seconds,
            sorted(firing.tags.items()),
        )
    )
    return firings


def rolling_forecast(values: Floats, *, window: int, ahead: float) -> Floats:
    """Return what was forecast at the end of each step; NaN where there were too few values.

    Args:
        values: by group and step; NaN where there is none.
        window: the steps of which the trend is continued.
        ahead: how many steps the forecast is ahead; it may be a fraction.
    """
    if not values.size:
        return values
    is_known = np.isfinite(values)
    at = np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)
    # Around the mean, the squares of large values lose no digits.
    counts = is_known.sum(axis=1, keepdims=True)
    level = np.where(is_known, values, 0.0).sum(axis=1, keepdims=True) / np.maximum(counts, 1)
    times, deviations = np.where(is_known, at, 0.0), np.where(is_known, values - level, 0.0)
    number = rolling_sums(is_known.astype(np.float64), window)
    t, v = rolling_sums(times, window), rolling_sums(deviations, window)
    tt, tv = rolling_sums(times * times, window), rolling_sums(times * deviations, window)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (number * tv - t * v) / (number * tt - t * t)
        forecasts = level + v / number + slope * (at + 1 + ahead - t / number)
    is_enough = number >= FORECAST_STEPS // 2
    is_enough |= (number >= FORECAST_MIN_VALUES) & (_extent(is_known, window) * 2 >= window)
    return np.where(is_enough, forecasts, np.nan)


def _extent(is_known: NDArray[np.bool_], window: int) -> NDArray[np.int64]:
    """Return how many columns are between the first and the last known one of each window."""
    columns = np.broadcast_to(np.arange(is_known.shape[1]), is_known.shape)
    last = np.maximum.accumulate(np.where(is_known, columns, -1), axis=1)
    after = np.where(is_known, columns, is_known.shape[1])[:, ::-1]
    next_known = np.minimum.accumulate(after, axis=1)[:, ::-1]
    first = np.take_along_axis(next_known, np.maximum(columns - window + 1, 0), axis=1)
    extent: NDArray[np.int64] = last - first
    return extent
