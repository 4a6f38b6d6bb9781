"""The state that a report moves an attempt to, and why. Pure."""

from dataclasses import dataclass

from jobqueue.states import ALLOCATED_STATES, ATTEMPT_TRANSITIONS, AttemptState, Reason
from protocol.attempts import (
    AttemptObservation,
    ObservedState,
)

# The reasons that an appliance may report for a failure.
_FAILURE_REASONS = frozenset(
    {
        Reason.EXIT_CODE,
        Reason.OUT_OF_MEMORY,
        Reason.IMAGE_NOT_FOUND,
        Reason.IMAGE_PULL_FAILED,
        Reason.INVALID_JOB,
        Reason.START_FAILED,
        Reason.GPU_SLICE_FAILED,
        Reason.GPU_FAULT_OF_NEIGHBOR,
        Reason.DATA_UNAVAILABLE,
        Reason.NETWORK_FAILED,
        Reason.NODE_FAILED,
        Reason.EXECUTOR_ERROR,
        Reason.SIGNAL,
        Reason.TIME_LIMIT,
    }
)


# Why the queue stopped an attempt; the message about an idle one has its limit.
_STOP_MESSAGES = {
    Reason.PREEMPTED: "Stopped for another job.",
    Reason.UPDATED: "Stopped for an update.",
    Reason.SCALED_DOWN: "Stopped: its service does not need it now.",
    Reason.MEMBER_ENDED: "Stopped: another member of the gang ended.",
    Reason.GANG_RESTARTED: "Stopped: the gang starts anew.",
    Reason.APPLIANCE_DRAINED: "Stopped to move: its appliance is drained.",
    Reason.CONTRACT_ENDED: "Stopped: the contract of its rented appliance has ended.",
    Reason.BUDGET_SPENT: "Stopped: a budget or the prepaid credit that it counts towards is spent.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The state that a report moves an attempt to, and why."""

    state: AttemptState
    reason: Reason = Reason.NONE
    message: str = ""


def next_state(
    current: AttemptState,
    observation: AttemptObservation,
    *,
    is_stop_requested: bool,
    stop_reason: Reason | None = None,
) -> Outcome | None:
    """Return where the observation moves an attempt, or None where it changes nothing.

    Only an attempt that is starting or running moves. Once a user, or the queue with a
    `stop_reason`, has requested a stop, any end but success counts as stopped.
    """
    if current not in ALLOCATED_STATES:
        return None
    outcome = _outcome(observation, is_stop_requested=is_stop_requested or stop_reason is not None)
    if outcome.state is AttemptState.STOPPED and stop_reason and not is_stop_requested:
        message = _STOP_MESSAGES.get(stop_reason, "")
        outcome = Outcome(AttemptState.STOPPED, stop_reason, message)
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
        message = observation.message or "Stopped by a user."
        return Outcome(AttemptState.STOPPED, Reason.STOPPED_BY_USER, message)
    is_preempted = observation.reason == Reason.PREEMPTED_BY_CLUSTER
    if observation.state is ObservedState.STOPPED and not is_preempted:
        message = observation.message or "Stopped on the appliance, not through the portal."
        return Outcome(AttemptState.FAILED, Reason.EXECUTOR_ERROR, message)
    return _failure(observation)


def _failure(observation: AttemptObservation) -> Outcome:
    code = observation.exit_code
    try:
        reason = Reason(observation.reason)
    except ValueError:
        reason = Reason.EXECUTOR_ERROR
    if reason is Reason.PREEMPTED_BY_CLUSTER:
        words = f": {observation.message}" if observation.message else "."
        return Outcome(AttemptState.STOPPED, reason, f"The cluster preempted it{words}")
    if reason not in _FAILURE_REASONS:
        reason = Reason.EXIT_CODE if code is not None else Reason.EXECUTOR_ERROR
    fallback = "The attempt failed." if code is None else f"The command exited with code {code}."
    return Outcome(AttemptState.FAILED, reason, observation.message or fallback)
