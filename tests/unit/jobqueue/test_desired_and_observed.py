"""The desired state that an agent receives, and the effect of its reports on attempts and jobs."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.clock import to_ns
from core.errors import NotFoundError
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.dispatch.observed_state import apply_report
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.job_spec import JobKind
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import (
    GIB,
    add_appliance,
    dispatch,
    noon_ns,
    observed,
    report,
    start,
    submit,
)


def test_an_agent_receives_all_it_needs_to_run_an_attempt(session: Session, cast: Cast) -> None:
    attempt = start(
        session,
        cast,
        command=["serve"],
        env={"PORT": "80"},
        gpus=1,
        cpus=2.5,
        memory_bytes=4 * GIB,
        kind=JobKind.SERVICE,
    )
    desired = desired_state(session, attempt.appliance_id, box=BOX)
    assert desired.generation == attempt.appliance.desired_generation
    assert desired.stopping == []
    assert desired.attempts == [
        AttemptSpec(
            attempt_id=attempt.id,
            job_id=attempt.job_id,
            name="train",
            image="python:3.13",
            command=["serve"],
            env={"PORT": "80"},
            gpu_uuids=["GPU-dgx-01-0"],
            cpus=2.5,
            memory_bytes=4 * GIB,
            is_service=True,
        )
    ]


def test_an_attempt_to_be_stopped_is_listed_apart(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    stop_job(session, scope_of(cast.alice), attempt.job_id, now=NOON)
    session.refresh(attempt.job)
    desired = desired_state(session, attempt.appliance_id, box=BOX)
    assert (desired.attempts, desired.stopping) == ([], [attempt.id])


def test_bound_and_ended_attempts_are_not_shown(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=8)
    submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    report(session, attempt, ObservedState.SUCCEEDED)
    assert desired_state(session, attempt.appliance_id, box=BOX).attempts == []


def test_a_deleted_appliance_has_no_desired_state(session: Session) -> None:
    with pytest.raises(NotFoundError):
        desired_state(session, "no-such-id", box=BOX)


def test_a_running_report_starts_the_job(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    moved = report(session, attempt, ObservedState.RUNNING, started_at_ns=noon_ns(plus_seconds=30))
    assert moved == 1
    assert (attempt.state, attempt.job.state) == (AttemptState.RUNNING, JobState.RUNNING)
    assert attempt.started_at == attempt.job.started_at == NOON + timedelta(seconds=30)


def test_an_end_is_stored_with_its_exit_code_and_reason(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.RUNNING)
    report(
        session,
        attempt,
        ObservedState.FAILED,
        exit_code=137,
        reason="out_of_memory",
        message="It used more than 1 GiB.",
    )
    for row in (attempt, attempt.job):
        assert row.state.value == "failed"
        assert (row.reason, row.exit_code) == (Reason.OUT_OF_MEMORY, 137)
        assert row.message == "It used more than 1 GiB."
        assert row.finished_at == NOON + timedelta(minutes=1)


def test_a_user_who_stopped_a_job_sees_it_stopped(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    stop_job(session, scope_of(cast.alice), attempt.job_id, now=NOON)
    session.refresh(attempt.job)
    report(session, attempt, ObservedState.FAILED, exit_code=143)
    assert (attempt.job.state, attempt.job.reason) == (JobState.STOPPED, Reason.STOPPED_BY_USER)


def test_a_repeated_or_late_report_changes_nothing(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    for state in ObservedState:
        assert report(session, attempt, state, exit_code=9) == 0
    assert (attempt.state, attempt.exit_code) == (AttemptState.SUCCEEDED, 0)
    assert attempt.job.state is JobState.SUCCEEDED


def test_a_report_with_the_same_attempt_twice_is_applied_in_order(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    states = (ObservedState.RUNNING, ObservedState.RUNNING, ObservedState.SUCCEEDED)
    seen = [observed(attempt, state) for state in states]
    assert apply_report(session, attempt.appliance_id, seen, now=NOON) == 2
    session.refresh(attempt)
    assert attempt.state is AttemptState.SUCCEEDED


def test_another_appliances_report_of_an_attempt_changes_nothing(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    for tenant in (cast.acme, cast.globex):
        other = add_appliance(session, tenant, "other")
        seen = [observed(attempt, ObservedState.FAILED)]
        assert apply_report(session, other.id, seen, now=NOON) == 0
    session.refresh(attempt)
    assert attempt.state is AttemptState.STARTING


def test_a_report_of_an_unknown_attempt_is_passed_over(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    unknown = AttemptObservation(attempt_id="no-such-id", state=ObservedState.FAILED)
    seen = [unknown, observed(attempt, ObservedState.RUNNING)]
    assert apply_report(session, attempt.appliance_id, seen, now=NOON) == 1


@pytest.mark.parametrize(
    ("claimed_ns", "kept_at"),
    [
        (0, NOON),
        (-(2**62), NOON),
        (2**62, NOON + timedelta(minutes=1)),
        (10**30, NOON + timedelta(minutes=1)),
    ],
)
def test_an_appliances_wrong_clock_is_kept_within_reason(
    session: Session, cast: Cast, claimed_ns: int, kept_at: object
) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.RUNNING, started_at_ns=claimed_ns)
    assert attempt.started_at == kept_at


def test_an_exit_code_that_no_system_has_is_left_out(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.FAILED, exit_code=2**40)
    assert attempt.exit_code is None
    assert attempt.state is AttemptState.FAILED


def test_an_end_moves_the_generation_so_that_the_agent_cleans_up(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    before = attempt.appliance.desired_generation
    report(session, attempt, ObservedState.RUNNING)
    session.refresh(attempt.appliance)
    assert attempt.appliance.desired_generation == before
    report(session, attempt, ObservedState.SUCCEEDED)
    session.refresh(attempt.appliance)
    assert attempt.appliance.desired_generation == before + 1


def test_the_progress_of_a_start_is_shown(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    report(session, attempt, ObservedState.STARTING, message="Pulling python:3.13, 40 %.")
    assert attempt.job.message == "Pulling python:3.13, 40 %."
    report(session, attempt, ObservedState.RUNNING)
    assert attempt.job.message == ""


def test_the_times_of_a_pull_are_stored_from_its_first_begin(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    at_ns = to_ns(NOON)
    report(session, attempt, ObservedState.STARTING, pull_began_at_ns=at_ns)
    # The agent starts again, and pulls the rest.
    report(session, attempt, ObservedState.STARTING, pull_began_at_ns=at_ns + 20 * 10**9)
    assert (attempt.pull_began_at, attempt.pull_ended_at) == (NOON, None)
    times = {"pull_began_at_ns": at_ns + 20 * 10**9, "pull_ended_at_ns": at_ns + 40 * 10**9}
    report(session, attempt, ObservedState.RUNNING, **times)
    assert (attempt.pull_began_at, attempt.pull_ended_at) == (NOON, NOON + timedelta(seconds=40))
