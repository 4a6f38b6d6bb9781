"""Usual posts of samples are answered without the application, as the application answers them."""

import gzip
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from cli.serving_process import bounded_config
from core.clock import NS_PER_SECOND, to_ns
from core.db import SessionFactory
from core.settings import ServerSettings
from protocol.relays import TOKEN_HEADER
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from tests.cast import Cast, FrozenClock, make_appliance
from tests.fixtures.serving import Serving

TOKEN = b"Authorization: Token vda_acme_dgx-01\r\n"
LINES = b"gpu,gpu=0 power_watts=250.5,fan_percent=40i\ncpu usage_percent=4\n"
OWN = frozenset({"date", "x-request-id"})


class _Counted:
    """An application that counts the requests that it answers."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - a `Watched`
        self._app = app
        self.begin, self.begun_paths = app.begin, app.begun_paths
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1
        await self._app(scope, receive, send)


@pytest.fixture
def app(server_app: ASGIApp, sessions: SessionFactory, cast: Cast) -> _Counted:
    with sessions.begin() as session:
        make_appliance(session, cast.acme, "dgx-01")
    return _Counted(server_app)


@pytest.fixture
def port(app: _Counted, settings: ServerSettings) -> Iterator[int]:
    limits = ConnectionLimits.of(settings, max_connections=100)
    protocol = partial(BoundedProtocol, connections=Connections(limits))
    config = bounded_config(app, host="127.0.0.1", port=0, limits=limits, http=protocol)
    with Serving(config) as url:
        yield int(url.rpartition(":")[2])


def post(
    body: bytes = LINES,
    *,
    headers: bytes = TOKEN,
    query: bytes = b"",
    line: bytes = b"POST /api/v2/write%b HTTP/1.1",
    length: int | None = None,
) -> bytes:
    head = (line % query if b"%b" in line else line) + b"\r\nHost: portal\r\n" + headers
    size = len(body) if length is None else length
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, size, body)


class _Client:
    """A connection that sends requests and reads their answers."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> tuple[str, list[tuple[str, str]], bytes]:
        """Return status line, headers but those of each answer, and body."""
        status = self._reader.readline().decode().strip()
        headers = []
        while (line := self._reader.readline().decode().strip()) != "":
            name, _, value = line.partition(": ")
            headers.append((name, value))
        size = int(dict(headers).get("content-length", 0))
        assert dict(headers).keys() >= OWN
        return status, [pair for pair in headers if pair[0] not in OWN], self._reader.read(size)

    def is_closed(self) -> bool:
        return self._reader.read(1) == b""

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


@pytest.fixture
def client(port: int) -> Iterator[_Client]:
    client = _Client(port)
    yield client
    client.close()


GZIP = TOKEN + b"Content-Encoding: gzip\r\n"
REQUESTS = {
    "usual": post(),
    "compressed": post(gzip.compress(LINES), headers=GZIP),
    "in several members": post(gzip.compress(LINES) * 2, headers=GZIP),
    "with a byte order mark": post(b"\xef\xbb\xbf" + LINES),
    "in seconds": post(b"cpu usage_percent=4 %d\n" % 1_000, query=b"?precision=s"),
    "late": post(b"LATE"),
    "with text": post(b'system uptime_format="1 day"\n'),
    "with a bad line": post(LINES + b"oops\n"),
    "with a bad number": post(b"cpu usage_percent=x\n" + LINES),
    "of an unknown precision": post(query=b"?precision=d"),
    "empty": post(b""),
    "not gzip": post(headers=GZIP),
    "cut gzip": post(gzip.compress(LINES)[:-9], headers=GZIP),
    "of an unknown encoding": post(headers=TOKEN + b"Content-Encoding: br\r\n"),
    "too large": post(gzip.compress(b"x" * 50_000_000), headers=GZIP),
    "without a token": post(headers=b""),
    "with a wrong token": post(headers=b"Authorization: Token vda_wrong\r\n"),
    "with a foreign scheme": post(headers=b"Authorization: Basic YTpi\r\n"),
    "with the headers of a proxy": post(
        headers=TOKEN + b"X-Vedette-Client-Verify: SUCCESS\r\nX-Vedette-Proxy: x\r\n"
    ),
    "of an unknown relay": post(headers=TOKEN + TOKEN_HEADER.encode() + b": x\r\n"),
    "by a wrong method": post(line=b"PUT /api/v2/write HTTP/1.1"),
    "through a proxy": post(headers=TOKEN + b"X-Forwarded-For: 192.0.2.1\r\n"),
}
AT_ONCE = frozenset(
    {
        "usual",
        "compressed",
        "in several members",
        "with a byte order mark",
        "through a proxy",
    }
)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_second_request_of_a_connection_is_answered_as_the_first(
    name: str, app: _Counted, client: _Client, clock: FrozenClock
) -> None:
    late = b"cpu usage_percent=4 %d\n" % (to_ns(clock()) - 90 * NS_PER_SECOND)
    request = post(late) if name == "late" else REQUESTS[name]

    answers = []
    for _ in range(3):
        client.send(request)
        answers.append(client.read())

    assert answers[1:] == answers[:1] * 2
    assert app.requests == (1 if name in AT_ONCE else 3)


def test_a_body_that_comes_later_is_awaited_by_the_application(
    app: _Counted, client: _Client
) -> None:
    client.send(post())
    first = client.read()
    head, _, body = post().partition(b"\r\n\r\n")

    client.send(head + b"\r\n\r\n" + body[:10])
    while app.requests < 2:
        pass
    client.send(body[10:])

    assert client.read() == first


def test_pipelined_requests_are_answered_in_their_order(app: _Counted, client: _Client) -> None:
    client.send(post() + post() + post(b"oops\n") + post())

    statuses = [client.read()[0].split()[1] for _ in range(4)]

    assert statuses == ["204", "204", "400", "204"]
    assert app.requests


@pytest.mark.parametrize("line", [b"POST /api/v2/write HTTP/1.0", b"POST /api/v2/write HTTP/1.1"])
def test_a_connection_is_closed_as_its_client_asks(
    line: bytes, app: _Counted, client: _Client
) -> None:
    client.send(post())
    client.read()

    client.send(post(line=line, headers=TOKEN + b"Connection: close\r\n"))
    status, headers, _ = client.read()

    assert (status, headers[-1]) == ("HTTP/1.1 204 No Content", ("connection", "close"))
    assert client.is_closed()
    assert app.requests == 1


def test_a_chunked_request_is_answered_by_the_application(app: _Counted, client: _Client) -> None:
    client.send(post())
    first = client.read()
    head = post(headers=TOKEN + b"Transfer-Encoding: chunked\r\n").partition(b"Content-L")[0]

    client.send(b"%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, len(LINES), LINES))

    assert client.read() == first
    assert app.requests == 2
