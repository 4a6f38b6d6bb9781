"""Jobs and attempts move only as their transition tables allow."""

from itertools import product
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from jobqueue.jobs.transitions import TransitionError, move_attempt, move_job
from jobqueue.states import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    AttemptState,
    JobState,
    Reason,
)
from tests.cast import Cast
from tests.unit.jobqueue.builders import start

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("before", "after"), list(product(JobState, repeat=2)))
def test_a_job_moves_only_as_its_table_allows(
    session: Session, before: JobState, after: JobState
) -> None:
    stays = before is after and not before.is_final
    if after in JOB_TRANSITIONS[before] or stays:
        assert not move_job(session, "unknown", after, expected={before})
    else:
        with pytest.raises(TransitionError, match=f"from {before} to {after}"):
            move_job(session, "unknown", after, expected={before})


@pytest.mark.parametrize(("before", "after"), list(product(AttemptState, repeat=2)))
def test_an_attempt_moves_only_as_its_table_allows(
    session: Session, before: AttemptState, after: AttemptState
) -> None:
    stays = before is after and not before.is_final
    if after in ATTEMPT_TRANSITIONS[before] or stays:
        assert not move_attempt(session, "unknown", after, expected={before})
    else:
        with pytest.raises(TransitionError, match=f"from {before} to {after}"):
            move_attempt(session, "unknown", after, expected={before})


def test_a_move_without_expected_states_starts_from_every_source(
    session: Session, cast: Cast
) -> None:
    job = start(session, cast).job
    assert move_job(session, job.id, JobState.RUNNING)
    assert move_job(session, job.id, JobState.LOST, reason=Reason.APPLIANCE_LOST)
    assert not move_job(session, job.id, JobState.RUNNING)
    session.refresh(job)
    assert (job.state, job.reason) == (JobState.LOST, Reason.APPLIANCE_LOST)


def test_only_the_transitions_module_updates_jobs_and_attempts() -> None:
    packages = (
        "access",
        "alerting",
        "backup",
        "cli",
        "dash_app",
        "jobqueue",
        "portal",
        "scheduler",
        "tenants",
    )
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    writers = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if "update(Job)" in (text := path.read_text("utf-8")) or "update(Attempt)" in text
    }
    # These count the stored bytes of a log, lock a job, or note that its end was
    # reported, that its usage was charged, or that it should stop: they leave the state alone.
    assert writers == {
        "jobqueue/fairshare/usage.py",
        "jobqueue/jobs/end_notices.py",
        "jobqueue/jobs/job_secrets.py",
        "jobqueue/jobs/restored.py",
        "jobqueue/logs/log_files.py",
        "jobqueue/logs/logs.py",
        "jobqueue/queue/stopping.py",
    }
