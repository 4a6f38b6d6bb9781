"""A relay as a process: writes, polls and all else of agents, with a portal that comes and goes."""

import gzip
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from core.clock import to_ns, utc_now
from protocol.relays import RelayedCertificate, RelayedOutcome
from tests.fixtures.certificates import Authority
from tests.fixtures.in_process import run_vedette
from tests.fixtures.polling import eventually
from tests.fixtures.relay_center import RELAY_TOKEN, Center
from tests.fixtures.relays import RelayProcess

APPLIANCES = [f"dgx-{number}" for number in range(5)]


@pytest.fixture
def center() -> Center:
    center = Center()
    for name in APPLIANCES:
        center.enroll(name)
        center.generations[name] = 1
    return center


@pytest.fixture
def relay(center: Center, tmp_path: Path) -> RelayProcess:
    return RelayProcess(center.url, tmp_path)


@pytest.fixture
def running_relay(center: Center, relay: RelayProcess) -> Iterator[RelayProcess]:
    with center.serving(), relay.serving():
        yield relay


class Agent:
    """Writes as an agent does: one sample after the other, each until it is accepted."""

    def __init__(self, relay: RelayProcess, name: str) -> None:
        self.name = name
        self.sent = 0
        self.slowest_seconds = 0.0
        self._relay = relay
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer vda_{name}"

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            began = time.monotonic()
            answer = self._session.post(
                f"{self._relay.url}/api/v2/write?org=vedette&bucket=vedette&precision=ns",
                data=gzip.compress(b"m,host=%s v=%d" % (self.name.encode(), self.sent)),
                headers={"Content-Encoding": "gzip"},
                timeout=20,
            )
            assert answer.status_code == 204, answer.text
            self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
            self.sent += 1

    def reconnect(self) -> None:
        self._session.close()

    def arrived(self, center: Center) -> list[int]:
        return [int(body.rpartition(b"=")[2]) for body in center.bodies(self.name)]


