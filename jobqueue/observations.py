"""What a report from an appliance means for an attempt: pure, and harmless when repeated.

Reports may come twice, late or out of order: only a move forward in `ATTEMPT_TRANSITIONS` counts.
"""

from dataclasses import dataclass

from jobqueue.executors.base import AttemptObservation, ObservedState
from jobqueue.states import ATTEMPT_TRANSITIONS, HOLDING, AttemptState, Reason

# The reasons that an appliance may give for a failure.
_FAILURE_REASONS = frozenset(
    {
        Reason.EXIT_CODE,
        Reason.OUT_OF_MEMORY,
        Reason.IMAGE_NOT_FOUND,
        Reason.START_FAILED,
        Reason.EXECUTOR_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state that an attempt moves to, and why."""

    state: AttemptState
    reason: Reason = Reason.NONE
    message: str = ""


def next_state(
    current: AttemptState, observation: AttemptObservation, *, is_stop_requested: bool
) -> Outcome | None:
    """Return where the observation moves an attempt, or None where it says nothing new.

    An attempt that is not starting or running was not given to the appliance, or has ended: then
    no report moves it. An end that is not a success counts as stopped once a user asked for that.
    """
    if current not in HOLDING:
        return None
    outcome = _outcome(observation, is_stop_requested=is_stop_requested)
    return outcome if outcome.state in ATTEMPT_TRANSITIONS[current] else None


def _outcome(observation: AttemptObservation, *, is_stop_requested: bool) -> Outcome:
    match observation.state:
        case ObservedState.STARTING:
            return Outcome(AttemptState.STARTING)
        case ObservedState.RUNNING:
            return Outcome(AttemptState.RUNNING, message=observation.message)
        case ObservedState.SUCCEEDED:
            return Outcome(AttemptState.SUCCEEDED, message=observation.message)
    if is_stop_requested:
        message = observation.message or "Stopped as a user asked."
        return Outcome(AttemptState.STOPPED, Reason.STOPPED_BY_USER, message)
    if observation.state is ObservedState.STOPPED:
        message = observation.message or "It was stopped on the appliance; no user asked for that."
        return Outcome(AttemptState.FAILED, Reason.EXECUTOR_ERROR, message)
    return _failure(observation)


def _failure(observation: AttemptObservation) -> Outcome:
    code = observation.exit_code
    try:
        reason = Reason(observation.reason)
    except ValueError:
        reason = Reason.EXECUTOR_ERROR
    if reason not in _FAILURE_REASONS:
        reason = Reason.EXIT_CODE if code is not None else Reason.EXECUTOR_ERROR
    fallback = "It failed." if code is None else f"It exited with code {code}."
    return Outcome(AttemptState.FAILED, reason, observation.message or fallback)
