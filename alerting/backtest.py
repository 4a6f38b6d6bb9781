"""Backtests: when a rule would have fired, from the stored samples, before it is saved.

The range is cut into steps, of which each is one evaluation with the aggregate over the step. That
is coarser than the rule's own evaluation, so that 30 days of a fleet come from roll-ups. A group
that never breaches a threshold is not replayed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from alerting.expression import rule_query, values_by_group
from alerting.firing_steps import Floats, breaches_any, firing_steps
from alerting.rule_request import ANY_VALUE, RuleRequest, raise_errors, rule_errors
from alerting.states import FORECAST
from core.clock import NS_PER_SECOND, from_ns, to_ns
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import Store

MAX_DAYS = 30
MAX_STEPS = 1000
# The range is read in so many parts, to show how far it is.
PARTS = 10
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
    if request.aggregate == FORECAST:
        errors["aggregate"] = ["A forecast can't be replayed: its value is not stored."]
    if not 1 <= days <= MAX_DAYS:
        errors["days"] = [f"Choose 1 to {MAX_DAYS} days, not {days}."]
    raise_errors("backtest", errors)
    step_seconds = next(
        (one for one in _STEPS_SECONDS if days * 86_400 <= one * MAX_STEPS), _STEPS_SECONDS[-1]
    )
    step_ns = step_seconds * NS_PER_SECOND
    end_ns = to_ns(now) // step_ns * step_ns
    start_ns = to_ns(now - timedelta(days=days)) // step_ns * step_ns
    return _replayed(store, scope, request, range(start_ns, end_ns, step_ns))


def _replayed(
    store: Store, scope: Scope, request: RuleRequest, starts: range
) -> Iterator[float | Backtest]:
    found: dict[tuple[tuple[str, str], ...], Floats] = {}
    needed = [tag for tag, values in request.filters.items() if ANY_VALUE in values]
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
        for tags, times_ns, values in values_by_group(store, request, query):
            if all(tags[tag] for tag in needed):
                row = found.get(key := tuple(tags.items()))
                if row is None:
                    row = found[key] = np.full(len(starts), np.nan)
                steps = (np.array(times_ns, dtype=np.int64) - starts[0]) // starts.step
                row[steps] = np.array(values, dtype=np.float64)
    yield _result(request, found, starts)


def _result(
    request: RuleRequest, found: Mapping[tuple[tuple[str, str], ...], Floats], starts: range
) -> Backtest:
    numbers = {key: row[np.isfinite(row)] for key, row in found.items()}
    breaching = [key for key, values in numbers.items() if breaches_any(request, values)]
    table = np.array([found[key] for key in breaching]).reshape(len(breaching), len(starts))
    step_seconds = starts.step / NS_PER_SECOND
    firings = _firings(
        [{tag: text for tag, text in key if text} for key in breaching],
        firing_steps(request, table, step_seconds=step_seconds),
        # An evaluation is at the end of its step.
        [from_ns(start_ns + starts.step) for start_ns in starts],
    )
    firings.sort(key=lambda one: (-len(one.periods), -one.firing_seconds, sorted(one.tags.items())))
    return Backtest(step_seconds, sum(values.size > 0 for values in numbers.values()), firings)


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
