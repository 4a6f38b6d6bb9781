"""Headers of all answers of the server: of every route and status, with and without TLS."""

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPResponse
from pathlib import Path

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.routing import Route

from access.app import create_access_app
from cli.asgi import server_config
from cli.backend import Backend
from core.db import SessionFactory
from core.settings import ServerSettings
from tenants.users.sightings import Sightings
from tests.cast import Cast
from tests.fixtures.certificates import Authority
from tests.fixtures.serving import Serving
from timeseries.store import Store

PARAMETER = re.compile("<[^>]*>")
AGENT = b"Authorization: Bearer vda_acme_dgx-01\r\n"
UPGRADE = (
    b"GET /agent/v1/tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
# What is refused or answered before an application sees it.
REFUSALS = (
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET /login HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET /health HTTP/1.0\r\n\r\n", 200),
    (b"nonsense\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431),
    (b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
    (b"POST /api/v2/write HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 401),
    (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (UPGRADE, 403),
)
CACHED = re.compile("/install|/static/|/dashboards/_dash-component|/dashboards/assets/")


class Listener:
    """A running server, to which requests are sent byte by byte."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self._port = int(url.rpartition(":")[2])
        self._context = context

    def send(self, request: bytes, method: str = "GET") -> HTTPResponse:
        connection: socket.socket = socket.create_connection(("127.0.0.1", self._port), 60)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_hostname="127.0.0.1")
        with connection:
            connection.sendall(request)
            response = HTTPResponse(connection, method=method)
            response.begin()
            return response

    def get(self, method: str, path: str, headers: bytes = b"") -> HTTPResponse:
        head = f"{method} {path} HTTP/1.1\r\nHost: portal.example\r\nConnection: close\r\n".encode()
        return self.send(head + headers + b"Content-Length: 2\r\n\r\n{}", method)


@pytest.fixture(params=["plain", "tls"])
def listener(
    *,
    request: pytest.FixtureRequest,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    shared_portal: Flask,
    cast: Cast,
    tmp_path: Path,
) -> Iterator[Listener]:
    assert cast
    assert shared_portal
    context = None
    if request.param == "tls":
        authority = Authority(tmp_path / "ca", "authority")
        pair = authority.issue("server")
        settings = replace(settings, tls_certificate_file=pair.certificate, tls_key_file=pair.key)
        context = ssl.create_default_context(cafile=str(authority.certificate))
    with Serving(server_config(Backend(settings, sessions, store, Sightings(sessions)))) as url:
        yield Listener(url, context)


def missing(response: HTTPResponse, path: str = "") -> list[str]:
    """Return the headers that an answer lacks, or should not have."""
    faults = [f"Server: {response.headers['Server']}"] if response.headers["Server"] else []
    if response.headers["X-Content-Type-Options"] != "nosniff":
        faults.append("nosniff")
    if "default-src" not in response.headers.get("Content-Security-Policy", ""):
        faults.append("Content-Security-Policy")
    if "no-store" not in response.headers.get("Cache-Control", "") and not CACHED.match(path):
        faults.append("Cache-Control")
    return faults


def requests_of_all_routes(access: Starlette, portal: Flask) -> list[tuple[str, str]]:
    """Return a method and a path of each route of the agent API and the portal."""
    requests = {
        (method, route.path)
        for route in access.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    requests |= {
        (method, PARAMETER.sub("0", rule.rule))
        for rule in portal.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    return sorted(requests | {("GET", "/api/v1/jobs/0/follow"), ("GET", "/api/v1/jobs/0/files")})


def test_every_route_has_the_headers_and_no_server(
    *,
    request: pytest.FixtureRequest,
    listener: Listener,
    settings: ServerSettings,
    sessions: SessionFactory,
    store: Store,
    shared_portal: Flask,
) -> None:
    """With TLS, each tenth route: below the listener all is the same."""
    faults: dict[str, list[str]] = {}
    statuses = set()
    access = create_access_app(settings=settings, sessions=sessions, store=store)
    routes = requests_of_all_routes(access, shared_portal)
    assert len(routes) > 250
    step = 10 if request.node.callspec.params["listener"] == "tls" else 1
    for method, path in routes[::step]:
        for headers in (b"", AGENT) if path.startswith(("/agent/", "/api/v2/")) else (b"",):
            # Long polls are not waited for.
            if path == "/agent/v1/desired" and headers:
                continue
            response = listener.get(method, path, headers)
            statuses.add(response.status)
            if missing_headers := missing(response, path):
                faults[f"{method} {path} {response.status}"] = missing_headers
    assert faults == {}
    assert {302, 401, 404} <= statuses
    assert step > 1 or {200, 204, 400} <= statuses


def test_short_refusals_have_the_headers(listener: Listener) -> None:
    for request_bytes, status in REFUSALS:
        response = listener.send(request_bytes)
        assert (response.status, missing(response)) == (status, []), request_bytes[:30]
