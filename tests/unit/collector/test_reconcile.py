"""The table of the reconciliation, row by row."""

import pytest

from collector.jobs.reconcile import Action, Forget, Mark, Remove, Start, Stop, reconcile
from jobqueue.executors.base import AttemptObservation, AttemptSpec, ObservedState
from jobqueue.executors.wire import DesiredState

SPEC = AttemptSpec(attempt_id="a", job_id="j", name="train", image="train:1")
RUN = DesiredState(generation=1, attempts=[SPEC])
STOP = DesiredState(generation=1, stopping=["a"])
BOTH = DesiredState(generation=1, attempts=[SPEC], stopping=["a"])
UNLISTED = DesiredState(generation=1)


def seen(state: ObservedState) -> AttemptObservation:
    return AttemptObservation(attempt_id="a", state=state)


STARTING = seen(ObservedState.STARTING)
RUNNING = seen(ObservedState.RUNNING)
SUCCEEDED = seen(ObservedState.SUCCEEDED)
FAILED = seen(ObservedState.FAILED)


@pytest.mark.parametrize(
    ("desired", "observed", "remembered", "is_log_delivered", "expected"),
    [
        pytest.param(RUN, None, None, False, [Start(SPEC)], id="new"),
        pytest.param(RUN, None, STARTING, False, [Start(SPEC)], id="crashed before it ran"),
        pytest.param(RUN, STARTING, STARTING, False, [], id="starting"),
        pytest.param(RUN, RUNNING, RUNNING, False, [], id="running"),
        pytest.param(RUN, SUCCEEDED, SUCCEEDED, True, [], id="ended, not heard by the portal"),
        pytest.param(RUN, None, FAILED, True, [], id="ended here once is never started again"),
        pytest.param(STOP, STARTING, STARTING, False, [Stop("a")], id="stop while starting"),
        pytest.param(STOP, RUNNING, RUNNING, False, [Stop("a")], id="stop while running"),
        pytest.param(STOP, FAILED, FAILED, True, [], id="stop after its end"),
        pytest.param(STOP, None, FAILED, True, [], id="stop after its end, seen no more"),
        pytest.param(BOTH, None, SUCCEEDED, False, [], id="stop wins over run"),
        pytest.param(UNLISTED, RUNNING, RUNNING, False, [Stop("a")], id="unknown and running"),
        pytest.param(UNLISTED, SUCCEEDED, SUCCEEDED, False, [], id="ended, log on its way"),
        pytest.param(UNLISTED, SUCCEEDED, SUCCEEDED, True, [Remove("a")], id="all delivered"),
        pytest.param(UNLISTED, None, FAILED, False, [Forget("a")], id="a memory only"),
        pytest.param(UNLISTED, None, None, False, [], id="nothing at all"),
    ],
)
def test_the_action_follows_from_what_is_wanted_and_what_is_here(
    desired: DesiredState,
    observed: AttemptObservation | None,
    remembered: AttemptObservation | None,
    is_log_delivered: bool,  # noqa: FBT001 - a column of the table
    expected: list[Action],
) -> None:
    actions = reconcile(
        desired,
        {"a": observed} if observed else {},
        remembered={"a": remembered} if remembered else {},
        delivered_logs={"a"} if is_log_delivered else set(),
    )
    assert actions == expected


def test_an_attempt_that_ran_and_vanished_is_marked_failed_and_not_run_again() -> None:
    [action] = reconcile(RUN, {}, remembered={"a": RUNNING}, delivered_logs=set())
    assert isinstance(action, Mark)
    assert action.observation.state is ObservedState.FAILED
    assert "somebody removed it" in action.observation.message


def test_stopping_what_never_ran_here_is_marked_stopped() -> None:
    [action] = reconcile(STOP, {}, remembered={}, delivered_logs=set())
    assert isinstance(action, Mark)
    assert action.observation.state is ObservedState.STOPPED
    assert action.observation.reason == "never_started"
