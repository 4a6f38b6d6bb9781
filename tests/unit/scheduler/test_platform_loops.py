"""The scheduler's loops for the platform: tenants removed, use measured, what expired pruned."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from alerting.notification.models import Notification
from core.clock import to_ns
from core.db import SessionFactory
from core.settings import ServerSettings
from scheduler.loops import Scheduler
from tenants.lifecycle.removal import request_removal, set_tenant_state
from tenants.lifecycle.removal_worker import SETTLE
from tenants.lifecycle.usage import ESTIMATED_BYTES_PER_POINT, latest_usage
from tenants.models import LoginSession, RemovalState, TenantRemoval, TenantState
from tenants.quotas import Limits, set_limits
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.polling import eventually
from timeseries.points import Point
from timeseries.store import Store, write


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(data_dir=tmp_path, timeseries_url="victoriametrics://elsewhere:8428")


@pytest.fixture
def scheduler(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
) -> Scheduler:
    return Scheduler(settings, sessions=sessions, store=store, clock=clock)


@pytest.fixture
def running(scheduler: Scheduler) -> Iterator[Scheduler]:
    scheduler.start()
    yield scheduler
    scheduler.stop()


def test_a_tenant_is_removed_and_use_is_measured_while_the_scheduler_runs(
    *,
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    settings: ServerSettings,
    request: pytest.FixtureRequest,
) -> None:
    with sessions.begin() as session:
        operator = scope_of(cast.olivia)
        set_tenant_state(session, operator, cast.acme.id, TenantState.CLOSED, now=NOON)
        asked = request_removal(session, operator, cast.acme.id, name="Acme", by="o", now=NOON)
    clock.advance(SETTLE.total_seconds())
    request.getfixturevalue("running")

    def is_done() -> bool:
        with sessions() as session:
            removal = session.get_one(TenantRemoval, asked.id)
            return removal.state is RemovalState.REMOVED and cast.globex.id in latest_usage(session)

    eventually(is_done, within_seconds=60, what="the tenant to be removed")
    assert (settings.exports_dir / asked.file_name).is_file()


def test_use_is_measured(
    scheduler: Scheduler, sessions: SessionFactory, store: Store, cast: Cast, clock: FrozenClock
) -> None:
    points = [Point("cpu", {}, {"usage_percent": 1.0}, to_ns(clock.now))]
    assert write(store, points, identity={"tenant": cast.acme.id, "appliance": "a"}) == []
    scheduler.tasks["measure_usage"].run()
    with sessions() as session:
        assert latest_usage(session)[cast.acme.id].storage_bytes == ESTIMATED_BYTES_PER_POINT


@pytest.mark.parametrize(("smtp_url", "mails"), [("smtp://mail.example", 1), ("", 0)])
def test_admins_are_mailed_once_about_storage_that_is_nearly_full(
    *,
    smtp_url: str,
    mails: int,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
) -> None:
    with sessions.begin() as session:
        limits = Limits(max_storage_bytes=ESTIMATED_BYTES_PER_POINT)
        set_limits(session, scope_of(cast.olivia), cast.acme.id, limits)
    points = [Point("cpu", {}, {"usage_percent": 1.0}, to_ns(clock.now))]
    assert write(store, points, identity={"tenant": cast.acme.id, "appliance": "a"}) == []
    settings = replace(settings, smtp_url=smtp_url)
    scheduler = Scheduler(settings, sessions=sessions, store=store, clock=clock)
    for _ in range(2):
        scheduler.tasks["measure_usage"].run()
    with sessions() as session:
        addresses = [notification.address for notification in session.scalars(select(Notification))]
    assert addresses == [cast.alice.email] * mails


def test_what_has_expired_is_pruned(
    scheduler: Scheduler, sessions: SessionFactory, cast: Cast
) -> None:
    with sessions.begin() as session:
        session.add(
            LoginSession(user_id=cast.bob.id, secret_hash="x", created_at=NOON, expires_at=NOON)
        )
    scheduler.tasks["prune"].run()
    with sessions() as session:
        assert session.query(LoginSession).count() == 0
