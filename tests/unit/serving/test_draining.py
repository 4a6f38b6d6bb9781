"""A server that stops answers everything that a load balancer still sends it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from core.settings import ServerSettings
from serving.draining import DrainingServer
from serving.http_protocol import BoundedProtocol, ConnectionLimits, Connections
from tests.fixtures.polling import eventually

DRAIN_SECONDS = 0.5


@dataclass
class Running:
    """A server in a thread, and its port."""

    server: DrainingServer
    draining: threading.Event
    port: int

    def stop(self) -> None:
        self.server.should_exit = True
        assert self.draining.wait(10)

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=10)

    def refuses(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) != 0


@pytest.fixture
def running() -> Iterator[Running]:
    draining = threading.Event()
    limits = ConnectionLimits.of(ServerSettings(), max_connections=100)
    protocol: Any = partial(BoundedProtocol, connections=Connections(limits, draining=draining))
    config = uvicorn.Config(
        PlainTextResponse("here"),
        interface="asgi3",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=1,
        http=protocol,
    )
    server = DrainingServer(config, draining=draining, drain_seconds=DRAIN_SECONDS)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    eventually(lambda: server.started, every_seconds=0.002)
    yield Running(server, draining, listener.getsockname()[1])
    server.should_exit = True
    thread.join(timeout=60)
    assert not thread.is_alive()


def get(connection: HTTPConnection) -> str | None:
    """Return what a response says of its connection."""
    connection.request("GET", "/")
    response = connection.getresponse()
    assert response.read() == b"here"
    return response.getheader("connection")


def test_connections_go_on_until_the_server_stops(running: Running) -> None:
    with closing(running.connection()) as connection:
        assert get(connection) is None
        assert get(connection) is None


def test_a_server_that_stops_accepts_connections_for_a_while_and_ends_each_with_its_response(
    running: Running,
) -> None:
    with closing(running.connection()) as before, closing(running.connection()) as after:
        get(before)
        running.stop()

        assert get(after) == "close"
        assert get(before) == "close"


def test_an_idle_connection_is_answered_when_new_ones_are_refused(running: Running) -> None:
    with closing(running.connection()) as idle:
        get(idle)
        running.stop()
        eventually(running.refuses, within_seconds=10, every_seconds=0.01)

        assert get(idle) == "close"
