"""The meaning of reports: the whole product of attempt states and observations."""

from itertools import product

import pytest

from jobqueue.dispatch.outcomes import next_state
from jobqueue.states import ATTEMPT_TRANSITIONS, AttemptState, Reason
from protocol.attempts import AttemptObservation, ObservedState

_A = AttemptState
_O = ObservedState

# (state, observation) -> (state after, state after if a stop was requested). All other pairs say
# nothing new.
MOVES = {
    (_A.STARTING, _O.RUNNING): (_A.RUNNING, _A.RUNNING),
    (_A.STARTING, _O.SUCCEEDED): (_A.SUCCEEDED, _A.SUCCEEDED),
    (_A.STARTING, _O.FAILED): (_A.FAILED, _A.STOPPED),
    (_A.STARTING, _O.STOPPED): (_A.FAILED, _A.STOPPED),
    (_A.RUNNING, _O.SUCCEEDED): (_A.SUCCEEDED, _A.SUCCEEDED),
    (_A.RUNNING, _O.FAILED): (_A.FAILED, _A.STOPPED),
    (_A.RUNNING, _O.STOPPED): (_A.FAILED, _A.STOPPED),
}


@pytest.mark.parametrize("is_stop_requested", [False, True])
@pytest.mark.parametrize(("current", "seen"), list(product(AttemptState, ObservedState)))
def test_each_observation_moves_each_state_as_the_table_says(
    current: AttemptState,
    seen: ObservedState,
    is_stop_requested: bool,  # noqa: FBT001 - a parameter of the product
) -> None:
    observation = AttemptObservation(attempt_id="a", state=seen)
    outcome = next_state(current, observation, is_stop_requested=is_stop_requested)
    expected = MOVES.get((current, seen), (None, None))[is_stop_requested]
    assert (outcome.state if outcome else None) is expected
    assert outcome is None or outcome.state in ATTEMPT_TRANSITIONS[current]


@pytest.mark.parametrize(
    ("reason", "exit_code", "expected"),
    [
        ("image_not_found", None, Reason.IMAGE_NOT_FOUND),
        ("out_of_memory", 137, Reason.OUT_OF_MEMORY),
        ("exit_code", 3, Reason.EXIT_CODE),
        ("", 3, Reason.EXIT_CODE),
        ("engine_unavailable", None, Reason.EXECUTOR_ERROR),
        ("appliance_lost", None, Reason.EXECUTOR_ERROR),
    ],
)
def test_a_failure_gets_a_reason_that_an_appliance_may_give(
    reason: str, exit_code: int | None, expected: Reason
) -> None:
    observation = AttemptObservation(
        attempt_id="a", state=_O.FAILED, reason=reason, exit_code=exit_code
    )
    outcome = next_state(_A.RUNNING, observation, is_stop_requested=False)
    assert outcome is not None
    assert outcome.reason is expected


def test_a_failure_without_a_message_names_the_exit_code() -> None:
    observation = AttemptObservation(attempt_id="a", state=_O.FAILED, exit_code=3)
    outcome = next_state(_A.RUNNING, observation, is_stop_requested=False)
    assert outcome is not None
    assert outcome.message == "The command exited with code 3."


def test_a_stop_outside_the_portal_is_a_failure() -> None:
    observation = AttemptObservation(attempt_id="a", state=_O.STOPPED)
    outcome = next_state(_A.RUNNING, observation, is_stop_requested=False)
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (_A.FAILED, Reason.EXECUTOR_ERROR)
    assert "not through the portal" in outcome.message
