"""Quotas that many want to spend at the same moment, and a removal, on a real MariaDB."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select

from alerting.rules.platform_rules import forget_tenant
from core.db import SessionFactory
from core.errors import ConflictError
from dash_app.queries.platform import platform_figures
from jobqueue.logs.log_files import LogFiles
from jobqueue.models import Job
from jobqueue.queue.retention import delete_ended, job_retention
from jobqueue.queue.service import submit_job
from portal.presenters.platform import database_bytes
from protocol.inventory import Inventory
from protocol.job_spec import JobRequest
from tenants.auditing.drafts import Actor
from tenants.auditing.recording import acting
from tenants.enrollment import create_enrollment_token, enroll_appliance
from tenants.fleet.states import EffectiveStatus
from tenants.lifecycle.pruning import prune
from tenants.lifecycle.removal import request_removal, set_tenant_state
from tenants.lifecycle.removal_worker import SETTLE, Remover, run_removals
from tenants.lifecycle.usage import StorageUse, latest_usage, store_usage
from tenants.models import (
    Appliance,
    EnrollmentToken,
    Tenant,
    TenantRemoval,
    TenantState,
    TenantUsage,
)
from tenants.quotas import QUOTA_REACHED, Limits, set_limits
from tests.cast import BOX, NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.fixtures.racing import RACERS, race_numbered
from timeseries.store import Store

pytestmark = pytest.mark.needs_mariadb

PLACES = 3


def limit(sessions: SessionFactory, cast: Cast, **limits: int) -> None:
    with sessions.begin() as session:
        set_limits(session, scope_of(cast.olivia), cast.acme.id, Limits(**limits))


def inventory(gpus: int) -> dict[str, Any]:
    return {
        "hostname": "x",
        "cpu_count": 64,
        "memory_bytes": 2**40,
        "executors": ["simulated"],
        "gpus": [
            {"index": i, "uuid": f"GPU-{i}", "model": "H100", "memory_bytes": 2**36}
            for i in range(gpus)
        ],
    }


def enroll_at_once(sessions: SessionFactory, cast: Cast, *, gpus: int) -> list[bool]:
    with sessions.begin() as session:
        _, secret = create_enrollment_token(
            session, scope_of(cast.alice), uses=RACERS, lifetime=timedelta(days=1), now=NOON
        )

    def enroll(number: int) -> bool:
        try:
            with sessions.begin() as session:
                enroll_appliance(
                    session,
                    secret=secret,
                    name=f"gpu-{number}",
                    inventory=msgspec.convert(inventory(gpus), Inventory),
                    now=NOON,
                )
        except ConflictError as error:
            if error.code != QUOTA_REACHED:
                raise
            return False
        return True

    return race_numbered(enroll)


def test_no_more_appliances_enroll_at_once_than_the_quota_has_places(
    sessions: SessionFactory, cast: Cast
) -> None:
    limit(sessions, cast, max_appliances=PLACES)
    assert sum(enroll_at_once(sessions, cast, gpus=1)) == PLACES
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Appliance)) == PLACES
        assert session.scalars(select(EnrollmentToken.uses_left)).one() == RACERS - PLACES


def test_no_more_gpus_enroll_at_once_than_the_quota_has(
    sessions: SessionFactory, cast: Cast
) -> None:
    limit(sessions, cast, max_gpus=4 * PLACES + 3)
    assert sum(enroll_at_once(sessions, cast, gpus=4)) == PLACES
    with sessions() as session:
        assert session.scalar(select(func.sum(Appliance.gpu_count))) == 4 * PLACES


def test_no_more_jobs_are_submitted_at_once_than_the_quota_has_places(
    sessions: SessionFactory, cast: Cast
) -> None:
    limit(sessions, cast, max_active_jobs=PLACES)
    with sessions.begin() as session:
        make_appliance(session, cast.acme, "gpu-01", inventory=inventory(1))

    def submit(number: int) -> bool:
        request = JobRequest(name=f"train-{number}", image="acme/train:1")
        try:
            with sessions.begin() as session:
                submit_job(session, scope_of(cast.bob), request, box=BOX, now=NOON)
        except ConflictError as error:
            if error.code != QUOTA_REACHED:
                raise
            return False
        return True

    assert sum(race_numbered(submit)) == PLACES
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == PLACES


def test_a_tenant_that_many_remove_at_once_is_removed_once(
    sessions: SessionFactory, cast: Cast, store: Store, clock: FrozenClock, tmp_path: Path
) -> None:
    acted = acting(sessions, Actor(name="test", via="test"), clock=clock)
    operator = scope_of(cast.olivia)
    with acted.begin() as session:
        make_appliance(session, cast.acme, "gpu-01")
        set_tenant_state(session, operator, cast.acme.id, TenantState.CLOSED, now=NOON)

    def ask(_number: int) -> bool:
        try:
            with acted.begin() as session:
                request_removal(session, operator, cast.acme.id, name="Acme", by="olivia", now=NOON)
        except ConflictError:
            return False
        return True

    assert sum(race_numbered(ask)) == 1
    clock.advance(SETTLE.total_seconds())
    remover = Remover(
        logs=LogFiles(str(tmp_path / "logs")),
        sessions=acted,
        store=store,
        folder=tmp_path,
        delete_images=lambda _slug: None,
        forget=forget_tenant,
        clock=clock,
        is_stopping=lambda: False,
    )
    assert run_removals(remover) == 1
    with sessions() as session:
        assert session.get(Tenant, cast.acme.id) is None
        assert session.scalars(select(TenantRemoval.error)).one() == ""


def test_usage_that_many_note_at_once_is_stored_once(sessions: SessionFactory, cast: Cast) -> None:
    def note(number: int) -> bool:
        with sessions.begin() as session:
            store_usage(session, {cast.acme.id: StorageUse(number, number)}, now=NOON)
        return True

    assert all(race_numbered(note))
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(TenantUsage)) == 2
        assert latest_usage(session)[cast.acme.id].day == NOON.date()


def test_the_console_and_the_maintenance_work_here(
    sessions: SessionFactory, cast: Cast, store: Store
) -> None:
    operator = scope_of(cast.olivia)
    with sessions.begin() as session:
        make_appliance(session, cast.acme, "gpu-01", inventory=inventory(2))
        figures = platform_figures(session, store, operator, now=NOON)
        assert figures.by_status[EffectiveStatus.ONLINE] == 1
        assert figures.gpus == 2
        assert job_retention(session, operator, ended_before=NOON, now=NOON).ended == 0
        assert delete_ended(session, operator, before=NOON, now=NOON) == 0
        assert not any(prune(session, now=NOON).values())
        assert (database_bytes(session) or 0) > 0
