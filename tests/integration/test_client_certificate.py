"""The agent behind nginx, which requires a client certificate, with the real gateway."""

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.config import AgentConfig
from collector.data_dir import Identity
from collector.enrollment import enroll
from collector.errors import PortalRefusedError, PortalUnreachableError
from collector.sending.delivery import Delivery, build_buffer, build_delivery
from collector.sending.portal_connection import PortalConnection
from collector.sending.sender import Outcome
from core.clock import to_ns, utc_now
from protocol.heartbeat import Heartbeat
from protocol.inventory import Inventory
from tests.deployment import Deployment
from tests.fixtures.certificates import Authority, Pair
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.nginx import Front

INVENTORY = Inventory(hostname="dgx-1")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address behind which the gateway stands, and who may come in."""

    deployment: Deployment
    url: str
    authority: Authority
    identity: Identity


@pytest.fixture(scope="module")
def gateway(front: Front, tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    identity = enroll(
        portal_url=front.deployment.url,
        token=front.deployment.enrollment_secret("acme"),
        name="dgx-1",
        inventory=INVENTORY,
        data_dir=tmp_path_factory.mktemp("gateway") / "agent",
    )
    return Gateway(front.deployment, front.url, front.authority, identity)


class Appliance:
    """The agent's connections to the portal, with one sample that waits."""

    def __init__(
        self, gateway: Gateway, data_dir: Path, *, ca_file: Path, own: Pair | None
    ) -> None:
        config = AgentConfig(
            portal_urls=[gateway.url],
            data_dir=data_dir,
            ca_file=ca_file,
            client_certificate_file=own.certificate if own else None,
            client_key_file=own.key if own else None,
        )
        self.buffer: DiskBuffer = build_buffer(config, clock=utc_now)
        self.delivery: Delivery = build_delivery(
            config, gateway.identity, self.buffer, clock=utc_now
        )
        self.link = PortalConnection(
            self.delivery.access_points,
            agent_token=gateway.identity.agent_token,
            tls=self.delivery.tls,
        )
        now_ns = to_ns(utc_now())
        self.buffer.append(Frame(b"load load1=0.5 %d" % now_ns, 1, now_ns))

    def send(self) -> Outcome:
        return self.delivery.sender.send_next().outcome

    def beat(self) -> None:
        beat = Heartbeat(agent_version="0", sent_at_ns=to_ns(utc_now()), inventory=INVENTORY)
        self.link.heartbeat(beat)

    def close(self) -> None:
        self.delivery.sender.close()
        self.link.close()
        self.buffer.close()


def test_an_agent_with_a_certificate_comes_in(gateway: Gateway, tmp_path: Path) -> None:
    own = gateway.authority.issue("agent")
    appliance = Appliance(gateway, tmp_path, ca_file=gateway.authority.certificate, own=own)
    assert appliance.send() is Outcome.SENT
    appliance.beat()
    assert appliance.buffer.points == 0
    appliance.close()


@pytest.mark.parametrize(
    ("signed_by", "says"),
    [
        ("nobody", "No required SSL certificate was sent"),
        ("another authority", "The SSL certificate error"),
    ],
)
def test_an_agent_without_the_right_certificate_keeps_its_samples_and_says_why(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, signed_by: str, says: str
) -> None:
    other = Authority(tmp_path / "other", "other").issue("agent")
    own = None if signed_by == "nobody" else other
    appliance = Appliance(gateway, tmp_path, ca_file=gateway.authority.certificate, own=own)
    with caplog.at_level(logging.WARNING):
        assert appliance.send() is Outcome.FAILED
    assert appliance.buffer.points == 1
    assert says in caplog.text
    assert "client_certificate_file" in caplog.text
    with pytest.raises(PortalRefusedError, match=says):
        appliance.beat()
    appliance.close()


def test_a_portal_that_can_not_be_trusted_gets_nothing(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger")
    own = gateway.authority.issue("agent")
    appliance = Appliance(gateway, tmp_path, ca_file=stranger.certificate, own=own)
    with caplog.at_level(logging.WARNING):
        assert appliance.send() is Outcome.FAILED
    assert appliance.buffer.points == 1
    assert "certificate verify failed" in caplog.text
    assert "set ca_file" in caplog.text
    with pytest.raises(PortalUnreachableError, match=r"certificate verify failed.*set ca_file"):
        appliance.beat()
    appliance.close()


def test_a_renewed_certificate_is_used_without_a_restart(gateway: Gateway, tmp_path: Path) -> None:
    own = Authority(tmp_path / "other", "other").issue("agent")
    appliance = Appliance(gateway, tmp_path, ca_file=gateway.authority.certificate, own=own)
    assert appliance.send() is Outcome.FAILED
    renewed = gateway.authority.issue("renewed")
    renewed.certificate.replace(own.certificate)
    renewed.key.replace(own.key)
    assert appliance.send() is Outcome.SENT
    appliance.beat()
    appliance.close()


def test_the_command_enrols_through_the_gateway_and_the_check_is_content(
    gateway: Gateway, tmp_path: Path
) -> None:
    own = gateway.authority.issue("enrolling")
    files: list[str | Path] = [
        *("--ca-file", gateway.authority.certificate),
        *("--client-certificate", own.certificate, "--client-key", own.key),
    ]
    secret = gateway.deployment.enrollment_secret("acme")
    refused = vedette_agent("enroll", gateway.url, secret, "--data-dir", tmp_path, *files[:2])
    assert refused.returncode == 1
    assert "No required SSL certificate was sent" in refused.stderr
    enrolled = vedette_agent("enroll", gateway.url, secret, "--data-dir", tmp_path, *files)
    assert enrolled.returncode == 0, enrolled.stderr
    tmp_path.chmod(0o700)
    checked = vedette_agent("check", "--data-dir", tmp_path)
    assert checked.returncode == 0, checked.stdout


def vedette_agent(*arguments: str | Path) -> Result:
    return run_vedette("agent", *map(str, arguments))
