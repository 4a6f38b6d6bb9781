"""Backtests: when a rule would have fired, from the stored samples, before it is saved.

The range is cut into steps, of which each is one evaluation with the aggregate over the step. That
is coarser than the rule's own evaluation, so that 30 days of a fleet come from roll-ups. A group
that never breaches a threshold is not replayed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from alerting.expression import Group, rule_query, values_by_group
from alerting.machine import severity_of
from alerting.replay import Replay
from alerting.rule_request import ANY_VALUE, RuleRequest, raise_errors, rule_errors
from alerting.states import FORECAST, AlertState
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
    groups = 0
    firings = []
    for tags, values in values_by_group(store, request, query):
        if not values or not all(tags[tag] for tag in needed):
            continue
        groups += 1
        if any(severity_of(value, request) is not None for value in values.values()):
            found = Firings({tag: text for tag, text in tags.items() if text})
            found.periods += _periods(request, found.tags, values, end_ns=end_ns, step_ns=step_ns)
            firings += [found] if found.periods else []
    firings.sort(key=lambda one: (-len(one.periods), -one.firing_seconds, sorted(one.tags.items())))
    return Backtest(float(step_seconds), groups, firings)


def _periods(
    rule: RuleRequest,
    tags: Mapping[str, str],
    values: Mapping[int, float],
    *,
    end_ns: int,
    step_ns: int,
) -> Iterator[tuple[datetime, datetime]]:
    """Yield when the alert of one group would have fired, and until when."""
    replay = Replay(rule)
    since: datetime | None = None
    for time_ns in range(min(values), end_ns, step_ns):
        now = from_ns(time_ns + step_ns)
        group = [Group(tags, values[time_ns])] if time_ns in values else []
        for _, outcome in replay.evaluate(group, now=now):
            is_firing = outcome.after.state is AlertState.FIRING
            if is_firing and since is None:
                since = now
            elif not is_firing and since is not None:
                yield since, now
                since = None
    if since is not None:
        yield since, from_ns(end_ns)
