"""The recording of a tenant's own jobs: what it has, and what it leaves out."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update

from core.db import SessionFactory
from core.errors import ForbiddenError, InvalidInputError
from core.ids import new_id
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.jobs.settings import QueueSettings, set_settings
from jobqueue.models import Attempt, Job
from jobqueue.projects.models import Project, ProjectMember, ProjectQuota, QuotaResource
from jobqueue.reservations.models import Reservation
from jobqueue.simulation.export import recorded_jobs
from jobqueue.simulation.recording import Recording, read_recording, write_recording
from jobqueue.usage.measuring import Period
from jobqueue.usage.models import UsageEntry
from tests.cast import NOON, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, dispatch, start, submit

HOUR = timedelta(hours=1)
AROUND_NOON = Period(NOON - HOUR, NOON + HOUR)
MODEL = "NVIDIA H100 80GB HBM3"


def recorded(
    sessions: SessionFactory,
    cast: Cast,
    *,
    who: str = "alice",
    period: Period = AROUND_NOON,
    is_anonymous: bool = False,
) -> Recording:
    with sessions.begin() as session:
        return recorded_jobs(
            session,
            scope_of(getattr(cast, who)),
            period,
            is_anonymous=is_anonymous,
            now=NOON + HOUR,
        )


def test_a_period_with_too_many_jobs_is_refused(
    sessions: SessionFactory, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast)
        session.execute(update(Attempt).where(Attempt.id == attempt.id).values(started_at=NOON))
    monkeypatch.setattr("jobqueue.simulation.export.MAX_DOWNLOADED_JOBS", 1)
    assert len(recorded(sessions, cast).jobs) == 1
    with sessions.begin() as session:
        submit(session, cast.alice)
        dispatch(session, now=NOON)
        session.execute(update(Attempt).values(started_at=NOON))
    with pytest.raises(InvalidInputError, match="More than 1 jobs were submitted then"):
        recorded(sessions, cast)


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


def test_a_gang_is_recorded_once_with_its_members(sessions: SessionFactory, cast: Cast) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-02")
        start(session, cast, nodes=2, gpus=8)
        members = session.scalars(select(Attempt).order_by(Attempt.id)).unique().all()
        for minutes, attempt in enumerate(members, 5):
            attempt.started_at = NOON
            attempt.finished_at = NOON + timedelta(minutes=minutes)
    [gang] = recorded(sessions, cast).jobs
    assert (gang.nodes, gang.gpus, gang.run_seconds) == (2, 8, 360.0)


def test_projects_their_quotas_and_reservations_are_recorded_by_number(
    sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        attempt = start(session, cast, gpus=1)
        attempt.started_at = NOON
        tenant = {"tenant_id": cast.acme.id, "created_at": NOON}
        group = Project(**tenant, id=new_id(), name="group", shares=3)
        vision = Project(**tenant, id=new_id(), name="vision", parent_id=group.id)
        session.add(group)
        session.flush()
        session.add(vision)
        session.flush()
        attempt.job.project_id = vision.id
        of_vision = {"tenant_id": cast.acme.id, "project_id": vision.id}
        session.add(ProjectMember(**of_vision, user_id=cast.alice.id, shares=4))
        session.add(ProjectQuota(**of_vision, resource=QuotaResource.GPUS, guaranteed=4))
        session.add(
            Reservation(
                **tenant,
                name="hourly",
                project_id=vision.id,
                appliance_ids=[attempt.appliance_id],
                schedule="30 * * * *",
                time_zone="UTC",
                duration_seconds=600,
            )
        )
        settings = QueueSettings(ordering=OrderSettings(policy=OrderPolicy.DRF, age_weight=7))
        set_settings(session, scope_of(cast.alice), cast.acme.id, settings)
    recording = recorded(sessions, cast)
    by_number = {project.project: project for project in recording.projects}
    assert recording.jobs[0].project == 1
    assert (by_number[1].parent, by_number[1].member_shares) == (2, {1: 4})
    assert [quota.guaranteed for quota in by_number[1].quotas] == [4]
    assert (by_number[2].parent, by_number[2].shares) == (0, 3)
    [reservation] = recording.reservations
    assert (reservation.appliances, reservation.project) == (("dgx-01",), 1)
    # The recording begins at eleven.
    assert reservation.periods[:2] == ((1800.0, 2400.0), (5400.0, 6000.0))
    assert (recording.rules.order, recording.rules.ordering.age_weight) == ("drf", 7)
    always = Period(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
    assert len(recorded(sessions, cast, period=always).jobs) == 1


def test_a_recording_is_the_same_after_it_was_written_and_read(
    sessions: SessionFactory, cast: Cast, tmp_path: Path
) -> None:
    with sessions.begin() as session:
        start(session, cast, gpus=1).started_at = NOON
    recording = recorded(sessions, cast)
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"".join(write_recording(recording)))
    assert read_recording(path) == recording
