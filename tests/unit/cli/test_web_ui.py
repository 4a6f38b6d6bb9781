"""Web pages of jobs: a real server behind a real tunnel, for those who may open it, and only it."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import requests
from sqlalchemy import delete, event, select
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from collector.tunnel import serve_tunnel
from core.db import SessionFactory
from core.settings import ServerSettings
from jobqueue.executors.base import ExecSession, NoExecError
from jobqueue.models import Attempt, Job
from jobqueue.services.web_ui import Proof, Proofs
from protocol.attempts import ObservedState
from protocol.job_spec import Port
from tenants.models import LoginSession, User
from tenants.users.sessions import start_session
from tests.cast import NOON, Cast
from tests.fixtures.polling import eventually
from tests.fixtures.serving import Serving
from tests.fixtures.tunnels import serve_wanted_tunnel
from tests.unit.jobqueue.builders import report, start

PORT = 8888
MEBIBYTE = 2**20


async def _page(request: Request) -> Response:
    seen = {name: request.headers.get(name, "") for name in ("host", "cookie", "x-forwarded-proto")}
    body = await request.body()
    response = Response(f"{request.method} {request.url.path} {len(body)} {seen}")
    response.headers["Set-Cookie"] = "own=1; Domain =jobs.localhost; Path=/"
    response.headers["Clear-Site-Data"] = '"cookies"'
    return response


async def _names_of_headers(request: Request) -> Response:
    return Response(" ".join(request.headers))


async def _large(_request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(32):
            yield b"x" * MEBIBYTE

    return StreamingResponse(parts())


async def _endless(_request: Request) -> Response:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    return StreamingResponse(parts())


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept(next(iter(websocket.scope["subprotocols"]), None))
    try:
        while True:
            await websocket.send_text(f"echo {await websocket.receive_text()}")
    except WebSocketDisconnect:
        return


async def _broken(websocket: WebSocket) -> None:
    await websocket.accept()
    raise ConnectionResetError


JOB_SERVER = Starlette(
    routes=[
        Route("/headers", _names_of_headers),
        WebSocketRoute("/broken", _broken),
        Route("/large", _large),
        Route("/endless", _endless),
        WebSocketRoute("/echo", _echo),
        Route("/{path:path}", _page, methods=["GET", "POST"]),
    ]
)


async def nothing_runs(_attempt_id: str, _session: ExecSession) -> int:
    raise NoExecError


@dataclass
class Site:
    """A portal with a running job, its tunnel, and the browsers of users."""

    url: str
    job: Job
    attempt: Attempt
    settings: ServerSettings
    sessions: SessionFactory
    endpoint: str
    asked: list[tuple[str, int]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    is_idle: bool | None = None

    @property
    def host(self) -> str:
        return f"{self.job.id}-{PORT}.jobs.localhost"

    def find_endpoint(self, attempt_id: str, port: int) -> str | None:
        self.asked.append((attempt_id, port))
        return self.endpoint if (attempt_id, port) == (self.attempt.id, PORT) else None

    def serve_tunnel(self) -> None:
        serve_wanted_tunnel(
            self.url,
            stop=self.stop,
            find_endpoint=self.find_endpoint,
            execute=nothing_runs,
            should_move=self.note_idle,
        )

    def note_idle(self, is_idle: bool) -> bool:  # noqa: FBT001 - as the tunnel calls it
        self.is_idle = is_idle
        return False

    def get(
        self,
        path: str,
        *,
        cookie: str = "",
        host: str = "",
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        return requests.request(
            "GET" if data is None else "POST",
            f"{self.url}{path}",
            headers={"Host": host or self.host, "Accept": "text/html", "Cookie": cookie}
            | dict(headers or {}),
            data=data,
            allow_redirects=False,
            timeout=60,
        )

    def open(self, path: str, cookie: str) -> requests.Response:
        """Return a response whose body was not read."""
        headers = {"Host": self.host, "Cookie": cookie}
        return requests.get(f"{self.url}{path}", headers=headers, stream=True, timeout=60)

    def proofs(self) -> Proofs:
        return Proofs(self.settings.secret_key)

    def ticket_of(self, user: User) -> str:
        """Sign a user in, and return a ticket as the portal makes them."""
        with self.sessions.begin() as session:
            start_session(session, user, now=NOON, lifetime=timedelta(days=1))
            login_sessions = session.scalars(
                select(LoginSession).where(LoginSession.user_id == user.id)
            )
            session_id = login_sessions.all()[-1].id
        return self.proofs().sign("ticket", Proof(self.job.id, PORT, session_id))

    def cookie_of(self, user: User) -> str:
        """Sign a user in and enter the job's origin as the portal sends them there."""
        entered = self.get(f"/.vedette/enter?ticket={self.ticket_of(user)}")
        assert (entered.status_code, entered.headers["Location"]) == (307, "/")
        cookie = entered.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=lax"} <= set(cookie.split("; "))
        return cookie.partition(";")[0]

    def websocket(
        self,
        cookie: str,
        *,
        origin: str = "",
        subprotocols: Sequence[str] = ("chat",),
        path: str = "/echo",
    ) -> ClientConnection:
        address = urlsplit(self.url)
        return connect(
            f"ws://{self.host}:{address.port}{path}",
            sock=socket.create_connection((address.hostname or "", address.port or 0)),
            origin=Origin(origin or f"http://{self.host}:{address.port}"),
            additional_headers={"Cookie": cookie},
            subprotocols=[Subprotocol(subprotocol) for subprotocol in subprotocols] or None,
            proxy=None,
        )


