"""A scheduler that is killed in the middle of an evaluation: another takes over, exactly once.

Two whole servers share MariaDB and VictoriaMetrics. All GPUs get hot or cool together, and the
server with the lease is killed at another moment of the evaluation that follows.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from alerting.language.text import parse_expression
from alerting.models import AlertAction, AlertTransition
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver
from alerting.rules.service import create_rule
from alerting.states import ActionState, ReceiverKind
from cli.database import open_database
from core.clock import to_ns, utc_now
from core.db import SessionFactory, transaction
from core.leases import SCHEDULER_LEASE, Lease
from tenants.models import User
from tenants.scope import Scope
from tests.cast import BOX, BOX_KEY
from tests.deployment import ALICE, Deployment, make_deployment, serving
from tests.fixtures.databases import victoria_metrics
from tests.fixtures.mariadb import MariaDB
from tests.fixtures.polling import eventually
from tests.servers import free_port
from timeseries.open_store import open_store
from timeseries.points import Point
from timeseries.store import Store, write

pytestmark = [pytest.mark.nightly, pytest.mark.needs_mariadb, pytest.mark.timeout(500)]

GPUS = 200
TAKEOVER_SECONDS = 30.0
EXPRESSION = "last(gpu.temperature_celsius) over 5m by gpu > 80"
# Seconds after the samples: before, during and after the evaluation that reads them.
KILLED_AFTER_SECONDS = (0.0, 0.15, 0.3, 0.45, 0.6)


def test_no_transition_is_lost_or_doubled_when_the_active_scheduler_is_killed(
    tmp_path: Path, mariadb: MariaDB
) -> None:
    database_url = mariadb.new_database()
    first = make_deployment(tmp_path / "first", database_url=database_url)
    second = replace(first, data_dir=tmp_path / "second", port=free_port())
    second.data_dir.mkdir()
    expected: list[str] = []
    with victoria_metrics(tmp_path) as url, open_database(first.settings) as (_engine, sessions):
        timeseries_url = url.replace("http:", "victoriametrics:")
        tenant_id = _prepare(sessions)
        environ = {
            "TIMESERIES_URL": timeseries_url,
            # What hosts share.
            "VEDETTE_ENCRYPTION_KEYS": BOX_KEY,
            "VEDETTE_SECRET_KEY": "of-both-servers",
            "VEDETTE_PUBLIC_URL": first.url,
            "VEDETTE_LOG_URL": str(tmp_path / "logs"),
            "VEDETTE_DATA_URL": str(tmp_path / "data"),
            "VEDETTE_EVALUATION_INTERVAL_SECONDS": "0.3",
            "VEDETTE_RULE_PACK": "false",
        }
        servers: dict[int, Deployment] = {}
        with closing(open_store(timeseries_url)) as store, ExitStack() as stack:

            def start(deployment: Deployment) -> None:
                process = stack.enter_context(serving(deployment, environ=environ))
                servers[process.pid] = deployment

            start(first)
            start(second)
            for number, seconds in enumerate(KILLED_AFTER_SECONDS):
                expected.append("resolved" if number % 2 else "firing")
                _write(store, tenant_id, celsius=60.0 if number % 2 else 95.0)
                time.sleep(seconds)
                pid = _active(sessions)
                os.kill(pid, signal.SIGKILL)
                eventually(
                    lambda: _histories(sessions) == {tuple(expected): GPUS},
                    within_seconds=TAKEOVER_SECONDS,
                    what=f"each alert to be {expected[-1]}",
                )
                eventually(
                    lambda pid=pid: _active(sessions) != pid,  # type: ignore[misc]
                    within_seconds=TAKEOVER_SECONDS,
                    what="another scheduler",
                )
                eventually(
                    lambda: _acted(sessions) == (expected.count("firing") * GPUS,) * 2,
                    within_seconds=TAKEOVER_SECONDS,
                    what="each firing alert to have had its action",
                )
                start(servers.pop(pid))
            time.sleep(2)  # some more evaluations, which change nothing
        assert _histories(sessions) == {tuple(expected): GPUS}
        # Nothing was delivered, as there is no mail server: nobody is notified of an end either.
        assert _notified(sessions) == {("firing",) * expected.count("firing"): GPUS}
        assert _acted(sessions) == (expected.count("firing") * GPUS,) * 2


def _prepare(sessions: SessionFactory) -> str:
    """Add a rule with a receiver to Acme; return its ID."""
    with transaction(sessions) as session:
        scope = Scope.of(session.scalars(select(User).where(User.email == ALICE)).one())
        receiver, _secret = create_receiver(
            session,
            scope,
            name="ops",
            kind=ReceiverKind.EMAIL,
            target="ops@acme.example",
            box=BOX,
            now=utc_now(),
        )
        create_receiver(
            session,
            scope,
            name="hook",
            kind=ReceiverKind.WEBHOOK,
            target="http://127.0.0.1:9/",
            box=BOX,
            now=utc_now(),
        )
        rule = replace(
            parse_expression(EXPRESSION),
            name="Hot",
            receiver_ids=[receiver.id],
            actions=[{"kind": "webhook", "receiver": "hook", "max_per_hour": 1000}],
        )
        create_rule(session, scope, rule, now=utc_now())
        return scope.require_tenant()


def _write(store: Store, tenant_id: str, *, celsius: float) -> None:
    at_ns = to_ns(utc_now())
    points = [
        Point("gpu", {"gpu": str(number)}, {"temperature_celsius": celsius}, at_ns)
        for number in range(GPUS)
    ]
    assert write(store, points, identity={"tenant": tenant_id, "appliance": "a1"}) == []


def _active(sessions: SessionFactory) -> int:
    """Return the process that has the lease."""
    with transaction(sessions) as session:
        holder = session.scalars(select(Lease.holder).where(Lease.name == SCHEDULER_LEASE)).one()
    return int(holder.rpartition(":")[2])


def _histories(sessions: SessionFactory) -> dict[tuple[str, ...], int]:
    """Return how many alerts have which history."""
    order = select(AlertTransition).order_by(AlertTransition.at, AlertTransition.id)
    with transaction(sessions) as session:
        return _counted(
            (transition.alert_id, transition.to_state.value)
            for transition in session.scalars(order)
        )


def _notified(sessions: SessionFactory) -> dict[tuple[str, ...], int]:
    """Return how many alerts have which notifications."""
    order = select(Notification).order_by(Notification.created_at, Notification.id)
    by_email = order.where(Notification.receiver.has(kind=ReceiverKind.EMAIL))
    with transaction(sessions) as session:
        return _counted(
            (notification.alert_id, notification.payload["state"])
            for notification in session.scalars(by_email)
        )


def _acted(sessions: SessionFactory) -> tuple[int, int]:
    """Return how many actions were done, and how often the webhook was called by one."""
    calls = select(Notification).where(Notification.receiver.has(kind=ReceiverKind.WEBHOOK))
    with transaction(sessions) as session:
        done = session.scalars(select(AlertAction).filter_by(state=ActionState.DONE)).all()
        return len(done), len(session.scalars(calls).unique().all())


def _counted(states: Iterable[tuple[str | None, str]]) -> dict[tuple[str, ...], int]:
    states_by_alert: dict[str | None, list[str]] = {}
    for alert_id, state in states:
        states_by_alert.setdefault(alert_id, []).append(state)
    return Counter(map(tuple, states_by_alert.values()))
