"""Backtests: when a rule would have fired, from the stored samples, before it is saved.

The range is cut into steps, of which each is one evaluation with the aggregate over the step. That
is coarser than the rule's own evaluation, so that 30 days of a fleet come from roll-ups. A group
that never breaches a threshold is not replayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from alerting.expression import rule_query, values_by_group
from alerting.firing_steps import breaches_any, firing_steps
from alerting.rule_request import ANY_VALUE, RuleRequest, raise_errors, rule_errors
from alerting.states import FORECAST
from core.clock import NS_PER_SECOND, from_ns, to_ns
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
    store: Store, scope: Scope, request: RuleRequest, *, now: datetime, days: int
) -> Backtest:
    """Replay a rule over the last days.

    Raises:
        InvalidInputError: the request is invalid; the name is not checked.
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
    query = rule_query(
        request, start_ns=start_ns, end_ns=end_ns, tenants=scope.tenants, step_ns=step_ns
    )
    needed = [tag for tag, values in request.filters.items() if ANY_VALUE in values]
    count, shown, rows = 0, [], []
    for tags, times_ns, values in values_by_group(store, request, query):
        row = np.array(values, dtype=np.float64)
        is_number = np.isfinite(row)
        if not is_number.any() or not all(tags[tag] for tag in needed):
            continue
        count += 1
        if breaches_any(request, row[is_number]):
            shown.append({tag: text for tag, text in tags.items() if text})
            rows.append(((np.array(times_ns, dtype=np.int64) - start_ns) // step_ns, row))
    table = np.full((len(rows), (end_ns - start_ns) // step_ns), np.nan)
    for number, (steps, row) in enumerate(rows):
        table[number, steps] = row
    firings = _firings(
        shown,
        firing_steps(request, table, step_seconds=step_seconds),
        # An evaluation is at the end of its step.
        [from_ns(start_ns + step_ns * number) for number in range(1, table.shape[1] + 1)],
    )
    firings.sort(key=lambda one: (-len(one.periods), -one.firing_seconds, sorted(one.tags.items())))
    return Backtest(float(step_seconds), count, firings)


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
