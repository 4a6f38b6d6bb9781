"""Processes of one portal with Redis between them, and without: changes of one wake the others.

The agent is connected to `vedette access`, users to `vedette portal`, and `vedette scheduler`
places only what it is told of: its own interval is longer than the test.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import msgspec
import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from core.clock import to_ns, utc_now
from protocol.attempts import LogChunk, LogUpload
from protocol.logs import Stream, record
from tests.deployment import ALICE, OLIVIA, Deployment, api_token, make_deployment, serving
from tests.fixtures.databases import victoria_metrics
from tests.fixtures.polling import eventually
from tests.fixtures.redis import RedisServer, redis_server
from tests.servers import free_port
from tests.unit.jobqueue.builders import inventory

pytestmark = [pytest.mark.needs_redis, pytest.mark.timeout(300)]

PARTS = ("portal", "access", "scheduler")
# With Redis, a change takes some 50 ms; the rest is for a busy machine. Nothing is polled within
# this time: the sweep of what is told takes ten seconds, placement a thousand.
TOLD_SECONDS = 5.0
POLLED_SECONDS = 15.0


@dataclass
class Site:
    """The processes, and Redis."""

    portal: Deployment
    access: Deployment
    redis: RedisServer
    operator: requests.Session
    user: requests.Session

    def processes(self) -> list[dict[str, Any]]:
        url = f"{self.portal.url}/api/v1/platform/processes"
        items: list[dict[str, Any]] = self.operator.get(url, timeout=60).json()["items"]
        return items

    def has_brokers(self, state: str) -> bool:
        return [process["broker"] for process in self.processes()] == 3 * [state]

    def console(self) -> str:
        """Return the operators' page, as a browser gets it."""
        with requests.Session() as browser:
            login = browser.get(f"{self.portal.url}/login", timeout=60).text
            (token,) = re.findall(r'name="csrf_token"[^>]*value="([^"]+)"', login)
            form = {"email": OLIVIA, "password": DEMO_PASSWORD, "csrf_token": token}
            browser.post(f"{self.portal.url}/login", data=form, timeout=60)
            return browser.get(f"{self.portal.url}/console", timeout=60).text

    def submit(self, name: str) -> str:
        body = {"name": name, "image": "python:3.13", "gpus": 1}
        reply = self.user.post(f"{self.portal.url}/api/v1/jobs", json=body, timeout=60)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def stop(self, job_id: str) -> None:
        reply = self.user.post(f"{self.portal.url}/api/v1/jobs/{job_id}/stop", timeout=60)
        assert reply.ok, reply.text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    first = make_deployment(folder / "portal")
    deployments = {part: replace(first, port=free_port()) for part in PARTS}
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(folder / "redis"))
        store = stack.enter_context(victoria_metrics(folder))
        environ = {
            "TIMESERIES_URL": store.replace("http:", "victoriametrics:"),
            "VEDETTE_REDIS_URL": server.url,
            "VEDETTE_PLACEMENT_INTERVAL_SECONDS": "1000",
            "VEDETTE_RULE_PACK": "false",
        }

        def start(part: str) -> None:
            stack.enter_context(serving(deployments[part], environ=environ, part=part))

        # At once: each takes seconds.
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(start, PARTS))
        operator, user = requests.Session(), requests.Session()
        for session, email in ((operator, OLIVIA), (user, ALICE)):
            token = api_token(deployments["portal"], email)
            session.headers["Authorization"] = f"Bearer {token}"
        site = Site(deployments["portal"], deployments["access"], server, operator, user)
        eventually(lambda: site.has_brokers("connected"), what="the brokers")
        yield site


class Agent:
    """An agent that does what it is told by hand."""

    def __init__(self, site: Site) -> None:
        self.url = site.access.url
        self.session = requests.Session()
        token = site.portal.enrollment_secret("acme")
        body = {"token": token, "name": "dgx-1", "inventory": inventory("dgx-1")}
        identity = self._post("enroll", body).json()
        self.session.headers["Authorization"] = f"Bearer {identity['agent_token']}"
        self.beat()
        self.state: dict[str, Any] = self.poll(-1)
        self.sizes: dict[str, int] = {}

    def beat(self) -> None:
        beat = {"agent_version": "1", "inventory": inventory("dgx-1")}
        self._post("heartbeat", {**beat, "sent_at_ns": to_ns(utc_now())})

    def poll(self, generation: int) -> dict[str, Any]:
        """Return the next desired state, and note when it came."""
        while True:
            query = {"generation": generation, "wait_seconds": 30}
            reply = self.session.get(f"{self.url}/agent/v1/desired", params=query, timeout=60)
            assert reply.status_code in {200, 204}, reply.text
            if reply.status_code == 200:
                state: dict[str, Any] = reply.json()
                return state | {"at": time.monotonic()}

    def attempt(self, job_id: str) -> str:
        """Wait for the attempt of a job; return its ID."""
        while True:
            for spec in self.state["attempts"]:
                if spec["job_id"] == job_id:
                    return str(spec["attempt_id"])
            self.state = self.poll(self.state["generation"])

    def report(self, attempt_id: str, state: str) -> None:
        self._post("observed", {"attempts": [{"attempt_id": attempt_id, "state": state}]})

    def log(self, attempt_id: str, text: str) -> None:
        line = record(b"2026-01-01T00:00:00.000000Z", Stream.STDOUT, text.encode() + b"\n")
        offset = self.sizes.get(attempt_id, 0)
        chunk = LogChunk(attempt_id=attempt_id, offset=offset, data=line)
        body = msgspec.msgpack.encode(LogUpload(chunks=[chunk]))
        reply = self.session.post(f"{self.url}/agent/v1/logs", data=body, timeout=60)
        assert reply.ok, reply.text
        self.sizes[attempt_id] = reply.json()["acks"][0]["next_offset"]

    def _post(self, path: str, body: dict[str, Any]) -> requests.Response:
        reply = self.session.post(f"{self.url}/agent/v1/{path}", json=body, timeout=60)
        assert reply.ok, reply.text
        return reply