@pytest.fixture
def settings(settings: ServerSettings) -> ServerSettings:
    return replace(settings, secret_key="a key of this test")


@pytest.fixture
def site(
    sessions: SessionFactory, cast: Cast, settings: ServerSettings, server_app: ASGIApp
) -> Iterator[Site]:
    with sessions.begin() as session:
        attempt = start(session, cast, ports=[Port(container_port=PORT, name="web")])
        report(session, attempt, ObservedState.RUNNING)
        job = attempt.job
    with Serving(JOB_SERVER) as job_url, Serving(server_app) as url:
        endpoint = job_url.removeprefix("http://")
        site = Site(url, job, attempt, settings, sessions, endpoint)
        agent = threading.Thread(target=site.serve_tunnel)
        agent.start()
        yield site
        site.stop.set()
        agent.join()


def test_requests_reach_the_jobs_server_without_the_pass_and_its_cookies_stay_its_own(
    site: Site, cast: Cast
) -> None:
    cookie = site.cookie_of(cast.alice)
    answer = site.get("/tree/a%20b?x=1", cookie=f"{cookie}; own=1", data=b"y" * 3 * MEBIBYTE)
    seen = {"host": site.host, "cookie": "own=1", "x-forwarded-proto": "http"}
    assert (answer.status_code, answer.text) == (200, f"POST /tree/a b {3 * MEBIBYTE} {seen}")
    assert answer.headers["Set-Cookie"] == "own=1; Path=/"
    assert "Clear-Site-Data" not in answer.headers
    assert "'cookie': ''" in site.get("/", cookie=cookie).text  # connections are shared, not these
    assert site.asked[0] == (site.attempt.id, PORT)


def test_websockets_and_large_downloads_share_the_tunnel(site: Site, cast: Cast) -> None:
    cookie = site.cookie_of(cast.alice)
    sizes: list[int] = []
    # A reader that takes nothing must not stop the others.
    slow = site.open("/large", cookie)
    download = threading.Thread(
        target=lambda: sizes.append(len(site.get("/large", cookie=cookie).content))
    )
    with site.websocket(cookie) as first, site.websocket(cookie, subprotocols=()) as second:
        assert (first.subprotocol, second.subprotocol) == ("chat", None)
        download.start()
        for number in range(20):
            for websocket in (first, second):
                websocket.send(str(number))
            assert [websocket.recv(timeout=60) for websocket in (first, second)] == [
                f"echo {number}"
            ] * 2
    download.join()
    assert sizes == [32 * MEBIBYTE]
    assert len(slow.content) == 32 * MEBIBYTE