def without_repeats(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def test_an_outage_and_a_kill_lose_nothing_and_delay_no_live_writes(
    center: Center, relay: RelayProcess
) -> None:
    agents = [Agent(relay, name) for name in APPLIANCES]

    def write(count: int) -> None:
        threads = [threading.Thread(target=agent.write, args=(count,)) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with started(center, relay) as process:
        with center.serving():
            eventually(lambda: relay.metrics()["registry_agents"] == 5)
            write(10)
        write(40)  # the portal is gone
        process.kill()
        process.wait()
        for agent in agents:
            agent.reconnect()
    before = [agent.sent for agent in agents]
    assert before == [50] * 5
    with relay.serving():
        # From the copies on its disk: registry and spool.
        write(20)
        assert relay.metrics()["spool_bytes"] > 0
        assert requests.get(f"{relay.url}/health", timeout=10).status_code == 200
        with center.serving():
            center.delay_seconds = 0.02
            for agent in agents:
                agent.slowest_seconds = 0.0
            began_at = time.monotonic()
            while relay.metrics()["spool_bytes"]:
                write(2)
            # No write waits until the spool is empty.
            emptied_seconds = time.monotonic() - began_at
            assert max(agent.slowest_seconds for agent in agents) < emptied_seconds / 2
            for agent in agents:
                arrived = agent.arrived(center)
                assert set(arrived) == set(range(agent.sent))
                spooled = [number for number in arrived if 10 <= number < 70]
                assert without_repeats(spooled) == list(range(10, 70))


@contextmanager
def started(center: Center, relay: RelayProcess) -> Iterator[subprocess.Popen[bytes]]:
    """Run a relay that got its registry from a portal which is away now."""
    with ExitStack() as stack:
        with center.serving():
            process = stack.enter_context(relay.serving())
        yield process


def test_writes_and_errors_of_the_portal_reach_their_agent(
    center: Center, running_relay: RelayProcess
) -> None:
    url = f"{running_relay.url}/api/v2/write"
    bearer = {"Authorization": "Bearer vda_dgx-0"}
    body = json.dumps({"code": "invalid", "message": "line 1"}).encode()
    center.outcomes = {
        "dgx-0": [
            RelayedOutcome(status=400, body=body),
            RelayedOutcome(status=429, body=body, retry_after_seconds=9),
        ]
    }
    rejected = requests.post(url, data=b"m", headers=bearer, timeout=10)
    limited = requests.post(url, data=b"m", headers=bearer, timeout=10)
    assert (rejected.status_code, rejected.json()["message"]) == (400, "line 1")
    assert (limited.status_code, limited.headers["Retry-After"]) == (429, "9")
    too_large = requests.post(url, data=b"x" * 26_000_000, headers=bearer, timeout=30)
    assert too_large.status_code == 413
    bad_gzip = requests.post(
        url, data=b"no gzip", headers={**bearer, "Content-Encoding": "gzip"}, timeout=10
    )
    assert bad_gzip.status_code == 400
    # What the relay does not know, the portal answers.
    for parameters, token in (("?precision=parsecs", "vda_dgx-0"), ("", "vda_nobody"), ("", "")):
        headers = {"Authorization": f"Bearer {token}"}
        answer = requests.post(url + parameters, data=b"m v=1", headers=headers, timeout=10)
        assert answer.headers["X-Of-The-Portal"] == "yes"


def test_a_poll_waits_at_the_relay_until_the_portal_has_news(
    center: Center, running_relay: RelayProcess
) -> None:
    url = f"{running_relay.url}/agent/v1/desired?generation=1&wait_seconds="
    bearer = {"Authorization": "Bearer vda_dgx-1"}
    assert requests.get(f"{url}1", headers=bearer, timeout=10).status_code == 204
    assert center.passed == []
    answers: list[requests.Response] = []
    polling = threading.Thread(
        target=lambda: answers.append(requests.get(f"{url}20", headers=bearer, timeout=30))
    )
    polling.start()
    eventually(lambda: running_relay.metrics()["polls"] == 1)
    center.generations["dgx-1"] = 2
    began = time.monotonic()
    polling.join()
    assert time.monotonic() - began < 2
    assert answers[0].json()["generation"] == 2
    assert center.passed[0].query == "generation=1&wait_seconds=0"


def test_all_else_is_passed_on_in_a_stream_with_what_the_portal_has_to_know(
    center: Center, running_relay: RelayProcess
) -> None:
    claimed = {
        "X-Vedette-Relay": "claimed",
        "X-Vedette-Relay-Address": "192.0.2.1",
        "X-Vedette-Relay-Certificate": "claimed",
        "X-Vedette-Client-Certificate": "claimed",
        "X-Vedette-Proxy": "claimed",
        "X-Forwarded-For": "192.0.2.1",
        "X-Secret-Hop": "claimed",
        "Connection": "x-secret-hop",
    }
    answer = requests.post(
        f"{running_relay.url}/agent/v1/heartbeat?a=%2F",
        data=(part for part in [b"in ", b"parts"]),
        headers={"Authorization": "Bearer vda_dgx-0", **claimed},
        timeout=10,
    )
    assert answer.json() == {"path": "/agent/v1/heartbeat"}
    assert len(answer.headers["X-Request-Id"].split(",")) == 1
    (passed,) = center.passed
    assert (passed.method, passed.query, passed.body) == ("POST", "a=%2F", b"in parts")
    assert passed.headers["x-vedette-relay"] == RELAY_TOKEN
    assert passed.headers["x-vedette-relay-address"] == "127.0.0.1"
    assert passed.headers["host"] == f"127.0.0.1:{center.port}"
    assert passed.headers["authorization"] == "Bearer vda_dgx-0"
    assert "claimed" not in passed.headers.values()
    large = requests.get(f"{running_relay.url}/agent/v1/parts/large", timeout=10)
    assert len(large.content) == 3_000_000
    assert large.headers["ETag"] == '"large"'
    for path in ("/", "/relay/v1/registry", "/login"):
        assert requests.get(f"{running_relay.url}{path}", timeout=10).status_code == 404


def test_tunnels_are_spliced_and_refusals_shown(running_relay: RelayProcess) -> None:
    url = f"ws://127.0.0.1:{running_relay.port}/agent/v1/tunnel"
    with connect(url, additional_headers={"Authorization": "Bearer vda_dgx-0"}) as tunnel:
        for number in range(3):
            tunnel.send(b"message %d" % number)
            assert tunnel.recv() == b"echo message %d" % number
    with pytest.raises(InvalidStatus) as caught, connect(url):
        pass
    assert caught.value.response.status_code == 401


@pytest.mark.parametrize("target", ["*@127.0.0.1:{port}/", "http://127.0.0.1:{port}/", "/login"])
def test_no_websocket_leads_to_another_server(running_relay: RelayProcess, target: str) -> None:
    # The handshake has the relay's token.
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.5)
        handshake = (
            f"GET {target.format(port=other.getsockname()[1])} HTTP/1.1\r\nHost: relay\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", running_relay.port), timeout=10) as client:
            client.sendall(handshake.encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 403 ")
        with pytest.raises(TimeoutError):
            other.accept()


@pytest.mark.parametrize("up", ["..", "%2e%2e", "..%2f..", "..%5c.."])
def test_no_path_leads_to_what_is_for_the_relay_alone(
    center: Center, running_relay: RelayProcess, up: str
) -> None:
    with socket.create_connection(("127.0.0.1", running_relay.port), timeout=10) as client:
        client.sendall(f"GET /agent/v1/{up}/relay/v1/registry HTTP/1.1\r\nHost: r\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 404 ")
    assert center.passed == []


def test_errors_say_what_is_wrong_while_the_portal_is_away(
    center: Center, relay: RelayProcess
) -> None:
    with started(center, relay):
        bearer = {"Authorization": "Bearer vda_dgx-0"}
        beat = requests.post(f"{relay.url}/agent/v1/heartbeat", headers=bearer, timeout=10)
        assert (beat.status_code, beat.json()["code"]) == (503, "portal_away")
        assert beat.headers["Retry-After"] == "10"
        unknown = {"Authorization": "Bearer vda_nobody"}
        write = requests.post(f"{relay.url}/api/v2/write", headers=unknown, timeout=10)
        assert (write.status_code, write.json()["reason"]) == (503, "portal_away")
        poll = requests.get(
            f"{relay.url}/agent/v1/desired?generation=1&wait_seconds=0.5",
            headers=bearer,
            timeout=10,
        )
        assert poll.status_code == 204
        tunnel = f"ws://127.0.0.1:{relay.port}/agent/v1/tunnel"
        with pytest.raises(InvalidStatus), connect(tunnel):
            pass
        Agent(relay, "dgx-0").write()
        ready = requests.get(f"{relay.url}/readyz", timeout=10).json()
        assert (ready["status"], ready["warnings"]) == ("ready", ["portal"])


def test_a_relay_whose_token_is_revoked_refuses_no_agent_for_ever(
    center: Center, running_relay: RelayProcess
) -> None:
    center.relay_token = "another"
    bearer = {"Authorization": "Bearer vda_dgx-0"}
    for path in ("/agent/v1/heartbeat", "/api/v2/write"):
        answer = requests.post(f"{running_relay.url}{path}", headers=bearer, timeout=10)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"] == "30"


def test_agents_keep_their_samples_when_the_spool_is_full(center: Center, tmp_path: Path) -> None:
    relay = RelayProcess(center.url, tmp_path, settings={"max_spool_bytes": str(2**20)})
    with started(center, relay):
        bearer = {"Authorization": "Bearer vda_dgx-0"}
        statuses: list[int] = []
        while not statuses or statuses[-1] == 204:
            answer = requests.post(
                f"{relay.url}/api/v2/write",
                data=os.urandom(60_000),  # what can't be compressed
                headers=bearer,
                timeout=10,
            )
            statuses.append(answer.status_code)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "30")
        assert answer.json()["reason"] == "spool_full"
        assert requests.get(f"{relay.url}/health", timeout=10).status_code == 503
        with center.serving():
            eventually(lambda: not relay.metrics()["spool_bytes"])
            assert len(center.writes) == len(statuses) - 1
            eventually(lambda: requests.get(f"{relay.url}/health", timeout=10).status_code == 200)


