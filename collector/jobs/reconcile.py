"""What to do so that this appliance runs what the portal wants: a pure function.

wanted by portal | known here            | action
-----------------+-----------------------+--------------------------------------------
run              | nothing               | start
run              | runs or ended         | none (an ended attempt never starts again)
run              | ran, and has vanished | mark it failed: it must not run twice
stop             | runs                  | stop
stop             | nothing               | mark it stopped: it never ran here
not listed       | runs                  | stop
not listed       | ended, log delivered  | remove
not listed       | a mark only           | forget
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from jobqueue.executors.base import AttemptObservation, AttemptSpec, ObservedState
from jobqueue.executors.wire import DesiredState


@dataclass(frozen=True, slots=True)
class Start:
    """Have the executor run it."""

    spec: AttemptSpec


@dataclass(frozen=True, slots=True)
class Stop:
    """Have the executor end it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Have the executor forget it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Remember how it ended, which the executor does not know."""

    observation: AttemptObservation


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop our own memory of it."""

    attempt_id: str


Action = Start | Stop | Remove | Mark | Forget


def reconcile(
    desired: DesiredState,
    observed: Mapping[str, AttemptObservation],
    *,
    remembered: Mapping[str, AttemptObservation],
    delivered_logs: Set[str],
) -> list[Action]:
    """Return what to do now.

    Args:
        desired: the portal's last word.
        observed: what the executor sees now.
        remembered: the last thing known of each attempt, kept over restarts.
        delivered_logs: attempts that ended here and whose whole log the portal has.
    """
    actions: list[Action] = []
    stopping = set(desired.stopping)
    wanted = {spec.attempt_id: spec for spec in desired.attempts if spec.attempt_id not in stopping}
    for attempt_id, spec in wanted.items():
        if attempt_id not in observed:
            actions += _start_or_mark(spec, remembered.get(attempt_id))
    for attempt_id in sorted(stopping):
        actions += _stop(attempt_id, observed.get(attempt_id), remembered.get(attempt_id))
    unlisted = (observed.keys() | remembered.keys()) - wanted.keys() - stopping
    for attempt_id in sorted(unlisted):
        seen = observed.get(attempt_id)
        if seen is None:
            actions.append(Forget(attempt_id))
        elif not seen.state.is_final:
            actions.append(Stop(attempt_id))
        elif attempt_id in delivered_logs:
            actions.append(Remove(attempt_id))
    return actions


def _start_or_mark(spec: AttemptSpec, known: AttemptObservation | None) -> list[Action]:
    if known is None or known.state is ObservedState.STARTING:
        return [Start(spec)]
    if known.state.is_final:
        return []
    return [
        Mark(
            AttemptObservation(
                attempt_id=spec.attempt_id,
                state=ObservedState.FAILED,
                reason="executor_error",
                message="The attempt ran and is gone from its executor: somebody removed it.",
                started_at_ns=known.started_at_ns,
            )
        )
    ]


def _stop(
    attempt_id: str, seen: AttemptObservation | None, known: AttemptObservation | None
) -> list[Action]:
    if seen is not None:
        return [] if seen.state.is_final else [Stop(attempt_id)]
    if known is not None and known.state.is_final:
        return []
    return [
        Mark(
            AttemptObservation(
                attempt_id=attempt_id,
                state=ObservedState.STOPPED,
                reason="never_started",
                message="The attempt was stopped before it was started here.",
            )
        )
    ]
