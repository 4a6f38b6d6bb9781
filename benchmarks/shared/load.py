"""Sends HTTP requests over many connections, and measures how fast they are answered.

One thread with an event loop, in a process of its own where its CPU time matters. Without a rate it
is a closed loop: each connection sends as soon as its last request is answered. With a rate it is
an open loop: requests are due by a schedule, and their delay counts from when they were due,
whatever the server or the driver did meanwhile. How late the driver itself was is counted apart.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.shared.bodies import read_bodies
from benchmarks.shared.document import BenchmarkError, milliseconds_of, rounded
from benchmarks.shared.servers import Server

REPLY_SECONDS = 120.0
MAX_REASONS = 5
_END_OF_HEAD = b"\r\n\r\n"


class Connection:
    """An HTTP/1.1 connection, which is opened anew when the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.reconnects = 0

    async def open(self) -> None:
        """Connect, if it is not open."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body of its answer.

        Servers close connections that were idle for long, and a request can cross the farewell: it
        is sent a second time.
        """
        try:
            return await self._exchange(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            self.reconnects += 1
            return await self._exchange(request)

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        await self.open()
        if self._reader is None or self._writer is None:
            raise ConnectionError("the connection was closed meanwhile")
        self._writer.write(request)
        head = (await self._reader.readuntil(_END_OF_HEAD)).lower()
        _, has_length, rest = head.partition(b"\r\ncontent-length:")
        length = int(rest.partition(b"\r\n")[0]) if has_length else 0
        return int(head[9:12]), await self._reader.readexactly(length)


def request_of(method: str, path: str, *, headers: str = "", body: bytes = b"") -> bytes:
    """Return an HTTP request; `headers` are lines that end in CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
    return b"%sContent-Length: %d\r\n\r\n%s" % (head.encode(), len(body), body)


@dataclass(slots=True)
class Tally:
    """The answers to requests, and the delays of those that succeeded; in seconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)
    reconnects: int = 0
    most_waiting: int = 0
    seconds: float = 0.0

    @property
    def refused(self) -> int:
        """The number of requests that were answered with an error, or not at all."""
        return sum(self.statuses.values()) - len(self.delays)


class Driver:
    """Sends requests over connections; `per_second` is the rate of an open loop."""

    def __init__(
        self,
        requests: Iterator[bytes],
        *,
        port: int,
        connections: int,
        per_second: float | None = None,
    ) -> None:
        self._requests = enumerate(requests)
        self._connections = [Connection(port) for _ in range(connections)]
        self._per_second = per_second
        self._began = 0.0
        self.tally = Tally()

    async def run(self) -> Tally:
        """Send all requests and wait for the answers; the clock starts with open connections."""
        for connection in self._connections:
            await connection.open()
        self._began = time.perf_counter()
        await asyncio.gather(*(self._work(connection) for connection in self._connections))
        self.tally.seconds = self._now()
        self.tally.reconnects = sum(connection.reconnects for connection in self._connections)
        return self.tally

    def _now(self) -> float:
        return time.perf_counter() - self._began

    async def _work(self, connection: Connection) -> None:
        for number, request in self._requests:
            since = await self._due(number)
            try:
                async with asyncio.timeout(REPLY_SECONDS):
                    status, body = await connection.send(request)
            except (OSError, EOFError) as error:
                status, body = 0, repr(error).encode()
                connection.close()
            self._note(since, status=status, body=body)
        connection.close()

    async def _due(self, number: int) -> float:
        """Wait until a request is due; return the time from which its delay counts."""
        now = self._now()
        if self._per_second is None:
            return now
        due = number / self._per_second
        self.tally.most_waiting = max(self.tally.most_waiting, int((now - due) * self._per_second))
        if due > now:
            await asyncio.sleep(due - now)
            self.tally.lateness.append(self._now() - due)
        return due

    def _note(self, since: float, *, status: int, body: bytes) -> None:
        tally = self.tally
        tally.statuses[status] += 1
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            tally.delays.append(self._now() - since)
        elif len(tally.reasons) < MAX_REASONS:
            tally.reasons.append(f"{status}: {body[:400].decode(errors='replace')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Posts:
    """Bodies of files that are posted to a server.

    Attributes:
        per_second: the rate of an open loop; None is a closed loop.
        count: stop after this many; None posts all.
    """

    server: Server
    bodies: Sequence[Path]
    connections: int
    per_second: float | None = None
    count: int | None = None

    def requests(self) -> Iterator[bytes]:
        """Yield the requests in their order."""
        common = "Content-Encoding: gzip\r\nContent-Type: text/plain; charset=utf-8\r\n"
        heads = [f"{common}Authorization: {sender}\r\n" for sender in self.server.senders]
        for sender, body in islice(read_bodies(self.bodies), self.count):
            headers = heads[sender] if heads else common
            yield request_of("POST", self.server.write_path, headers=headers, body=body)


def post(posts: Posts) -> dict[str, Any]:
    """Post bodies by a process of its own; return the figures of the load."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_carry_out, posts).result()


def _carry_out(posts: Posts) -> dict[str, Any]:
    began = time.process_time()
    driver = Driver(
        posts.requests(),
        port=posts.server.port,
        connections=posts.connections,
        per_second=posts.per_second,
    )
    tally = uvloop.run(driver.run())
    if not tally.delays:
        raise BenchmarkError(f"no post was acknowledged: {tally.reasons}")
    return {
        "posts": sum(tally.statuses.values()),
        "refused": tally.refused,
        "statuses": {str(status): count for status, count in tally.statuses.items()},
        "reasons": tally.reasons,
        "seconds": rounded(tally.seconds),
        "posts_per_second": rounded(len(tally.delays) / tally.seconds),
        **milliseconds_of(tally.delays, name="ack_milliseconds"),
        **milliseconds_of(tally.lateness, name="driver_lateness_milliseconds"),
        "connections": posts.connections,
        "most_waiting_posts": tally.most_waiting,
        "reconnects": tally.reconnects,
        "driver_cpu_seconds": rounded(time.process_time() - began),
    }
