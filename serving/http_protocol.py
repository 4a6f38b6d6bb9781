"""uvicorn's HTTP protocol with deadlines and bounds, for a server on the open internet.

A connection is *receiving* from the first byte of a request to its end. It is closed if its headers
or its body come too slowly, if it reads its response too slowly, or if it is idle for too long.
While the application works, as in a long poll, nothing is due. Deadlines are checked about once a
second by one loop over all connections, which costs less than a timer for each request.

Source: MinRequestBodyDataRate of ASP.NET's Kestrel, mod_reqtimeout of Apache; uvicorn has neither
(docs/decisions/0008-http-limits.md).
"""

import logging
import math
import time
from asyncio import AbstractEventLoop, TimerHandle, Transport, get_running_loop
from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from ipaddress import ip_address
from threading import Event
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from core.networks import Network, is_within
from core.settings import ServerSettings
from serving.safe_headers import HEADER_LINES
from tenants.users.throttling import network_of

log = logging.getLogger(__name__)

# Of a request line with headers; of a body's chunk headers and trailers this and a multiple of it.
MAX_HEAD_BYTES = 64 * 1024
CHUNK_OVERHEAD = 8
# Requests that are sent before earlier ones are answered. Browsers and agents send none.
MAX_PIPELINED = 16
# The rest of a request, such as a body that is too large, is read this long after the response.
LINGER_SECONDS = 5.0
_LONGEST_SWEEP_SECONDS = 1.0
_SLICE_SECONDS = 0.001
_LOG_EVERY_SECONDS = 60.0
_UNCOMMON_HEADERS = frozenset({b"expect", b"transfer-encoding", b"upgrade", b"trailer"})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The deadlines and bounds; `proxies` may have any number of connections each."""

    header_seconds: float
    body_seconds: float
    body_bytes_per_second: float
    write_seconds: float
    idle_seconds: float
    max_connections: int
    max_per_address: int
    proxies: tuple[Network, ...]

    @classmethod
    def of(cls, settings: ServerSettings, *, max_connections: int) -> "ConnectionLimits":
        """Return the limits in the settings; `max_connections` is what the system allows."""
        return cls(
            header_seconds=settings.header_timeout_seconds,
            body_seconds=settings.body_timeout_seconds,
            body_bytes_per_second=settings.min_body_bytes_per_second,
            write_seconds=settings.write_timeout_seconds,
            idle_seconds=settings.keep_alive_seconds,
            max_connections=max_connections,
            max_per_address=settings.max_connections_per_address,
            proxies=settings.proxy_networks,
        )


class Connections:
    """The open connections: counted, and closed when a deadline has passed."""

    def __init__(self, limits: ConnectionLimits, *, draining: Event | None = None) -> None:
        self.limits = limits
        # Once it is set, each response ends its connection.
        self.draining = draining or Event()
        self._networks: dict[BoundedProtocol, str] = {}
        self._per_network: Counter[str] = Counter()
        # Those that have sent no request yet, the oldest first.
        self._silent: dict[BoundedProtocol, None] = {}
        self._timer: TimerHandle | None = None
        self._logged_at = -math.inf
        shortest = (limits.header_seconds, limits.body_seconds, limits.write_seconds)
        self._sweep_seconds = min(_LONGEST_SWEEP_SECONDS, min(shortest) / 4)

    def admit(self, connection: "BoundedProtocol", transport: Transport) -> bool:
        """Count a new connection; return False if there are too many.

        At the total bound, the oldest connection that has sent no request makes room.
        """
        peer = transport.get_extra_info("peername")
        network = self._network(str(peer[0])) if peer else ""
        if network and self._per_network[network] >= self.limits.max_per_address:
            self._warn(f"{network} has {self.limits.max_per_address} connections, rejecting more")
            return False
        if len(self._networks) >= self.limits.max_connections:
            self._warn(f"all {self.limits.max_connections} connections are in use")
            silent = next(iter(self._silent), None)
            if silent is None:
                return False
            self.forget(silent)
            silent.abort()
        self._networks[connection] = network
        self._per_network[network] += 1
        self._silent[connection] = None
        if self._timer is None:
            self._timer = get_running_loop().call_later(self._sweep_seconds, self._sweep)
        return True

    def on_request(self, connection: "BoundedProtocol") -> None:
        """Note that a connection has sent the headers of a request."""
        self._silent.pop(connection, None)

    def forget(self, connection: "BoundedProtocol") -> None:
        """Stop counting a connection; a second time does nothing."""
        self._silent.pop(connection, None)
        network = self._networks.pop(connection, None)
        if network is not None:
            self._per_network[network] -= 1
            if not self._per_network[network]:
                del self._per_network[network]

    def _network(self, host: str) -> str:
        """Return what counts as one address; "" for a proxy, which limits its clients itself."""
        address = ip_address(host.partition("%")[0])
        return "" if is_within(address, self.limits.proxies) else network_of(host)

    def _sweep(self, unchecked: "list[BoundedProtocol] | None" = None) -> None:
        """Check all connections, in slices: those of an attack may all be due at once."""
        loop = get_running_loop()
        now = loop.time()
        unchecked = list(self._networks) if unchecked is None else unchecked
        while unchecked and loop.time() - now < _SLICE_SECONDS:
            connection = unchecked.pop()
            if connection in self._networks:
                connection.check(now)
        if unchecked:
            self._timer = loop.call_later(0, self._sweep, unchecked)
        else:
            has_connections = bool(self._networks)
            self._timer = (
                loop.call_later(self._sweep_seconds, self._sweep) if has_connections else None
            )

    def _warn(self, problem: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _LOG_EVERY_SECONDS:
            self._logged_at = now
            log.warning("%s; see max_connections and max_connections_per_address", problem)


class _Phase(Enum):
    """The data that the server receives of a connection."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


