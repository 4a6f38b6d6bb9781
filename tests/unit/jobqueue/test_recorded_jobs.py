"""The recording of a tenant's own jobs: what it has, and what it leaves out."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from core.db import SessionFactory
from core.errors import ForbiddenError
from core.ids import new_id
from jobqueue.models import Attempt, Job
from jobqueue.simulation.export import recorded_jobs
from jobqueue.simulation.recording import Recording
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import start

HOUR = timedelta(hours=1)
MODEL = "NVIDIA H100 80GB HBM3"


def recorded(
    sessions: SessionFactory, cast: Cast, *, who: str = "alice", is_anonymous: bool = False
) -> Recording:
    with sessions.begin() as session:
        return recorded_jobs(
            session,
            scope_of(getattr(cast, who)),
            Period(NOON - HOUR, NOON + HOUR),
            is_anonymous=is_anonymous,
            now=NOON + HOUR,
        )


def test_jobs_are_recorded_with_the_time_of_all_their_attempts(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=2)
        ended = {"started_at": NOON, "finished_at": NOON + timedelta(minutes=5)}
        session.execute(update(Attempt).where(Attempt.id == attempt.id).values(**ended))
        second = {"started_at": NOON + timedelta(minutes=20), "bound_at": NOON, "number": 2}
        values = {name: getattr(attempt, name) for name in ("job_id", "tenant_id", "appliance_id")}
        session.add(Attempt(id=new_id(), state=attempt.state, **values, **second))
        session.execute(update(Job).values(project_id=None))
    recording = recorded(sessions, cast)
    [job] = recording.jobs
    # Five minutes, and the forty of the second, which still runs.
    assert (job.submitted_seconds, job.run_seconds) == (3600.0, 45 * 60.0)
    assert (job.gpus, job.user, job.project) == (2, 1, 0)
    assert [appliance.name for appliance in recording.appliances] == ["dgx-01"]
    assert recording.appliances[0].gpus[0].model == MODEL
    [anonymous] = recorded(sessions, cast, is_anonymous=True).appliances
    assert anonymous.name == "appliance-1"


def test_the_power_of_a_model_is_that_of_the_usage_ledger(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=1)
        entry = {
            "tenant_id": attempt.tenant_id,
            "job_id": attempt.job_id,
            "job_name": "train",
            "attempt_id": attempt.id,
            "appliance_id": attempt.appliance_id,
            "gpu_model": MODEL,
            "revision": 0,
        }
        session.add(
            UsageEntry(
                id=new_id(),
                hour_at=NOON,
                recorded_at=NOON,
                allocated_milliseconds=60_000,
                used_milliseconds=0,
                idle_milliseconds=0,
                energy_joules=24_000,
                **entry,
            )
        )
    assert recorded(sessions, cast).watts_by_model == {MODEL: 400.0}


def test_only_who_manages_appliances_gets_a_recording_and_only_of_the_own_tenant(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        start(session, cast, gpus=1)
    with pytest.raises(ForbiddenError):
        recorded(sessions, cast, who="bob")
    assert recorded(sessions, cast, who="charlie").jobs == []
