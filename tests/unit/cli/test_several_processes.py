"""Two processes of the portal: users and agents may reach either, in front of one running job."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from click.testing import CliRunner
from flask import Flask
from itsdangerous import TimestampSigner
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode
from websockets.sync.client import connect

from access.jobs.forwarding import Forwarder
from cli.asgi import ServerPart, create_asgi_app
from cli.backend import Backend
from cli.server import access
from core.db import SessionFactory
from core.errors import ConfigurationError
from core.settings import ServerSettings
from core.shared_limits import SharedLimits
from jobqueue.services.tunnels import claim_tunnel, holder_of
from protocol.attempts import ObservedState
from protocol.exec import Channel
from protocol.job_spec import Port
from protocol.tunnel import TUNNEL_PATH
from tenants.users.sightings import Sightings
from tenants.users.tokens import create_api_token
from tests.cast import Cast, FrozenClock, scope_of
from tests.fixtures.joined_brokers import joined_brokers
from tests.fixtures.serving import Serving
from tests.servers import free_port
from tests.unit.cli.test_web_ui import JOB_SERVER, MEBIBYTE, PORT, Site
from tests.unit.jobqueue.builders import report, start
from timeseries.store import Store


@dataclass
class Portal:
    """Two processes, and the site as users of the first see it; the agent reaches the second."""

    site: Site
    first: ExitStack
    first_url: str
    second_url: str
    token: str

    def holder(self) -> str | None:
        with self.site.sessions() as session:
            return holder_of(session, self.site.attempt.appliance_id or "")


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    return replace(settings, secret_key="a key that all processes share")


@pytest.fixture
def portal(
    *,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    shared_portal: Flask,
) -> Iterator[Portal]:
    assert shared_portal
    with sessions.begin() as session:
        attempt = start(session, cast, ports=[Port(container_port=PORT, name="web")])
        report(session, attempt, ObservedState.RUNNING)
        job = attempt.job
        token = create_api_token(session, scope_of(cast.alice), name="test", now=clock.now)[1]
    of_processes = [replace(settings, port=free_port()) for _ in range(2)]
    apps = [
        create_asgi_app(Backend(own, sessions, store, Sightings(sessions)), clock=clock)
        for own in of_processes
    ]
    with ExitStack() as stack, Serving(JOB_SERVER) as job_url:
        second_url = stack.enter_context(Serving(apps[1], port=of_processes[1].port))
        first = stack.enter_context(ExitStack())
        first_url = first.enter_context(Serving(apps[0], port=of_processes[0].port))
        endpoint = job_url.removeprefix("http://")
        site = Site(second_url, job, attempt, of_processes[0], sessions, endpoint)
        agent = threading.Thread(target=site.serve_tunnel)
        agent.start()
        site.url = first_url
        yield Portal(site, first, first_url, second_url, token)
        site.stop.set()
        agent.join()


def request_scope(method: str, *, headers: list[tuple[bytes, bytes]]) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": "/tree",
        "query_string": b"",
        "headers": headers,
        "client": ("192.0.2.1", 1),
    }


def test_users_and_agents_may_reach_any_process(portal: Portal, cast: Cast) -> None:
    site = portal.site
    cookie = site.cookie_of(cast.alice)
    # The agent has reached the other process, which passes its tunnel on.
    assert site.get("/tree", cookie=cookie).status_code == 200
    assert portal.holder() == portal.first_url
    # The user reaches the other process, which passes requests on.
    site.url = portal.second_url
    answer = site.get("/tree/a%20b?x=1", cookie=cookie, data=b"y" * 3 * MEBIBYTE)
    assert answer.text.startswith(f"POST /tree/a b {3 * MEBIBYTE} ")
    assert len(site.get("/large", cookie=cookie).content) == 32 * MEBIBYTE
    with site.websocket(cookie) as websocket:
        websocket.send("hello")
        assert (websocket.subprotocol, websocket.recv(timeout=60)) == ("chat", "echo hello")
    assert portal.holder() == portal.first_url


def test_terminals_and_files_are_answered_by_the_process_with_the_tunnel(
    portal: Portal, cast: Cast
) -> None:
    portal.site.get("/tree", cookie=portal.site.cookie_of(cast.alice))
    url, headers = portal.second_url, {"Authorization": f"Bearer {portal.token}"}
    path = f"/api/v1/jobs/{portal.site.job.id}"
    files = requests.get(f"{url}{path}/files?path=/work", headers=headers, timeout=60)
    assert files.json()["code"] == "exec_unavailable"
    socket_url = f"ws{url.removeprefix('http')}{path}/exec?command=true"
    with connect(socket_url, additional_headers=headers, proxy=None) as opened:
        [status] = [bytes(data, "utf-8") if isinstance(data, str) else data for data in opened]
    assert status[0] == Channel.STATUS
    assert json.loads(status[1:])["code"] == "exec_unavailable"
    refused = requests.get(f"{url}{path}/files?path=/work", timeout=60)
    assert refused.status_code == 401


def test_another_process_takes_over_the_tunnels_of_one_that_has_ended(
    portal: Portal, cast: Cast
) -> None:
    site = portal.site
    cookie = site.cookie_of(cast.alice)
    assert site.get("/tree", cookie=cookie).status_code == 200
    portal.first.close()
    site.url = portal.second_url
    assert site.get("/tree", cookie=cookie).status_code == 200
    assert portal.holder() == portal.second_url


def test_a_forged_header_forwards_nothing(portal: Portal, cast: Cast) -> None:
    site = portal.site
    cookie = site.cookie_of(cast.alice)
    headers = {"X-Vedette-Forwarded": "eyJwYXRoIjoiL3RyZWUifQ.forged.forged"}
    assert site.get("/tree", headers=headers).status_code == 303
    assert site.get("/tree", cookie=cookie, headers=headers).status_code == 200


def test_a_job_never_sees_what_processes_sign_for_each_other(portal: Portal, cast: Cast) -> None:
    site = portal.site
    cookie = site.cookie_of(cast.alice)
    for url in (portal.first_url, portal.second_url):
        site.url = url
        names = site.get("/headers", cookie=cookie, headers={"X-Vedette-Forwarded": "x"}).text
        assert "host" in names
        assert "x-vedette-forwarded" not in names


def test_the_path_of_a_request_leads_to_no_other_server(portal: Portal, cast: Cast) -> None:
    site = portal.site
    assert site.get("/tree", cookie=site.cookie_of(cast.alice)).status_code == 200
    address = urlsplit(portal.second_url)
    with Serving(JOB_SERVER) as other_url:
        connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
        with closing(connection):
            target = f"*@{other_url.removeprefix('http://')}/headers"
            connection.request("GET", target, headers={"Host": site.host})
            assert connection.getresponse().status == 401


@pytest.mark.parametrize(("seconds_ahead", "seen"), [(3, "192.0.2.1"), (60, "127.0.0.1")])
def test_the_clocks_of_two_hosts_may_differ_a_little(
    monkeypatch: pytest.MonkeyPatch, seconds_ahead: int, seen: str
) -> None:
    sign, answered = TimestampSigner.sign, bytearray()

    def sign_ahead(signer: TimestampSigner, text: str | bytes) -> bytes:
        monkeypatch.setattr(signer, "get_timestamp", lambda: int(time.time()) + seconds_ahead)
        return sign(signer, text)

    async def address(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(scope["client"][0])(scope, receive, send)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("it is never told")

    async def send(message: Message) -> None:
        answered.extend(message.get("body", b""))

    monkeypatch.setattr(TimestampSigner, "sign", sign_ahead)
    scope = request_scope("GET", headers=[(b"host", b"portal.example")])
    forwarder = Forwarder("http://portal.example", secret="shared")
    with Serving(forwarder.trusting(address)) as url:
        asyncio.run(forwarder.request(scope, receive, send, url=url))
    assert answered.decode() == seen


def test_websockets_end_with_a_code_if_the_job_breaks_off(portal: Portal, cast: Cast) -> None:
    site = portal.site
    cookie = site.cookie_of(cast.alice)
    for url in (portal.first_url, portal.second_url):
        site.url = url
        with site.websocket(cookie, path="/broken") as opened, pytest.raises(ConnectionClosed):
            opened.recv(timeout=60)
        assert opened.close_code == CloseCode.GOING_AWAY


def test_a_client_that_goes_in_the_middle_of_its_upload_is_no_error(portal: Portal) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    headers = [(b"host", portal.site.host.encode()), (b"content-length", b"9")]
    scope = request_scope("POST", headers=headers)
    forwarder = Forwarder(portal.second_url, secret="any")
    asyncio.run(forwarder.request(scope, receive, send, url=portal.first_url))


def test_nothing_waits_for_a_holder_that_hangs_once_the_client_has_gone(portal: Portal) -> None:
    portal.site.stop.set()
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with portal.site.sessions.begin() as session:
            claim_tunnel(session, portal.site.attempt.appliance_id or "", url)
        path = f"/api/v1/jobs/{portal.site.job.id}/files?path=/work"
        with pytest.raises(requests.ReadTimeout):
            requests.get(f"{portal.first_url}{path}", timeout=1)
        connection, _address = hanging.accept()
        with connection:
            connection.settimeout(30)
            while connection.recv(65536):
                pass


def test_sessions_of_a_tenant_are_counted_in_all_processes(
    *,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    cast: Cast,
    clock: FrozenClock,
    shared_portal: Flask,
) -> None:
    assert shared_portal
    with sessions.begin() as session:
        attempt = start(session, cast)
        report(session, attempt, ObservedState.RUNNING)
        path = f"/api/v1/jobs/{attempt.job.id}/files?path=/work"
        token = create_api_token(session, scope_of(cast.alice), name="test", now=clock.now)[1]
    settings = replace(settings, max_job_sessions_per_tenant=1)
    here, there = (SharedLimits(broker) for broker in joined_brokers())
    backend = Backend(settings, sessions, store, Sightings(sessions), limits=here)
    headers = {"Authorization": f"Bearer {token}"}
    elsewhere = there.concurrent("job sessions by tenant", 1)
    with (
        Serving(create_asgi_app(backend, clock=clock)) as url,
        elsewhere.running(cast.acme.id),
    ):
        there.send()
        answer = requests.get(f"{url}{path}", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["message"]) == (
        429,
        "Your tenant has too many open sessions. Close one.",
    )


def test_a_process_answers_for_its_parts_alone(
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    clock: FrozenClock,
    shared_portal: Flask,
) -> None:
    assert shared_portal
    backend = Backend(settings, sessions, store, Sightings(sessions))
    statuses = {}
    for part in ServerPart:
        with Serving(create_asgi_app(backend, parts={part}, clock=clock)) as url:
            statuses[part] = [
                requests.get(f"{url}{path}", allow_redirects=False, timeout=30).status_code
                for path in ("/healthz", "/login", "/api/v1/jobs", "/agent/v1/desired")
            ]
            with pytest.raises(InvalidStatus), connect(f"ws{url[4:]}{TUNNEL_PATH}", proxy=None):
                pass
    assert statuses == {
        ServerPart.PORTAL: [200, 200, 401, 404],
        ServerPart.ACCESS: [200, 404, 404, 401],
        ServerPart.SCHEDULER: [200, 404, 404, 404],
    }


def test_parts_by_themselves_need_a_store_that_several_processes_can_open(tmp_path: Path) -> None:
    result = CliRunner().invoke(access, env={"VEDETTE_DATA_DIR": str(tmp_path)})
    assert isinstance(result.exception, ConfigurationError)
    assert "vedette server" in result.exception.message
