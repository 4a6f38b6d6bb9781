"""An agent whose appliance is retired keeps its samples, asks rarely, and says why."""

from pathlib import Path

import pytest
import requests

from collector.buffering.frames import Frame
from collector.config import AgentConfig
from collector.data_dir import load_identity
from collector.sending.delivery import build_buffer, build_delivery
from collector.sending.sender import Outcome
from core.clock import to_ns, utc_now
from tests.deployment import ALICE, Deployment, api_token
from tests.fixtures.nginx import Front
from tests.fixtures.polling import eventually


def test_a_retired_agent_keeps_its_samples_and_they_arrive_when_it_is_reinstated(
    front: Front, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployment, home = front.deployment, tmp_path / "home"
    secret = deployment.enrollment_secret("acme")
    enrolled = deployment.vedette(
        "agent", "enroll", deployment.url, secret, "--name", "retired", "--data-dir", str(home)
    )
    assert enrolled.returncode == 0, enrolled.stderr
    identity = load_identity(home)
    assert identity is not None
    config = AgentConfig(portal_urls=[deployment.url], data_dir=home)
    buffer = build_buffer(config, clock=utc_now)
    delivery = build_delivery(config, identity, buffer, clock=utc_now)
    now_ns = to_ns(utc_now())
    buffer.append(Frame(b"load load1=0.5 %d" % now_ns, 1, now_ns))

    change(deployment, identity.appliance_id, "retire")
    eventually(lambda: delivery.sender.send_next().outcome is Outcome.REFUSED, what="the refusal")
    waits = [delivery.sender.send_next().wait_seconds for _ in range(10)]
    assert max(waits[-2:]) > 100
    assert buffer.points == 1
    assert "was retired. An admin of the tenant can reinstate" in caplog.text
    checked = deployment.vedette("agent", "check", "--data-dir", str(home))
    assert checked.returncode == 1
    assert "the portal refuses this appliance" in checked.stdout
    assert "was retired" in checked.stdout

    change(deployment, identity.appliance_id, "reinstate")
    eventually(lambda: delivery.sender.send_next().outcome is Outcome.SENT, what="the samples")
    assert buffer.points == 0
    delivery.sender.close()
    buffer.close()


def change(deployment: Deployment, appliance_id: str, verb: str) -> None:
    headers = {"Authorization": f"Bearer {api_token(deployment, ALICE)}"}
    url = f"{deployment.url}/api/v1/appliances/{appliance_id}/{verb}"
    reply = requests.post(url, headers=headers, json={}, timeout=60)
    assert reply.status_code == 200, reply.text
