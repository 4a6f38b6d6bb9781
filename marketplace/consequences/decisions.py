"""What follows for a provider now: a pure step from its standing, the evidence and the policy.

Suspension always comes after notice and a time to mend: it follows at the end of that time if new
breaches were added, or if a failed check was not passed again. A suspension by the policy ends by
itself, with probation. One by an operator is left to operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from marketplace.consequences.policy import Policy, breach_limit
from marketplace.consequences.states import StandingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A promise that was not kept, or a check that failed.

    Attributes:
        at: when it happened.
        kind: such as `late_start`.
        subject: the id of what it is about.
        text: for the list of evidence; it names nobody.
    """

    at: datetime
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What counts for or against a provider.

    Attributes:
        score: its reputation, 0 to 1.
        breaches: in the window, that count.
        failing: the appliances whose last check failed.
        size: its appliances on offer and contracts together.
    """

    score: float
    breaches: Sequence[Breach] = ()
    failing: frozenset[str] = frozenset()
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a provider stands; see `marketplace.consequences.models.Standing`."""

    state: StandingState
    since: datetime
    mend_until: datetime | None = None
    returns_at: datetime | None = None
    probation_until: datetime | None = None
    is_by_operator: bool = False

    def is_on_probation(self, now: datetime) -> bool:
        """Return whether the limits of probation apply, also after notice in that time."""
        return self.probation_until is not None and now < self.probation_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of the standing.

    Attributes:
        state: the next one.
        cause: in sentences, for the provider.
        until: the end of the time to mend, the earliest return, or the end of probation.
        forgets: whether breaches until now don't count any more.
    """

    state: StandingState
    cause: str
    until: datetime | None = None
    forgets: bool = False


def next_step(
    position: Position, evidence: Evidence, policy: Policy, *, now: datetime
) -> Step | None:
    """Return the change that follows now; None if nothing changes."""
    decide = {
        StandingState.GOOD: _while_usable,
        StandingState.PROBATION: _while_usable,
        StandingState.NOTICED: _while_noticed,
        StandingState.SUSPENDED: _while_suspended,
    }
    return decide[position.state](position, evidence, policy, now)


def missing_for_return(
    position: Position, evidence: Evidence, policy: Policy, *, now: datetime
) -> list[str]:
    """Return what a suspended provider waits for or must do before it returns, as sentences."""
    if position.is_by_operator:
        return ["An operator suspended the provider, and decides about its return."]
    missing = []
    if position.returns_at is not None and now < position.returns_at:
        missing.append(f"The suspension lasts until {position.returns_at:%Y-%m-%d %H:%M} UTC.")
    if policy.requires_checks and evidence.failing:
        missing.append(f"{_appliances(len(evidence.failing))} must pass the checks again.")
    return missing


def _while_usable(
    position: Position, evidence: Evidence, policy: Policy, now: datetime
) -> Step | None:
    is_on_probation = position.is_on_probation(now)
    if position.state is StandingState.PROBATION and not is_on_probation:
        return Step(state=StandingState.GOOD, cause="The probation is over.")
    limit = breach_limit(policy, evidence.size, is_on_probation=is_on_probation)
    count = len(evidence.breaches)
    if not limit or count < limit:
        return None
    until = now + timedelta(days=policy.mend_days)
    return Step(
        state=StandingState.NOTICED,
        cause=f"{_breaches(count)} in the last {policy.window_days} days; {limit} lead to notice. "
        f"{_breaches(policy.mend_breaches)} or more until {until:%Y-%m-%d %H:%M} UTC, or a failed "
        "check that is not passed again by then, lead to suspension.",
        until=until,
    )


def _while_noticed(
    position: Position, evidence: Evidence, policy: Policy, now: datetime
) -> Step | None:
    mended = StandingState.PROBATION if position.is_on_probation(now) else StandingState.GOOD
    if not policy.suspension_breaches:
        cause = "The operator's policy suspends no providers any more."
        return Step(state=mended, cause=cause, until=position.probation_until)
    if position.mend_until is not None and now < position.mend_until:
        return None
    added = sum(breach.at > position.since for breach in evidence.breaches)
    reasons = []
    if added >= policy.mend_breaches:
        reasons.append(f"{_breaches(added)} since the notice")
    if evidence.failing:
        reasons.append(f"{_appliances(len(evidence.failing))} did not pass the checks again")
    if not reasons:
        cause = f"{_breaches(added)} since the notice: those before it don't count any more."
        until = position.probation_until if mended is StandingState.PROBATION else None
        return Step(state=mended, cause=cause, until=until, forgets=True)
    return Step(
        state=StandingState.SUSPENDED,
        cause=f"{', and '.join(reasons)}. No jobs start on the appliances; those that run go on.",
        until=now + timedelta(days=policy.suspension_days),
    )


def _while_suspended(
    position: Position, evidence: Evidence, policy: Policy, now: datetime
) -> Step | None:
    if missing_for_return(position, evidence, policy, now=now):
        return None
    if not policy.probation_days:
        cause = "The suspension is over."
        return Step(state=StandingState.GOOD, cause=cause, forgets=True)
    until = now + timedelta(days=policy.probation_days)
    limits = ["the offers are listed last"]
    if policy.probation_max_gpus:
        limits.append(f"each contract has {policy.probation_max_gpus} GPUs at most at once")
    return Step(
        state=StandingState.PROBATION,
        cause=f"The suspension is over. Until {until:%Y-%m-%d %H:%M} UTC, {' and '.join(limits)}, "
        f"and {_breaches(policy.probation_breaches)} lead to notice.",
        until=until,
        forgets=True,
    )


def _breaches(count: int) -> str:
    return f"{count or 'No'} breach{'' if count == 1 else 'es'}"


def _appliances(count: int) -> str:
    return f"{count} appliance{'' if count == 1 else 's'}"
