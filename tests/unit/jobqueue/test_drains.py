"""A drained appliance waits for its jobs; those that still run after a time move."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from core.errors import ForbiddenError
from jobqueue.dispatch.appliance_lifecycle import drain_progress, move_overdue, start_drain
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, report, start, submit

HOUR = timedelta(hours=1)


def test_a_drained_appliance_waits_and_then_its_jobs_move(session: Session, cast: Cast) -> None:
    attempt = start(session, cast, gpus=8)
    waiting = submit(session, cast.alice, "second", gpus=8)
    dispatch(session, now=NOON)
    job, dgx = attempt.job, attempt.appliance
    report(session, attempt, ObservedState.RUNNING)
    generation = dgx.desired_generation
    start_drain(session, scope_of(cast.alice), dgx.id, wait=HOUR, now=NOON)
    assert move_overdue(session, now=NOON + HOUR - timedelta(seconds=1)) == 0
    progress = drain_progress(session, dgx)
    assert progress is not None
    assert (progress.deadline_at, progress.job_count) == (NOON + HOUR, 1)
    assert [moving_job.id for moving_job in progress.jobs] == [job.id]

    assert [move_overdue(session, now=NOON + HOUR) for _ in range(2)] == [1, 0]
    session.refresh(dgx)
    assert dgx.desired_generation == generation + 1
    report(session, attempt, ObservedState.STOPPED, exit_code=137)
    assert (attempt.state, attempt.reason) == (AttemptState.STOPPED, Reason.APPLIANCE_DRAINED)
    assert (job.state, job.reason) == (JobState.QUEUED, Reason.APPLIANCE_DRAINED)
    progress = drain_progress(session, dgx)
    assert progress is not None
    assert (progress.is_done, progress.job_count, progress.jobs_left) == (True, 1, 0)

    add_appliance(session, cast.acme, "dgx-02")
    dispatch(session, now=NOON + HOUR)
    session.refresh(job)
    session.refresh(waiting)
    # It has its old place in the queue, and the attempt did not count as a retry.
    assert (job.state, waiting.state) == (JobState.STARTING, JobState.QUEUED)
    assert job.attempt is not None
    assert (job.attempt.number, job.attempt.appliance.name) == (2, "dgx-02")


def test_without_a_time_jobs_run_to_their_end(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    scope = scope_of(cast.alice)
    start_drain(session, scope, attempt.appliance_id, wait=timedelta(), now=NOON)
    start_drain(session, scope, attempt.appliance_id, now=NOON)
    assert move_overdue(session, now=NOON + 24 * HOUR) == 0


def test_members_drain_nothing(session: Session, cast: Cast) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    assert drain_progress(session, dgx) is None
    with pytest.raises(ForbiddenError):
        start_drain(session, scope_of(cast.bob), dgx.id, now=NOON)