def test_only_users_who_control_the_job_open_it(site: Site, cast: Cast) -> None:
    opened = site.get("/tree")
    assert opened.status_code == 303
    assert opened.headers["Location"].endswith(f"/jobs/{site.job.id}/open?port={PORT}")
    assert site.get("/tree", cookie="vedette-job=forged").status_code == 303
    assert site.get("/.vedette/enter?ticket=forged").status_code == 303
    for user, status in ((cast.bob, 403), (cast.charlie, 404), (cast.olivia, 403)):
        assert site.get("/", cookie=site.cookie_of(user)).status_code == status
    alice = site.cookie_of(cast.alice)
    other = site.host.replace(str(PORT), "9999")
    assert site.get("/", cookie=alice, host=other).status_code == 303
    assert site.asked == []


def test_rights_are_read_once_in_a_while_and_their_loss_ends_what_is_open(
    site: Site, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie, readings = site.cookie_of(cast.alice), []
    with site.sessions() as session:
        engine = session.get_bind()
    event.listen(
        engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_: readings.append("login_sessions" in statement),
    )
    for _ in range(10):
        assert site.get("/", cookie=cookie).status_code == 200
    assert sum(readings) == 1
    monkeypatch.setattr("access.jobs.web_ui_rights.RIGHTS_SECONDS", 0.2)
    with site.websocket(cookie) as socket_to_job, site.open("/endless", cookie) as endless:
        with site.sessions.begin() as session:
            session.execute(delete(LoginSession))
        with pytest.raises(ConnectionClosed):
            socket_to_job.recv(timeout=60)
        assert socket_to_job.close_code == 1008
        with pytest.raises(requests.RequestException):
            assert list(endless.iter_content(1))
    assert site.get("/", cookie=cookie).status_code == 303


def test_websockets_of_other_sites_and_without_a_session_are_rejected(
    site: Site, cast: Cast
) -> None:
    cookie = site.cookie_of(cast.alice)
    port = urlsplit(site.url).port
    for given_cookie, origin in (
        (cookie, "https://evil.example"),
        (cookie, "null"),
        (cookie, f"https://{site.host}:{port}"),
        (cookie, f"http://{site.host.replace(str(PORT), '9999')}:{port}"),
        ("", ""),
        ("vedette-job=x", ""),
    ):
        with pytest.raises(InvalidStatus):
            site.websocket(given_cookie, origin=origin)
    assert site.asked == []


def test_requests_of_other_jobs_and_sites_do_not_reach_the_job(site: Site, cast: Cast) -> None:
    cookie, other = site.cookie_of(cast.alice), site.host.replace(str(PORT), "9999")
    script = {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    frame = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    tab = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    refused: list[tuple[bytes | None, dict[str, str]]] = [
        *((b"x", {"Origin": origin}) for origin in ("null", "https://evil.example")),
        *((b"x", {"Origin": f"http://{host}"}) for host in (other, f"{site.host}:8080")),
        (None, {"Origin": f"https://{site.host}"}),
        *(
            (None, {"Sec-Fetch-Site": sender, **kind})
            for sender in ("same-site", "cross-site", "none", "")
            for kind in (script, {})
        ),
        *((None, {"Sec-Fetch-Site": sender, **frame}) for sender in ("same-site", "cross-site")),
        (b"x", {"Sec-Fetch-Site": "cross-site", **tab}),
    ]
    for data, headers in refused:
        answer = site.get("/", cookie=cookie, data=data, headers=headers)
        assert answer.status_code == 403, headers
    ticket = site.ticket_of(cast.alice)
    image = site.get(
        f"/.vedette/enter?ticket={ticket}", headers={"Sec-Fetch-Site": "same-site", **script}
    )
    assert image.status_code == 403
    assert site.asked == []
    for data, headers in (
        (b"x", {"Origin": f"http://{site.host}", "Sec-Fetch-Site": "same-origin", **script}),
        (None, {"Sec-Fetch-Site": "cross-site", **tab}),
        (None, {"Sec-Fetch-Site": "none", **tab}),
    ):
        assert site.get("/", cookie=cookie, data=data, headers=headers).status_code == 200


def test_a_ticket_works_once_and_a_port_has_one_origin(site: Site, cast: Cast) -> None:
    address = f"/.vedette/enter?ticket={site.ticket_of(cast.alice)}"
    assert site.get(address).status_code == 307
    second = site.get(address)
    assert (second.status_code, "Set-Cookie" in second.headers) == (303, False)
    cookie = site.cookie_of(cast.alice)
    for label in (f"0{PORT}", f"+{PORT}", f"{PORT}.", ""):
        host = site.host.replace(f"-{PORT}", f"-{label}")
        assert site.get("/", cookie=cookie, host=host).status_code == 404
    assert site.get("/", cookie=cookie, host=f"{site.host}.").status_code == 404
    assert site.asked == []
    assert site.get("/", cookie=f"vedette-job=planted; {cookie}").status_code == 200


def test_a_job_that_ended_a_closed_port_and_a_lost_agent_have_a_clear_page(
    site: Site, cast: Cast
) -> None:
    cookie = site.cookie_of(cast.alice)
    site.endpoint = "127.0.0.1:1"
    closed = site.get("/", cookie=cookie)
    assert (closed.status_code, closed.headers["Refresh"]) == (503, "5")
    assert f"port {PORT}" in closed.text
    assert f"/jobs/{site.job.id}" in closed.text
    with site.sessions.begin() as session:
        report(session, session.get_one(Attempt, site.attempt.id), ObservedState.SUCCEEDED)
    ended = site.get("/", cookie=cookie)
    assert (ended.status_code, "Refresh" in ended.headers) == (503, False)
    assert "succeeded" in ended.text


def test_a_lost_tunnel_is_requested_by_the_desired_state(
    site: Site, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookie = site.cookie_of(cast.alice)
    assert site.get("/", cookie=cookie).status_code == 200
    agent = {"Authorization": "Bearer vda_acme_dgx-01"}
    address = f"{site.url}/agent/v1/desired"
    site.stop.set()
    monkeypatch.setattr("access.jobs.tunnels.CONNECT_SECONDS", 0.5)
    eventually(lambda: "not connected" in site.get("/", cookie=cookie).text)
    assert requests.get(address, headers=agent, timeout=60).json()["wants_tunnel"]
    site.stop.clear()
    reconnected = threading.Thread(target=site.serve_tunnel)
    reconnected.start()
    eventually(lambda: site.get("/", cookie=cookie).status_code == 200)
    site.stop.set()
    reconnected.join()


def test_a_tunnel_that_is_to_move_is_told_whether_somebody_uses_it(site: Site, cast: Cast) -> None:
    with site.websocket(site.cookie_of(cast.alice)) as websocket:
        websocket.send("1")
        assert websocket.recv(timeout=60) == "echo 1"
        eventually(lambda: site.is_idle is False)
    eventually(lambda: site.is_idle is True)


def test_only_the_jobs_agent_opens_a_tunnel(site: Site) -> None:
    with pytest.raises(OSError, match="refuses the tunnel"):
        serve_tunnel(
            site.url,
            headers={"Authorization": "Bearer vda_nobody"},
            context=None,
            find_endpoint=site.find_endpoint,
            execute=nothing_runs,
            should_go_on=lambda: True,
        )
