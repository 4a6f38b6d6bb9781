"""Alertmanager's own amtool (Debian package prometheus-alertmanager) reads alerts and silences."""

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from alerting.evaluation.evaluator import Evaluator
from alerting.notification.policies import save_policy
from alerting.rules.service import create_rule
from core.clock import utc_now
from core.db import SessionFactory, transaction
from core.settings import ServerSettings
from tenants.models import Tenant, User
from tenants.users.tokens import create_api_token
from tests.cast import Cast, make_appliance, scope_of
from tests.fixtures.serving import serving_flask
from tests.fixtures.shared_portal import Serve
from tests.servers import require_program
from tests.unit.alerting.helpers import evaluate_rules, heat, hot
from timeseries.store import Store

Amtool = Callable[..., Any]


@pytest.fixture
def url(serve: Serve, tmp_path: Path) -> Iterator[str]:
    """The address of a portal."""
    with serving_flask(serve(ServerSettings(data_dir=tmp_path), clock=utc_now)) as url:
        yield url


@pytest.fixture
def amtool(url: str, sessions: SessionFactory, tmp_path: Path) -> Callable[[User], Amtool]:
    """Return what runs amtool with a token of a user."""
    program = require_program("amtool", package="prometheus-alertmanager")

    def of(user: User) -> Amtool:
        with transaction(sessions) as session:
            _, secret = create_api_token(session, scope_of(user), name="amtool", now=utc_now())
        configuration = tmp_path / f"{user.id}.yml"
        configuration.write_text(f"authorization: {{credentials: {secret}}}\n")

        def run(*arguments: str) -> Any:  # noqa: ANN401 - any JSON
            command = [
                *(program, *arguments, "--output=json"),
                f"--alertmanager.url={url}/api/v1/alertmanager",
                f"--http.config.file={configuration}",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr)
            try:
                return json.loads(done.stdout)
            except ValueError:
                return done.stdout.strip()

        return run

    return of


def names(alerts: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(alert["labels"]["alertname"], alert["labels"]["gpu"]) for alert in alerts}


def test_amtool_reads_alerts_and_silences_them(
    sessions: SessionFactory, store: Store, cast: Cast, amtool: Callable[[User], Amtool]
) -> None:
    now = utc_now()
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
        create_rule(session, scope_of(cast.bob), hot(), now=now)
    for gpu in ("0", "1"):
        heat(store, tenant=cast.acme.id, appliance=appliance.id, celsius=95.0, at=now, gpu=gpu)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=now + timedelta(seconds=1))
    bob, charlie = amtool(cast.bob), amtool(cast.charlie)

    assert names(bob("alert", "query")) == {("GPU too hot", "0"), ("GPU too hot", "1")}
    (alert,) = bob("alert", "query", "gpu=0", "severity=~crit.*")
    assert alert["labels"] == {
        "alertname": "GPU too hot",
        "severity": "critical",
        "appliance": "gpu-01",
        "gpu": "0",
    }
    assert charlie("alert", "query") == []

    silence_id = bob("silence", "add", "alertname=GPU too hot", "gpu=0", "--comment=fans")
    (silence,) = bob("silence", "query")
    assert (silence["id"], silence["comment"]) == (silence_id, "fans")
    assert silence["createdBy"] == cast.bob.email
    assert names(bob("alert", "query")) == {("GPU too hot", "1")}
    assert names(bob("alert", "query", "--silenced")) == {("GPU too hot", "0")}
    assert charlie("silence", "query") == []
    with pytest.raises(RuntimeError):
        charlie("silence", "expire", silence_id)

    (after,) = bob("silence", "update", silence_id, "--comment=until Friday")
    assert after["comment"] == "until Friday"
    bob("silence", "expire", bob("silence", "query")[0]["id"])
    assert bob("silence", "query") == []
    assert len(bob("alert", "query")) == 2
    with pytest.raises(RuntimeError, match="400"):
        bob("silence", "add", "gpu=0", f"--comment={'x' * 501}")
    assert bob("cluster", "show")


def test_amtool_names_the_alert_that_inhibits_another(
    sessions: SessionFactory, store: Store, cast: Cast, amtool: Callable[[User], Amtool]
) -> None:
    now = utc_now()
    rules = [{"source_matchers": ["gpu=0"], "target_matchers": ["gpu=1"], "equal": ["appliance"]}]
    with transaction(sessions) as session:
        create_rule(session, scope_of(cast.bob), hot(), now=now)
        save_policy(session, scope_of(cast.bob), {}, inhibit_rules=rules, now=now)
    for gpu in ("0", "1"):
        heat(store, tenant=cast.acme.id, celsius=95.0, at=now, gpu=gpu)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=now + timedelta(seconds=1))
    bob = amtool(cast.bob)
    (source,) = bob("alert", "query")
    (target,) = bob("alert", "query", "--inhibited")
    assert (source["labels"]["gpu"], target["labels"]["gpu"]) == ("0", "1")
    assert source["status"] == {"state": "active", "silencedBy": [], "inhibitedBy": []}
    assert target["status"] == {
        "state": "suppressed",
        "silencedBy": [],
        "inhibitedBy": [source["fingerprint"]],
    }
