"""Ended jobs are deleted by their users, and by age."""

# ruff: noqa: ANN401 - builders pass any field on

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Attempt, Job, JobEvent, LogChunk
from jobqueue.queue.retention import CHARGED_AFTER, delete_job, expire_jobs
from jobqueue.queue.stopping import stop_array, stop_job
from jobqueue.states import AttemptState, JobState
from jobqueue.usage.models import UsageEntry, UsageHour
from protocol.attempts import ObservedState
from tests.cast import NOON, Cast, scope_of
from tests.fixtures.rentals import rent
from tests.unit.jobqueue.builders import add_appliance, append_log, report, start, submit


def test_a_tenant_may_retain_jobs_for_less_time_than_the_portal(
    session: Session, cast: Cast
) -> None:
    set_settings(session, scope_of(cast.alice), cast.acme.id, QueueSettings(job_retention_days=10))
    set_settings(
        session, scope_of(cast.charlie), cast.globex.id, QueueSettings(job_retention_days=900)
    )
    for user in (cast.alice, cast.charlie):
        for name, days in (("young", 9), ("old", 11), ("ancient", 400)):
            job = submit(session, user, name)
            stop_job(session, scope_of(user), job.id, now=NOON - timedelta(days=days))
        submit(session, user, "waiting")
    deleted = [expire_jobs(session, retention_days=365, now=NOON) for _ in range(3)]
    assert deleted == [2, 1, 0]
    left = session.execute(select(Job.tenant_id, Job.name).order_by(Job.id)).all()
    assert [name for tenant, name in left if tenant == cast.acme.id] == ["young", "waiting"]
    assert [name for tenant, name in left if tenant != cast.acme.id] == [
        *("young", "old", "waiting")
    ]


def test_a_retention_is_at_least_a_day(session: Session, cast: Cast) -> None:
    with pytest.raises(InvalidInputError) as caught:
        set_settings(
            session, scope_of(cast.alice), cast.acme.id, QueueSettings(job_retention_days=0)
        )
    assert caught.value.errors.keys() == {"job_retention_days"}


def end(session: Session, cast: Cast, **changes: Any) -> Job:
    """Submit a job of Bob's, and stop it with all of its tasks."""
    job = submit(session, cast.bob, **changes)
    if job.array_id:
        return stop_array(session, scope_of(cast.bob), job.id, now=NOON)[0]
    return stop_job(session, scope_of(cast.bob), job.id, now=NOON)


def test_a_user_deletes_an_ended_job_with_its_history_and_log_but_not_its_usage(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, gpus=1)
    job_id, attempt_id = attempt.job_id, attempt.id
    report(session, attempt, ObservedState.RUNNING)
    append_log(session, attempt, b"one line\n")
    with pytest.raises(ConflictError, match="has not ended") as caught:
        delete_job(session, scope_of(cast.alice), job_id, now=NOON)
    assert caught.value.code == "job_not_ended"
    report(session, attempt, ObservedState.SUCCEEDED, exit_code=0)
    session.add(usage_of(attempt))
    session.flush()
    delete_job(session, scope_of(cast.alice), job_id, now=NOON)
    for table in (Job, Attempt, JobEvent, LogChunk):
        assert session.query(table).count() == 0
    (entry,) = session.query(UsageEntry)
    assert (entry.job_id, entry.attempt_id) == (job_id, attempt_id)


def usage_of(attempt: Attempt) -> UsageEntry:
    return UsageEntry(
        hour_at=NOON,
        tenant_id=attempt.tenant_id,
        job_id=attempt.job_id,
        job_name="train",
        attempt_id=attempt.id,
        appliance_id=attempt.appliance_id,
        gpu_model="H100",
        revision=1,
        allocated_milliseconds=1,
        used_milliseconds=1,
        idle_milliseconds=0,
        energy_joules=1,
        recorded_at=NOON,
    )


def test_only_its_user_or_an_admin_deletes_a_job(session: Session, cast: Cast) -> None:
    job_id = end(session, cast).id
    with pytest.raises(NotFoundError):
        delete_job(session, scope_of(cast.charlie), job_id, now=NOON)
    other = submit(session, cast.alice)
    stop_job(session, scope_of(cast.alice), other.id, now=NOON)
    with pytest.raises(ForbiddenError):
        delete_job(session, scope_of(cast.bob), other.id, now=NOON)
    delete_job(session, scope_of(cast.alice), job_id, now=NOON)


def test_the_first_task_of_an_array_takes_the_others_with_it(session: Session, cast: Cast) -> None:
    first = end(session, cast, array="1-3")
    last = session.query(Job).filter_by(array_index=3).one().id
    delete_job(session, scope_of(cast.bob), last, now=NOON)
    assert session.query(Job).count() == 2
    delete_job(session, scope_of(cast.bob), first.id, now=NOON)
    assert session.query(Job).count() == 0


def test_a_job_that_others_wait_for_is_not_deleted(session: Session, cast: Cast) -> None:
    job = end(session, cast)
    submit(session, cast.bob, "after", after_any=[job.id])
    with pytest.raises(ConflictError, match="Other jobs wait"):
        delete_job(session, scope_of(cast.bob), job.id, now=NOON)


def test_a_job_on_a_rented_appliance_stays_until_it_is_charged(
    session: Session, cast: Cast
) -> None:
    dgx = add_appliance(session, cast.acme, "dgx-01")
    rental = rent(session, cast.charlie, dgx, now=NOON)
    job, charlie = rental.job, scope_of(cast.charlie)
    ended_at = NOON + timedelta(hours=1)
    job.state, job.finished_at = JobState.SUCCEEDED, ended_at
    rental.attempt.state, rental.attempt.finished_at = AttemptState.SUCCEEDED, ended_at
    session.flush()
    soon, late = ended_at + timedelta(minutes=1), ended_at + CHARGED_AFTER + timedelta(hours=1)

    def is_refused(now: datetime) -> bool:
        try:
            with session.begin_nested() as nested:
                delete_job(session, charlie, job.id, now=now)
                nested.rollback()
        except ConflictError as error:
            return error.code == "job_not_charged"
        return False

    # The ledger has no hour yet, then not that of its end.
    assert is_refused(late)
    session.add(UsageHour(hour_at=NOON - timedelta(hours=1), recorded_at=NOON))
    session.flush()
    assert is_refused(late)
    set_settings(session, charlie, cast.globex.id, QueueSettings(job_retention_days=1))
    assert expire_jobs(session, retention_days=365, now=late) == 0
    session.add(UsageHour(hour_at=NOON, recorded_at=late))
    session.flush()
    assert is_refused(soon)
    assert not is_refused(late)
    assert expire_jobs(session, retention_days=365, now=late) == 1
