"""Rules replayed on values by time, without a database: for tests of rules and for backtests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from alerting.evaluation.expression import Group, group_key
from alerting.machine import AlertView, Outcome, next_state
from alerting.rule_request import RuleRequest


@dataclass(slots=True)
class Replay:
    """The alerts of a rule as time goes on, by group."""

    rule: RuleRequest
    alerts: dict[str, tuple[Mapping[str, str], AlertView]] = field(default_factory=dict)

    def evaluate(
        self, groups: Sequence[Group], *, now: datetime
    ) -> Iterator[tuple[Mapping[str, str], Outcome]]:
        """Evaluate the rule; yield the transitions with the tags of their groups."""
        missing = dict(self.alerts)
        for group in groups:
            key = group_key(group.tags)
            _, before = missing.pop(key, (group.tags, None))
            outcome = next_state(before, group.value, self.rule, now=now, holds=group.holds)
            yield from self._moved(key, group.tags, outcome)
        for key, (tags, before) in missing.items():
            yield from self._moved(key, tags, next_state(before, None, self.rule, now=now))

    def _moved(
        self, key: str, tags: Mapping[str, str], outcome: Outcome
    ) -> Iterator[tuple[Mapping[str, str], Outcome]]:
        self.alerts[key] = tags, outcome.after
        if outcome.is_transition:
            yield tags, outcome
