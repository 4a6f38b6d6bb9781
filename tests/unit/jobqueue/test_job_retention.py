"""Ended jobs are deleted by age."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.errors import InvalidInputError
from jobqueue.models import Job
from jobqueue.queue_settings import QueueSettings, set_settings
from jobqueue.retention import expire_jobs
from jobqueue.service import stop_job
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import submit


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
