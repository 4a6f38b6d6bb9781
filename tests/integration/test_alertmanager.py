"""A real Alertmanager (Debian package prometheus-alertmanager) as a receiver."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from sqlalchemy import select

from alerting.evaluation.evaluator import Evaluator
from alerting.models import Receiver
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver, send_test
from alerting.notification.senders.alertmanager import AlertmanagerSender, repeat_alerts
from alerting.notification.senders.notify import WebhookSender
from alerting.notification.silences import SilenceRequest, create_silence
from alerting.rules.service import create_rule, set_rule_enabled, update_rule
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from tenants.models import Tenant
from tests.cast import BOX, Cast, make_appliance, scope_of
from tests.fixtures.databases import answers
from tests.fixtures.polling import eventually
from tests.servers import free_port, require_program, running
from tests.unit.alerting.helpers import drain_outbox, evaluate_rules, heat, hot
from tests.unit.alerting.servers import LOOPBACK
from timeseries.store import Store

URL = "https://portal.example"


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """The address of a running Alertmanager."""
    program = require_program("prometheus-alertmanager", package="prometheus-alertmanager")
    configuration = tmp_path / "alertmanager.yml"
    configuration.write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.path={tmp_path / 'alertmanager'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    with running(command, log_path=tmp_path / "alertmanager.log"):
        eventually(lambda: answers(f"{url}/-/ready"), within_seconds=60, what="Alertmanager")
        yield url


def listed(url: str) -> dict[str, dict[str, Any]]:
    """Return the active alerts by name."""
    alerts = requests.get(f"{url}/api/v2/alerts", timeout=10).json()
    return {alert["labels"]["alertname"]: alert for alert in alerts}


def test_alerts_reach_an_alertmanager_stay_there_and_resolve(
    sessions: SessionFactory, store: Store, cast: Cast, alertmanager: str
) -> None:
    now = datetime.now(UTC)
    sender = AlertmanagerSender(WebhookSender(10.0, policy=LOOPBACK, box=BOX))
    senders = {ReceiverKind.ALERTMANAGER: sender}
    scope = scope_of(cast.bob)
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
        receiver, _ = create_receiver(
            session,
            scope,
            name="firm",
            kind=ReceiverKind.ALERTMANAGER,
            target=f"{alertmanager}/",
            box=BOX,
            now=now,
        )
        request = hot(receiver_ids=[receiver.id], annotation="{{ labels.appliance }} is hot")
        rule = create_rule(session, scope, request, now=now)
        send_test(session, scope, receiver.id, public_url=URL, now=now)
    heat(
        store,
        tenant=cast.acme.id,
        appliance=appliance.id,
        celsius=95.0,
        at=now - timedelta(seconds=5),
    )
    evaluate_rules(Evaluator(sessions=sessions, store=store, public_url=URL), now=now)

    assert drain_outbox(sessions, senders, now=now) == 2

    alerts = listed(alertmanager)
    assert alerts.keys() == {"GPU too hot", "Test of firm"}
    alert = alerts["GPU too hot"]
    assert alert["labels"]["appliance"] == "gpu-01"
    assert alert["labels"]["severity"] == "critical"
    assert alert["annotations"]["summary"] == "gpu-01 is hot"
    assert alert["generatorURL"] == f"{URL}/rules/{rule.id}"

    later = now + timedelta(minutes=2)
    assert repeat_alerts(sessions, sender, now=later) == 1
    assert listed(alertmanager)["GPU too hot"]["endsAt"] > alert["endsAt"]

    # It was notified that the alert fires, so that it is repeated until it resolves.
    with transaction(sessions) as session:
        update_rule(session, scope, rule.id, replace(request, receiver_ids=()), now=now)
    assert repeat_alerts(sessions, sender, now=later) == 1
    silence = SilenceRequest(
        matchers=["rule=GPU too hot"], starts_at=now, ends_at=now + timedelta(minutes=1)
    )
    with transaction(sessions) as session:
        create_silence(session, scope, silence, now=now)
    assert repeat_alerts(sessions, sender, now=now) == 0
    assert repeat_alerts(sessions, sender, now=later) == 1

    with transaction(sessions) as session:
        set_rule_enabled(session, scope, rule.id, is_enabled=False, now=now)
    assert drain_outbox(sessions, senders, now=later) == 1
    assert listed(alertmanager).keys() == {"Test of firm"}
    assert repeat_alerts(sessions, sender, now=later) == 0


def test_an_alertmanager_that_is_down_is_tried_again(sessions: SessionFactory, cast: Cast) -> None:
    now = datetime.now(UTC)
    scope = scope_of(cast.bob)
    sender = AlertmanagerSender(WebhookSender(10.0, policy=LOOPBACK, box=BOX))
    with transaction(sessions) as session:
        receiver = Receiver(
            tenant_id=cast.acme.id,
            name="firm",
            kind=ReceiverKind.ALERTMANAGER,
            target=f"http://127.0.0.1:{free_port()}",
            created_at=now,
        )
        session.add(receiver)
        session.flush()
        send_test(session, scope, receiver.id, public_url=URL, now=now)
    assert drain_outbox(sessions, {ReceiverKind.ALERTMANAGER: sender}, now=now) == 0
    with transaction(sessions) as session:
        (waiting,) = session.scalars(select(Notification)).all()
    assert waiting.state is NotificationState.WAITING
    assert waiting.next_try_at > now
    assert "connection refused" in waiting.last_error
