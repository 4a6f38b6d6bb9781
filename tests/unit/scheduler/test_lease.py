"""The scheduler keeps its lease while its tasks fill the pool, and does at once what is due."""

import threading
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select

from alerting.notification.receivers import create_receiver
from alerting.rules.service import create_rule
from alerting.states import ReceiverKind
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.leases import Lease
from core.periodic_tasks import PeriodicTask
from core.secretbox import SecretBox
from core.settings import ServerSettings
from jobqueue.dispatch import dispatcher as dispatch
from jobqueue.models import Job
from jobqueue.states import JobState
from scheduler import lease
from scheduler.lease import LEASE_DURATION
from scheduler.loops import Scheduler
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.polling import eventually
from tests.unit.alerting.helpers import heat, hot
from tests.unit.alerting.servers import hook_server
from tests.unit.jobqueue.builders import add_appliance, submit
from timeseries.duckdb.store import DuckDBStore


def test_the_lease_is_renewed_while_tasks_fill_the_pool(
    tmp_path: Path,
    sessions: SessionFactory,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "LEASE_RENEWAL_SECONDS", 0.05)
    blocked = threading.Event()
    with closing(DuckDBStore(tmp_path / "samples.duckdb")) as store:
        scheduler = Scheduler(
            ServerSettings(data_dir=tmp_path), sessions=sessions, store=store, clock=clock
        )
        for name in scheduler.tasks:
            scheduler.tasks[name] = PeriodicTask(blocked.wait, 0.01)
        scheduler.start()
        try:
            clock.now += timedelta(minutes=1)

            def is_renewed() -> bool:
                with sessions() as session:
                    expires_at = session.scalar(select(Lease.expires_at))
                return expires_at == clock.now + LEASE_DURATION

            eventually(is_renewed, what="the renewal of the lease")
        finally:
            blocked.set()
            scheduler.stop()


def test_a_long_queue_is_placed_in_several_transactions(
    tmp_path: Path,
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatch, "MAX_WRITTEN", 2)
    with sessions.begin() as session:
        add_appliance(session, cast.acme, "dgx-01")
        for number in range(5):
            submit(session, cast.alice, f"job-{number}", gpus=1)
    with closing(DuckDBStore(tmp_path / "samples.duckdb")) as store:
        scheduler = Scheduler(
            ServerSettings(data_dir=tmp_path), sessions=sessions, store=store, clock=clock
        )
        monkeypatch.setattr(Scheduler, "is_active", True)  # as with the lease
        scheduler.place_jobs()
    assert _are_placed(sessions, 5)


def test_a_job_does_not_wait_for_the_interval_of_the_placement(
    tmp_path: Path, sessions: SessionFactory, cast: Cast
) -> None:
    settings = ServerSettings(data_dir=tmp_path, placement_interval_seconds=3600.0)
    with closing(DuckDBStore(tmp_path / "samples.duckdb")) as store:
        scheduler = Scheduler(settings, sessions=sessions, store=store)
        scheduler.start()
        try:
            for number in range(3):
                with sessions.begin() as session:
                    add_appliance(session, cast.acme, f"dgx-{number}")
                    submit(session, cast.alice, f"job-{number}", gpus=1)
                eventually(partial(_are_placed, sessions, number + 1), what="its placement")
        finally:
            scheduler.stop()


def _are_placed(sessions: SessionFactory, count: int) -> bool:
    with sessions() as session:
        placed = select(func.count()).where(Job.state == JobState.STARTING)
        return session.scalar(placed) == count


def test_a_notification_does_not_wait_for_the_interval_of_the_outbox(
    tmp_path: Path, sessions: SessionFactory, cast: Cast
) -> None:
    settings = ServerSettings(
        data_dir=tmp_path,
        rule_pack=False,
        webhook_allowed_networks="127.0.0.0/8",
        evaluation_interval_seconds=0.2,
        notification_interval_seconds=3600.0,
    )
    bob, now = scope_of(cast.bob), utc_now()
    with hook_server() as hook, closing(DuckDBStore(tmp_path / "samples.duckdb")) as store:
        with transaction(sessions) as session:
            receiver, _ = create_receiver(
                session,
                bob,
                name="hook",
                kind=ReceiverKind.WEBHOOK,
                target=hook.url,
                box=SecretBox.of(settings),
                now=now,
            )
            create_rule(session, bob, hot(receiver_ids=[receiver.id]), now=now)
        scheduler = Scheduler(settings, sessions=sessions, store=store)
        scheduler.start()
        try:
            heat(store, tenant=cast.acme.id, celsius=95.0, at=now)
            eventually(lambda: len(hook.posts) == 1, what="the notification")
        finally:
            scheduler.stop()