_IDLE, _HEAD, _BODY = _Phase.IDLE, _Phase.HEAD, _Phase.BODY


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 whose connections have deadlines."""

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*args, **options)
        self.loop: AbstractEventLoop
        self._connections = connections
        self._limits = connections.limits
        self._phase = _IDLE
        # The deadline of all but a body, whose deadline depends on its size.
        self._due = self._write_due = math.inf
        self._is_silent = True
        self._served: RequestResponseCycle | None = None
        app = self.config.loaded_app
        self._begin: Any = getattr(app, "begin", None)
        self._begun_paths = getattr(app, "begun_paths", ())
        # A request that came as far as its headers, and may be answered without the application.
        self._held: RequestResponseCycle | None = None
        # Of the present request: bytes since its start, and those of its body.
        self._raw_bytes = self._body_bytes = 0
        self._body_since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Count the connection, or refuse it."""
        if self._connections.admit(self, transport):
            self.begin(transport)
            return
        self.transport = transport
        transport.write(_reply("429 Too Many Requests", "Too many connections. Use fewer."))
        transport.close()

    def begin(self, transport: Transport) -> None:
        """Expect the first request."""
        super().connection_made(transport)
        self._due = self.loop.time() + self._limits.header_seconds

    def abort(self) -> None:
        """Close the connection without waiting for the client."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection.

        uvicorn tells the last request of the pipeline only: the one that is served would write on,
        and each time log an error.
        """
        self._connections.forget(self)
        if self._served is not None:
            self._served.disconnected = True
            self._served.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - uvicorn's
        # The first request of a connection shows the application what is common to all.
        may_hold = self._served is not None and cycle.scope["path"] in self._begun_paths
        self._served = cycle
        can_write = not self.flow.write_paused
        if may_hold and can_write and cycle.more_body and _is_usual(cycle):
            self._held = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def _answer_at_once(self, cycle: RequestResponseCycle) -> None:
        """Let a request be answered without the application, or by it."""
        try:
            is_begun = self._begin(cycle.scope, bytes(cycle.body), partial(self._on_done, cycle))
        except Exception:
            # It would leave the parser as a bad request: the application shows and answers it.
            log.exception("a request was not answered at once")
            is_begun = False
        if not is_begun:
            super()._start_asgi_task(cycle, self.app)

    def _on_done(
        self, cycle: RequestResponseCycle, headers: tuple[tuple[bytes, bytes], ...] | None
    ) -> None:
        if headers is None:
            super()._start_asgi_task(cycle, self.app)
            return
        cycle.response_started = cycle.response_complete = True
        if cycle.disconnected:
            return
        lines = [b"HTTP/1.1 204 No Content\r\n"]
        for name, value in (*self.server_state.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        self.transport.write(b"".join(lines))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Parse what came in, up to the bounds; most requests come in one piece."""
        before = self._phase
        if before is _IDLE:
            self._phase, self._raw_bytes = _HEAD, 0
        self._raw_bytes += len(data)
        super().data_received(data)
        if self._held is not None:  # its body is not here yet
            held, self._held = self._held, None
            super()._start_asgi_task(held, self.app)
        phase = self._phase
        if phase is _IDLE:
            return
        if phase is not before:
            self._body_since = now = self.loop.time()
            self._due = now + self._limits.header_seconds
        if self._raw_bytes > MAX_HEAD_BYTES + CHUNK_OVERHEAD * self._body_bytes:
            self._reject("431 Request Header Fields Too Large", "The headers are too large.")

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no valid request."""
        self._reject("400 Bad Request", msg)

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the WebSocket protocol, which pings its clients."""
        self._connections.forget(self)
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        """Expect the body."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("not one Host header")
        if self._is_silent:
            self._is_silent = False
            self._connections.on_request(self)
        self._phase, self._body_bytes = _BODY, 0
        super().on_headers_complete()
        if self.cycle is not None and self._connections.draining.is_set():
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Count what extends the deadline."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Let the application work without a deadline."""
        super().on_message_complete()
        self._phase, self._due = _IDLE, math.inf
        if self._held is not None:
            held, self._held = self._held, None
            self._answer_at_once(held)
        if self.cycle is not None and self.cycle.response_complete:  # none before a WebSocket
            self._due = self.loop.time() + self._limits.idle_seconds

    def on_response_complete(self) -> None:
        """Go on as uvicorn does, without its timer for idle connections."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._phase is _IDLE:
            self._due = self.loop.time() + self._limits.idle_seconds
        else:
            self._due = self.loop.time() + LINGER_SECONDS

    def pause_writing(self) -> None:
        """Give the client time to read."""
        super().pause_writing()
        self._write_due = self.loop.time() + self._limits.write_seconds

    def resume_writing(self) -> None:
        """End the client's time to read."""
        super().resume_writing()
        self._write_due = math.inf

    def check(self, now: float) -> None:
        """Close the connection if a deadline has passed."""
        if now >= self._write_due:
            self.abort()
        elif self.transport.is_closing():
            # The data in the buffer must go out, too.
            self._phase = _IDLE
            self._due = min(self._due, now + self._limits.write_seconds)
            if now >= self._due:
                self.abort()
        elif self._phase is _BODY and not self.cycle.response_complete:
            self._check_body(now)
        elif now >= self._due:
            self._on_due(now)

    def _check_body(self, now: float) -> None:
        expected_seconds = self._body_bytes / self._limits.body_bytes_per_second
        if self.flow.read_paused:
            # The application is slower than the client.
            self._body_since = now - expected_seconds
        elif now >= self._body_since + self._limits.body_seconds + expected_seconds:
            self._on_due(now)

    def _on_due(self, now: float) -> None:
        is_answered = self.cycle is None or self.cycle.response_complete
        if self._phase is not _IDLE and (is_answered or not self.cycle.response_started):
            self._reject("408 Request Timeout", "The request came too slowly.")
        elif is_answered:
            self.transport.close()
        else:
            self.abort()
        self._due = now + LINGER_SECONDS

    def _reject(self, status: str, problem: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_reply(status, problem))
            self.transport.close()


def _is_usual(cycle: RequestResponseCycle) -> bool:
    """Return whether a request is a POST with nothing uncommon but, perhaps, its body."""
    names = {name for name, _ in cycle.scope["headers"]}
    return (
        cycle.scope["method"] == "POST"
        and b"content-length" in names
        and names.isdisjoint(_UNCOMMON_HEADERS)
    )


def _reply(status: str, problem: str) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 5\r\n"
        f"{HEADER_LINES.decode()}"
        f"content-length: {len(problem)}\r\nconnection: close\r\n\r\n{problem}"
    ).encode()
