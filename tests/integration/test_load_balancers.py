"""nginx and HAProxy with the configurations that are shipped, before the portal and before servers
that break.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from tests.deployment import make_deployment, serving
from tests.fixtures.certificates import Authority
from tests.fixtures.haproxy import shipped_haproxy
from tests.fixtures.nginx import PROXY_SECRET, shipped_nginx
from tests.integration.test_agent_certificates import HEADERS, SETTINGS, Gateway, Host

REQUESTS = 12
FRONTS = {"nginx": shipped_nginx, "haproxy": shipped_haproxy}


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Print nothing when a health check ends its connection."""


@dataclass
class Server:
    """Counts requests by path. It breaks the connection after each, unless it is sound."""

    is_sound: bool
    is_ready: bool = True
    paths: list[str] = field(default_factory=list)

    def serve(self, stack: ExitStack) -> int:
        """Listen until the stack ends; return the port."""
        state = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path == "/readyz":
                    self.reply(200 if state.is_ready else 503)
                    return
                state.paths.append(self.path)
                if state.is_sound:
                    self.reply(200)
                else:
                    self.close_connection = True

            do_GET = do_POST = handle_request  # noqa: N815 - names of http.server

            def reply(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                """Print nothing."""

        server = stack.enter_context(_Quiet(("127.0.0.1", 0), Handler))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        return server.server_port


@dataclass(frozen=True, slots=True)
class Balanced:
    """A load balancer before two servers."""

    url: str
    authority: Authority
    servers: tuple[Server, Server]

    def ask(self, method: str, path: str) -> int:
        """Return the status of a request over a new connection."""
        ca = str(self.authority.certificate)
        return requests.request(method, f"{self.url}{path}", verify=ca, timeout=60).status_code


@pytest.fixture(params=sorted(FRONTS))
def balanced(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Balanced]:
    authority = Authority(tmp_path / "certificates", "authority")
    deployment = make_deployment(tmp_path / "deployment")
    servers = Server(is_sound=False), Server(is_sound=True)
    with ExitStack() as stack:
        ports = [server.serve(stack) for server in servers]
        front = FRONTS[request.param](
            tmp_path / "front",
            deployment=deployment,
            server=authority.issue("server"),
            upstreams={"vedette": ports, "vedette_access": ports},
        )
        yield Balanced(stack.enter_context(front), authority, servers)


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v2/write"])
def test_a_post_that_may_have_been_handled_is_not_sent_to_another_server(
    balanced: Balanced, path: str
) -> None:
    statuses = [balanced.ask("POST", f"{path}?n={number}") for number in range(REQUESTS)]

    seen = [path for server in balanced.servers for path in server.paths]
    assert sorted(seen) == sorted({f"{path}?n={number}" for number in range(REQUESTS)})
    assert set(statuses) == {200, 502}


def test_a_get_is_answered_by_a_sound_server(balanced: Balanced) -> None:
    statuses = [balanced.ask("GET", f"/jobs?n={number}") for number in range(REQUESTS)]

    assert set(statuses) == {200}
    assert balanced.servers[0].paths


def test_haproxy_sends_nothing_to_a_server_that_is_not_ready(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates", "authority")
    deployment = make_deployment(tmp_path / "deployment")
    servers = Server(is_sound=True, is_ready=False), Server(is_sound=True)
    with ExitStack() as stack:
        ports = [server.serve(stack) for server in servers]
        url = stack.enter_context(
            shipped_haproxy(
                tmp_path / "front",
                deployment=deployment,
                server=authority.issue("server"),
                upstreams={"vedette": ports, "vedette_access": ports},
            )
        )
        balanced = Balanced(url, authority, servers)
        threading.Event().wait(2.5)  # two health checks
        statuses = {balanced.ask("POST", "/api/v1/jobs") for _ in range(REQUESTS)}

    assert statuses == {200}
    assert servers[0].paths == []


@pytest.fixture(scope="module")
def appliances(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    """Two appliances with certificates, of a portal behind HAProxy."""
    folder = tmp_path_factory.mktemp("gateway")
    authority = Authority(folder / "certificates", "authority")
    deployment = make_deployment(folder / "deployment")
    with (
        serving(deployment, environ=SETTINGS),
        shipped_haproxy(
            folder / "haproxy", deployment=deployment, server=authority.issue("server")
        ) as url,
    ):
        gateway = Gateway(deployment, url, authority)
        first, second = (gateway.enroll(folder / name, name) for name in ("dgx-1", "dgx-2"))
        yield first, second


def test_haproxy_passes_the_certificate_of_an_agent_on(appliances: tuple[Host, Host]) -> None:
    dgx, _other = appliances
    answer = dgx.ask(certificate=dgx.certificate)

    assert answer.status_code == 204, answer.text
    assert dgx.ask(secret=dgx.secret).json()["reason"] == "certificate_needed"


def test_haproxy_reports_a_certificate_of_another_authority(appliances: tuple[Host, Host]) -> None:
    dgx, _other = appliances
    forged = dgx.gateway.authority.issue("forged")
    answer = dgx.ask(certificate=(str(forged.certificate), str(forged.key)), secret=dgx.secret)

    assert answer.status_code == 401
    assert answer.json()["reason"] == "bad_certificate"


def test_haproxy_replaces_headers_of_clients(appliances: tuple[Host, Host]) -> None:
    dgx, other = appliances
    pem = quote(other.certificate.read_text(), safe="")
    headers = dict(zip(HEADERS, (pem, "SUCCESS", PROXY_SECRET), strict=True))

    assert dgx.ask(headers=headers).status_code == 401
    assert dgx.ask(headers=headers, certificate=dgx.certificate).status_code == 204
