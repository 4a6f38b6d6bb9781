"""Jobs that wait for their data on an appliance: what its agent gets, and what it reports."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from datasets.models import DatasetVersion
from datasets.staging import NO_DIGEST
from jobqueue.dispatch.desired_state import desired_state
from jobqueue.jobs.settings import MAX_FETCH_MINUTES, QueueSettings, set_settings
from jobqueue.jobs.transitions import move_attempt, move_job
from jobqueue.models import Attempt, JobEvent
from jobqueue.queue.stopping import stop_job
from jobqueue.states import AttemptState, JobState, Reason
from protocol.attempts import AttemptSpec, ObservedState, StagingProgress
from protocol.job_spec import DatasetMount
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.jobqueue.builders import dispatch, report, submit
from tests.unit.jobqueue.dataset_builders import (
    DIGEST,
    TIB,
    add_dataset,
    add_stager,
    copy_of,
    report_copies,
)

STARTING, RUNNING = ObservedState.STARTING, ObservedState.RUNNING
HALF = StagingProgress(staged_bytes=TIB, total_bytes=2 * TIB, remaining_seconds=600.0)


@pytest.fixture
def attempt(session: Session, cast: Cast) -> Attempt:
    """An attempt on dgx-01 that reads a dataset of 2 TiB, of which a half is cached."""
    [version] = add_dataset(session, cast.acme).versions
    dgx = add_stager(session, cast.acme, "dgx-01")
    at_once = QueueSettings(longest_fetch_minutes=MAX_FETCH_MINUTES)
    set_settings(session, scope_of(cast.alice), cast.acme.id, at_once)
    report_copies(session, dgx, copy_of(version, cached_bytes=TIB))
    job = submit(
        session,
        cast.bob,
        gpus=1,
        datasets=[DatasetMount(dataset="imagenet", target="/data")],
        max_retries=1,
        retry_on=["start"],
    )
    dispatch(session, now=NOON)
    session.refresh(job)
    assert job.attempt is not None
    return job.attempt


def spec_of(session: Session, attempt: Attempt) -> AttemptSpec:
    [spec] = desired_state(session, attempt.appliance_id, box=BOX).attempts
    return spec


def test_the_placement_says_how_much_is_cached(attempt: Attempt) -> None:
    assert attempt.placement["reason"].endswith("Of its data, 1 of 2 TiB cached there.")
    assert attempt.placement["cached_bytes"] == TIB
    assert attempt.placement["dataset_bytes"] == 2 * TIB


def test_the_agent_gets_the_version_with_its_target(session: Session, attempt: Attempt) -> None:
    [dataset] = spec_of(session, attempt).datasets
    assert (dataset.name, dataset.number, dataset.digest) == ("imagenet", 1, DIGEST)
    assert (dataset.target, dataset.total_bytes) == ("/data", 2 * TIB)
    assert dataset.source.url == "s3://data/imagenet"


def test_a_version_that_vanished_is_never_left_out(session: Session, attempt: Attempt) -> None:
    session.execute(delete(DatasetVersion))
    [dataset] = spec_of(session, attempt).datasets
    assert (dataset.digest, dataset.target) == (NO_DIGEST, "/data")


def test_the_job_waits_for_data_until_it_runs(session: Session, attempt: Attempt) -> None:
    report(session, attempt, STARTING, staging=HALF, message="imagenet: 1 of 2 TiB")

    assert attempt.staging == {
        "staged_bytes": TIB,
        "total_bytes": 2 * TIB,
        "remaining_seconds": 600.0,
    }
    assert (attempt.job.state, attempt.job.reason) == (JobState.STARTING, Reason.WAITING_FOR_DATA)
    assert attempt.job.message == "imagenet: 1 of 2 TiB"
    report(session, attempt, RUNNING)
    cleared: dict[str, object] | None = attempt.staging
    assert (cleared, attempt.job.reason) == (None, Reason.NONE)


def test_progress_is_stored_and_in_the_history_once(session: Session, attempt: Attempt) -> None:
    for staged_bytes in (0, TIB, 2 * TIB):
        progress = StagingProgress(staged_bytes=staged_bytes, total_bytes=2 * TIB)
        report(session, attempt, STARTING, staging=progress)
        report(session, attempt, STARTING, staging=progress)
    assert attempt.staging == {
        "staged_bytes": 2 * TIB,
        "total_bytes": 2 * TIB,
        "remaining_seconds": None,
    }
    waits = select(JobEvent).where(JobEvent.reason == Reason.WAITING_FOR_DATA)
    assert len(session.scalars(waits).all()) == 1


def test_after_its_data_the_job_only_starts(session: Session, attempt: Attempt) -> None:
    report(session, attempt, STARTING, staging=HALF)
    report(session, attempt, STARTING, message="pulling the image")
    assert (attempt.staging, attempt.job.reason) == (None, Reason.NONE)
    assert attempt.job.message == "pulling the image"


@pytest.mark.parametrize(
    ("staged_bytes", "total_bytes", "remaining_seconds"),
    [(-5, -7, -1.0), (2**63, 5, 1e300), (7, 5, float("nan"))],
)
def test_impossible_progress_is_bounded(
    session: Session,
    attempt: Attempt,
    staged_bytes: int,
    total_bytes: int,
    remaining_seconds: float,
) -> None:
    progress = StagingProgress(
        staged_bytes=staged_bytes, total_bytes=total_bytes, remaining_seconds=remaining_seconds
    )
    report(session, attempt, STARTING, staging=progress)
    assert attempt.staging is not None
    assert 0 <= attempt.staging["staged_bytes"] <= attempt.staging["total_bytes"] <= 5
    assert attempt.staging["remaining_seconds"] is None


def test_a_late_report_of_staging_does_not_change_a_running_job(
    session: Session, attempt: Attempt
) -> None:
    report(session, attempt, STARTING, staging=HALF)
    report(session, attempt, RUNNING)
    report(session, attempt, STARTING, staging=HALF)
    assert (attempt.state, attempt.staging) == (AttemptState.RUNNING, None)
    assert (attempt.job.state, attempt.job.reason) == (JobState.RUNNING, Reason.NONE)


def test_a_job_that_is_stopped_while_it_waits_for_data_has_no_progress_left(
    session: Session, cast: Cast, attempt: Attempt
) -> None:
    report(session, attempt, STARTING, staging=HALF)
    stop_job(session, scope_of(cast.bob), attempt.job_id, now=NOON)
    report(session, attempt, ObservedState.STOPPED)
    assert (attempt.state, attempt.staging) == (AttemptState.STOPPED, None)


def test_data_that_cannot_be_fetched_fails_the_attempt_with_the_next_step(
    session: Session, attempt: Attempt
) -> None:
    report(session, attempt, STARTING, staging=HALF)
    why = "imagenet: the bucket answered 403. Renew the credentials of the connection 'lab'."
    report(session, attempt, ObservedState.FAILED, reason="data_unavailable", message=why)
    assert (attempt.state, attempt.reason) == (AttemptState.FAILED, Reason.DATA_UNAVAILABLE)
    assert (attempt.message, attempt.staging) == (why, None)
    # It is tried again as after other starts that fail.
    assert (attempt.job.state, attempt.job.reason) == (JobState.QUEUED, Reason.WAITING_FOR_RETRY)
    assert attempt.appliance.quarantined_at is None


def test_the_reason_comes_back_after_an_outage_of_the_appliance(
    session: Session, attempt: Attempt
) -> None:
    report(session, attempt, STARTING, staging=HALF)
    unreachable = {"reason": Reason.APPLIANCE_UNREACHABLE, "message": "dgx-01 is silent"}
    starting, job_starting = AttemptState.STARTING, JobState.STARTING
    move_attempt(session, attempt.id, starting, expected={starting}, **unreachable)
    move_job(session, attempt.job_id, job_starting, expected={job_starting}, **unreachable)
    report(session, attempt, STARTING, staging=HALF)
    assert attempt.job.reason is Reason.WAITING_FOR_DATA


def test_a_job_without_data_on_an_old_agent_starts_as_before(
    session: Session, cast: Cast, attempt: Attempt
) -> None:
    plain = submit(session, cast.bob)
    dispatch(session, now=NOON + timedelta(seconds=1))
    session.refresh(plain)
    assert plain.attempt is not None
    report(session, plain.attempt, STARTING, message="pulling")
    assert (plain.attempt.staging, plain.reason) == (None, Reason.NONE)
    assert "cached_bytes" not in plain.attempt.placement
    assert attempt.staging is None