@pytest.fixture(scope="module")
def agent(site: Site) -> Agent:
    return Agent(site)


class Follower:
    """Follows the log of a job, as a browser does."""

    def __init__(self, site: Site, job_id: str, stack: ExitStack) -> None:
        self.seen: dict[str, float] = {}
        connection = stack.enter_context(
            closing(HTTPConnection("127.0.0.1", site.portal.port, timeout=60))
        )
        headers = {"Authorization": str(site.user.headers["Authorization"])}
        connection.request("GET", f"/api/v1/jobs/{job_id}/follow", headers=headers)
        response = connection.getresponse()
        assert response.status == 200
        thread = threading.Thread(target=self._read, args=(response,), daemon=True)
        thread.start()

    def _read(self, response: HTTPResponse) -> None:
        try:
            for line in response:
                if line.startswith(b"data:"):
                    data = json.loads(line[5:])
                    for shown in data.get("lines", ()):
                        self.seen[shown["text"]] = time.monotonic()
        except (OSError, ValueError, AttributeError):
            pass  # the test has ended


def seconds_until_placed(site: Site, agent: Agent, name: str) -> tuple[str, float]:
    """Submit a job to the portal while the agent waits; return its ID and how long it took."""
    agent.beat()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.poll, agent.state["generation"])
        time.sleep(0.5)
        assert not waiting.done()
        began = time.monotonic()
        job_id = site.submit(name)
        agent.state = waiting.result(60)
    agent.attempt(job_id)
    return job_id, agent.state["at"] - began


def seconds_until_shown(agent: Agent, follower: Follower, attempt_id: str, text: str) -> float:
    began = time.monotonic()
    agent.log(attempt_id, text)
    return eventually(lambda: follower.seen.get(text), every_seconds=0.005, what=text) - began


def test_a_job_that_is_submitted_to_one_process_wakes_the_agent_at_another(
    site: Site, agent: Agent
) -> None:
    _job_id, seconds = seconds_until_placed(site, agent, "first")
    assert seconds < TOLD_SECONDS


def test_lines_cross_processes_with_redis_without_it_and_with_it_again(
    site: Site, agent: Agent
) -> None:
    job_id, _ = seconds_until_placed(site, agent, "followed")
    attempt_id = agent.attempt(job_id)
    agent.report(attempt_id, "running")
    with ExitStack() as stack:
        follower = Follower(site, job_id, stack)
        took = [seconds_until_shown(agent, follower, attempt_id, f"told {n}") for n in range(10)]
        assert sorted(took)[5] < TOLD_SECONDS / 5

        site.redis.stop()
        eventually(lambda: site.has_brokers("away"), what="the loss")
        assert "Redis is away for 3 of 3 processes." in site.console()
        for deployment in (site.portal, site.access):
            ready = requests.get(f"{deployment.url}/readyz", timeout=60)
            assert (ready.status_code, ready.json()["warnings"]) == (200, ["broker"])
            assert "Redis is away" in ready.json()["details"]["broker"]
            metrics = requests.get(f"{deployment.url}/metrics", timeout=60).text
            assert "vedette_broker_connected 0.0" in metrics
        assert seconds_until_shown(agent, follower, attempt_id, "polled") < POLLED_SECONDS
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(agent.poll, agent.state["generation"])
            site.stop(job_id)
            agent.state = waiting.result(POLLED_SECONDS)

        site.redis.start()
        eventually(lambda: site.has_brokers("connected"), what="the connections")
        assert "Redis is away" not in site.console()
        assert seconds_until_shown(agent, follower, attempt_id, "again") < TOLD_SECONDS
    _job_id, seconds = seconds_until_placed(site, agent, "last")
    assert seconds < TOLD_SECONDS