def test_agents_present_their_certificates_to_the_relay(center: Center, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca", "CA")
    server, client = authority.issue("relay"), authority.issue("dgx-0")
    pem = client.certificate.read_text()
    center.authorities = authority.certificate.read_text()
    center.needs_certificate = True
    center.certificates = [
        RelayedCertificate(
            fingerprint=sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest(),
            appliance_id="dgx-0",
            valid_until_ns=to_ns(utc_now()) + 10**12,
        )
    ]
    settings = {
        "tls_certificate_file": str(server.certificate),
        "tls_key_file": str(server.key),
    }
    relay = RelayProcess(center.url, tmp_path, settings=settings, scheme="https")
    with center.serving(), relay.serving():
        session = requests.Session()
        session.trust_env = False  # it may name another bundle
        session.verify = str(authority.certificate)
        write = f"{relay.url}/api/v2/write"
        bearer = {"Authorization": "Bearer vda_dgx-0"}
        without = session.post(write, data=b"m v=1", headers=bearer, timeout=10)
        assert without.headers["X-Of-The-Portal"] == "yes"
        assert "x-vedette-relay-certificate" not in center.passed[-1].headers
        session.cert = (str(client.certificate), str(client.key))
        assert session.post(write, data=b"m v=2", timeout=10).status_code == 204
        assert center.bodies("dgx-0") == [b"m v=2"]
        session.post(f"{relay.url}/agent/v1/heartbeat", timeout=10)
        assert unquote(center.passed[-1].headers["x-vedette-relay-certificate"]) == pem


def test_the_portal_gets_reports(center: Center, running_relay: RelayProcess) -> None:
    Agent(running_relay, "dgx-0").write(3)
    eventually(lambda: center.reports, within_seconds=30)
    report = center.reports[0]
    assert report.agents == 1
    assert report.max_spool_bytes == 10 * 2**30
    assert report.spool_bytes == report.refused_writes == report.oldest_spooled_at_ns == 0
    assert 20 * 2**20 < report.memory_bytes < 500 * 2**20
    assert report.requests_per_second > 0


def test_a_poisoned_write_of_an_outage_is_set_aside_and_reported(
    center: Center, relay: RelayProcess
) -> None:
    center.fails_on, center.is_failing_whole = b"poison", True
    with ExitStack() as stack:
        with center.serving():
            stack.enter_context(relay.serving())
        for number, line in enumerate([b"m v=1 1", b"poison v=1 1\nm v=2 2", b"m v=3 3"]):
            response = requests.post(
                f"{relay.url}/api/v2/write",
                data=line,
                headers={"Authorization": f"Bearer vda_dgx-{number % 2}"},
                timeout=10,
            )
            assert response.status_code == 204
        with center.serving():
            eventually(lambda: not relay.metrics()["spool_bytes"], within_seconds=120)
            eventually(lambda: center.reports and center.reports[-1].undeliverable_bytes)
            lines = {line for write in center.writes for line in write.body.splitlines()}
            assert lines == {b"m v=1 1", b"m v=2 2", b"m v=3 3"}
            assert relay.metrics()["undeliverable_lines_total"] == 1
            ready = requests.get(f"{relay.url}/readyz", timeout=10)
            assert (ready.status_code, "undeliverable.log has lines" in ready.text) == (200, True)
            checked = run_vedette("relay", "check", environ=relay.environ)
            assert "undeliverable.log has lines" in checked.stdout
    file = relay.folder / "relay" / "undeliverable.log"
    assert file.read_text().splitlines()[1:] == ["poison v=1 1"]


def test_check_says_what_is_wrong(center: Center, relay: RelayProcess) -> None:
    (relay.folder / "relay").mkdir()
    away = run_vedette("relay", "check", environ=relay.environ)
    assert away.returncode == 1
    assert "does not answer: connection refused" in away.stdout
    with center.serving():
        good = run_vedette("relay", "check", environ=relay.environ)
        assert good.returncode == 0, good.stdout
        assert "5 agents may connect here" in good.stdout
        center.relay_token = "another"
        refused = run_vedette("relay", "check", environ=relay.environ)
        assert refused.returncode == 1
        assert "refuses this relay's token" in refused.stdout


def test_a_relay_with_a_wrong_token_does_not_start(center: Center, relay: RelayProcess) -> None:
    center.relay_token = "another"
    with center.serving():
        ended = subprocess.run(
            [sys.executable, "-m", "cli.main", "relay"],
            env=relay.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert "refuses this relay's token" in ended.stderr


def test_the_unit_runs_the_relay(relay: RelayProcess) -> None:
    unit = run_vedette("relay", "unit", environ=relay.environ)
    assert unit.returncode == 0
    assert " relay\n" in unit.stdout
    assert f"ReadWritePaths={relay.folder / 'relay'}" in unit.stdout
    assert "EnvironmentFile=/etc/vedette/relay.env" in unit.stdout


def test_every_metric_is_documented(running_relay: RelayProcess) -> None:
    names = {f"vedette_relay_{name.partition('{')[0]}" for name in running_relay.metrics()}
    document = Path(__file__).parents[2] / "docs" / "relays.md"
    assert names == set(re.findall(r"\| `(vedette_relay_\w+)` \|", document.read_text("utf-8")))
