"""The table of the reconciliation, row by row."""

import msgspec
import pytest

from collector.jobs.reconcile import Action, Forget, Mark, Remove, Start, Stop, reconcile
from protocol.attempts import (
    AttemptObservation,
    AttemptSpec,
    DesiredState,
    ObservedState,
    StopReason,
)

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
def test_actions_follow_from_desired_and_observed_state(
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
        now_ns=0,
    )
    assert actions == expected


def test_an_attempt_that_ran_and_vanished_is_marked_failed_and_not_run_again() -> None:
    [action] = reconcile(RUN, {}, remembered={"a": RUNNING}, delivered_logs=set(), now_ns=0)
    assert isinstance(action, Mark)
    assert action.observation.state is ObservedState.FAILED
    assert "removed from its executor" in action.observation.message


def test_an_attempt_that_never_ran_is_marked_stopped() -> None:
    [action] = reconcile(STOP, {}, remembered={}, delivered_logs=set(), now_ns=0)
    assert isinstance(action, Mark)
    assert action.observation.state is ObservedState.STOPPED
    assert action.observation.reason == "never_started"


def test_an_attempt_with_an_unknown_container_policy_fails_once_and_never_starts() -> None:
    """An agent that is older than the portal must not run it with more rights."""
    spec = msgspec.structs.replace(SPEC, container_policy="open")
    desired = DesiredState(generation=1, attempts=[spec])

    (action,) = reconcile(desired, {}, remembered={}, delivered_logs=set(), now_ns=0)

    assert isinstance(action, Mark)
    failed = action.observation
    assert (failed.state, failed.reason) == (ObservedState.FAILED, "invalid_job")
    assert "'open'" in failed.message
    assert reconcile(desired, {}, remembered={"a": failed}, delivered_logs=set(), now_ns=0) == []


@pytest.mark.parametrize(("ran_seconds", "is_stopped"), [(59, False), (60, True)])
def test_an_attempt_is_stopped_at_its_time_limit(
    ran_seconds: int,
    is_stopped: bool,  # noqa: FBT001 - a column of the table
) -> None:
    limited = msgspec.structs.replace(SPEC, time_limit_seconds=60)
    running = msgspec.structs.replace(RUNNING, started_at_ns=7 * 10**9)
    actions = reconcile(
        DesiredState(generation=1, attempts=[limited]),
        {"a": running},
        remembered={},
        delivered_logs=set(),
        now_ns=(7 + ran_seconds) * 10**9,
    )
    assert actions == ([Stop("a", StopReason.TIME_LIMIT)] if is_stopped else [])
