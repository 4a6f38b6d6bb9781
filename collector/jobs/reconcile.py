"""Reconciliation of the executor with the desired state: a pure function.

desired      | observed               | action
-------------+------------------------+--------------------------------------------
running      | nothing                | start; with an unknown container policy: fail
running      | running or ended       | none (an ended attempt never starts again)
running      | above its time limit   | stop, with reason `time_limit`
running      | ran, and is gone       | mark it failed: it must not run twice
stopping     | running                | stop
stopping     | nothing                | mark it stopped: it never ran on this host
not listed   | running                | stop
not listed   | ended, log delivered   | remove
not listed   | gone from the executor | forget
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from jobqueue.executors.confinement import unknown_policy
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    ObservedState,
    StopReason,
)


@dataclass(frozen=True, slots=True)
class Start:
    """Start it on the executor."""

    spec: AttemptSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop it on the executor."""

    attempt_id: str
    reason: StopReason = StopReason.USER


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove it from the executor."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Store how it ended, which the executor can't report."""

    observation: AttemptObservation


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete its stored state."""

    attempt_id: str


Action = Start | Stop | Remove | Mark | Forget


def reconcile(
    desired: DesiredState,
    observed: Mapping[str, AttemptObservation],
    *,
    remembered: Mapping[str, AttemptObservation],
    delivered_logs: Set[str],
    now_ns: int,
) -> list[Action]:
    """Return the actions for this step.

    Args:
        desired: the last one from the portal.
        observed: what the executor reports, by attempt.
        remembered: the last stored observation of each attempt.
        delivered_logs: ended attempts whose whole log the portal has.
        now_ns: the time, for time limits.
    """
    actions: list[Action] = []
    stopping = set(desired.stopping)
    running = {
        spec.attempt_id: spec for spec in desired.attempts if spec.attempt_id not in stopping
    }
    for attempt_id, spec in running.items():
        if attempt_id not in observed:
            actions += _start_or_mark(spec, remembered.get(attempt_id))
        elif _is_over_time(spec, observed[attempt_id], now_ns):
            actions.append(Stop(attempt_id, StopReason.TIME_LIMIT))
    for attempt_id in sorted(stopping):
        actions += _stop(attempt_id, observed.get(attempt_id), remembered.get(attempt_id))
    unlisted = (observed.keys() | remembered.keys()) - running.keys() - stopping
    for attempt_id in sorted(unlisted):
        seen = observed.get(attempt_id)
        if seen is None:
            actions.append(Forget(attempt_id))
        elif not seen.state.is_final:
            actions.append(Stop(attempt_id))
        elif attempt_id in delivered_logs:
            actions.append(Remove(attempt_id))
    return actions


def left_behind(
    remembered: Mapping[str, AttemptObservation], executors: Sequence[str]
) -> dict[str, AttemptObservation]:
    """Return attempts as ended that another executor has, which this agent used before.

    It may run them still, so that they must not start here.
    """
    message = (
        f"The agent's executor was changed while {' and '.join(executors)} had the attempt, which "
        "may still run there: stop it there."
    )
    return {
        attempt_id: seen
        if seen.state.is_final
        else AttemptObservation(
            attempt_id=attempt_id,
            state=ObservedState.FAILED,
            reason="executor_error",
            message=message,
            started_at_ns=seen.started_at_ns,
        )
        for attempt_id, seen in remembered.items()
    }


def _start_or_mark(spec: AttemptSpec, remembered: AttemptObservation | None) -> list[Action]:
    rejected = unknown_policy(spec)
    if rejected is not None:
        return [] if remembered == rejected else [Mark(rejected)]
    if remembered is None or remembered.state is ObservedState.STARTING:
        return [Start(spec)]
    if remembered.state.is_final:
        return []
    return [
        Mark(
            AttemptObservation(
                attempt_id=spec.attempt_id,
                state=ObservedState.FAILED,
                reason="executor_error",
                message="The attempt was removed from its executor while it was running.",
                started_at_ns=remembered.started_at_ns,
            )
        )
    ]


def _is_over_time(spec: AttemptSpec, seen: AttemptObservation, now_ns: int) -> bool:
    if not spec.time_limit_seconds or seen.state.is_final or seen.started_at_ns is None:
        return False
    return now_ns - seen.started_at_ns >= spec.time_limit_seconds * 1e9


def _stop(
    attempt_id: str, seen: AttemptObservation | None, remembered: AttemptObservation | None
) -> list[Action]:
    if seen is not None:
        return [] if seen.state.is_final else [Stop(attempt_id)]
    if remembered is not None and remembered.state.is_final:
        return []
    return [
        Mark(
            AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.STOPPED,
                reason="never_started",
                message="The attempt was stopped before it started.",
            )
        )
    ]
