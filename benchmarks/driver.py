"""Posts bodies over many connections, and says how fast they were acknowledged.

    python -m benchmarks.driver ORDER.json RESULT.json

One thread and one selector, so that it costs little beside the server. Without a rate it is a
closed loop: each connection posts as soon as its last post is acknowledged. With a rate it is an
open loop: posts are due by a schedule, and their delay counts from when they were due, whatever
the server or the driver did meanwhile. How late the driver itself was is told apart.
"""

import json
import selectors
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from pathlib import Path

from benchmarks.bodies import opened
from benchmarks.driver_connection import Connection, DriverError
from benchmarks.figures import percentile, rounded

REPLY_SECONDS = 60.0
WINDOW_SECONDS = 60.0
KEPT_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The posts to send, and their server.

    Attributes:
        path: with its query.
        senders: for each sender's number the value of its header `Authorization`; none where the
            server asks for none.
        bodies: files of bodies, sent one after the other.
        per_second: how many posts are due in a second; None is a closed loop.
        most_posts: stop after this many; None sends all.
    """

    host: str
    port: int
    path: str
    senders: Sequence[str] = ()
    bodies: Sequence[str]
    connections: int
    per_second: float | None = None
    most_posts: int | None = None


@dataclass(slots=True)
class Tally:
    """The results of the posts; instants in seconds since the beginning."""

    acknowledged: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    delays: list[tuple[float, float]] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)
    reconnects: int = 0
    most_waiting: int = 0
    seconds: float = 0.0


class Driver:
    """Carries out an order."""

    def __init__(
        self, order: Order, posts: Sequence[tuple[memoryview, int, int, int]], *, count: int
    ) -> None:
        self._order = order
        self._posts = posts
        self._count = count
        self._next = 0
        self._tally = Tally()
        self._selector = selectors.DefaultSelector()
        self._idle = deque(Connection(order.host, order.port) for _ in range(order.connections))
        self._busy = 0
        self._began = 0.0
        self._heads = request_heads(order)

    def run(self) -> Tally:
        """Send all and wait for the answers; the clock starts when all connections are open."""
        for connection in self._idle:
            self._open(connection)
        self._began = time.perf_counter()
        try:
            while self._next < self._count or self._busy:
                self._send_due()
                self._take_answers(self._patience())
        finally:
            for key in list(self._selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr] # it is a Connection
            for connection in self._idle:
                connection.close()
            self._selector.close()
        self._tally.seconds = self._now()
        return self._tally

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _due(self, number: int) -> float:
        return number / self._order.per_second if self._order.per_second else 0.0

    def _send_due(self) -> None:
        now = self._now()
        rate = self._order.per_second
        if rate:
            waiting = min(self._count, int(now * rate) + 1) - self._next
            self._tally.most_waiting = max(self._tally.most_waiting, waiting)
        was_waiting_for_a_connection = not self._idle
        while self._idle and self._next < self._count:
            due = self._due(self._next)
            if rate:
                now = self._now()
                if due > now:
                    return
                if not was_waiting_for_a_connection:
                    self._tally.lateness.append(now - due)
            else:
                due = self._now()
            self._post(self._idle.popleft(), self._next, due)
            self._next += 1

    def _post(self, connection: Connection, number: int, since: float) -> None:
        view, offset, length, sender = self._posts[number]
        head = self._heads[sender] if self._order.senders else self._heads[0]
        body = view[offset : offset + length]
        request = b"%sContent-Length: %d\r\n\r\n%s" % (head, length, body)
        if not connection.is_open:
            self._open(connection)
        self._busy += 1
        try:
            is_sent = connection.begin(request, since)
        except OSError:
            self._lost(connection)
        else:
            self._wait_to_send(connection, is_sent=is_sent)

    def _wait_to_send(self, connection: Connection, *, is_sent: bool) -> None:
        if not is_sent:
            self._selector.modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _lost(self, connection: Connection) -> None:
        """Take up a connection that the server has closed; a post that it held is sent once more.

        Servers close connections that were idle for long, and a post can cross the farewell.
        """
        self._selector.unregister(connection)
        connection.close()
        self._tally.reconnects += 1
        if not connection.is_waiting:
            return
        if connection.is_retried:
            self._finish(connection, 0, b"the connection was closed without an answer, twice")
            return
        self._open(connection)
        self._wait_to_send(connection, is_sent=connection.retry())

    def _open(self, connection: Connection) -> None:
        connection.open()
        self._selector.register(connection, selectors.EVENT_READ)

    def _patience(self) -> float:
        if self._order.per_second and self._idle and self._next < self._count:
            return max(0.0, self._due(self._next) - self._now())
        return REPLY_SECONDS

    def _take_answers(self, patience: float) -> None:
        ready = self._selector.select(patience)
        if not ready and patience >= REPLY_SECONDS:
            raise DriverError(f"no answer within {REPLY_SECONDS:.0f} s")
        for key, events in ready:
            connection = key.fileobj
            if not isinstance(connection, Connection):
                raise TypeError(connection)
            if events & selectors.EVENT_READ:
                self._answer(connection)
            elif connection.send():
                self._selector.modify(connection, selectors.EVENT_READ)

    def _answer(self, connection: Connection) -> None:
        try:
            reply = connection.receive()
        except OSError:
            self._lost(connection)
            return
        if reply is not None:
            self._finish(connection, *reply)

    def _finish(self, connection: Connection, status: int, body: bytes) -> None:
        now, tally = self._now(), self._tally
        tally.statuses[status] += 1
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            tally.acknowledged += 1
            tally.delays.append((now, now - connection.since))
        elif len(tally.reasons) < KEPT_REASONS:
            tally.reasons.append(f"{status}: {body[:400].decode(errors='replace')}")
        self._busy -= 1
        connection.is_waiting = False
        self._idle.append(connection)


def request_heads(order: Order) -> list[bytes]:
    """Return for each sender the request's head up to its length."""
    common = (
        f"POST {order.path} HTTP/1.1\r\nHost: {order.host}:{order.port}\r\n"
        "Content-Encoding: gzip\r\nContent-Type: text/plain; charset=utf-8\r\n"
    )
    if not order.senders:
        return [common.encode()]
    return [f"{common}Authorization: {sender}\r\n".encode() for sender in order.senders]


def summary(tally: Tally, *, cpu_seconds: float) -> dict[str, object]:
    """Return the figures of a load."""
    delays = [delay for _, delay in tally.delays]
    return {
        "posts": sum(tally.statuses.values()),
        "acknowledged": tally.acknowledged,
        "refused": sum(tally.statuses.values()) - tally.acknowledged,
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "reasons": tally.reasons,
        "seconds": rounded(tally.seconds),
        "posts_per_second": rounded(tally.acknowledged / tally.seconds) if tally.seconds else None,
        "ack_milliseconds_p50": _milliseconds(delays, 50),
        "ack_milliseconds_p99": _milliseconds(delays, 99),
        "ack_milliseconds_max": _milliseconds(delays, 100),
        "driver_lateness_milliseconds_p99": _milliseconds(tally.lateness, 99),
        "driver_lateness_milliseconds_max": _milliseconds(tally.lateness, 100),
        "most_waiting_posts": tally.most_waiting,
        "reconnects": tally.reconnects,
        "driver_cpu_seconds": rounded(cpu_seconds),
        "minutes": minutes(tally.delays),
    }


def minutes(delays: Sequence[tuple[float, float]]) -> list[dict[str, object]]:
    """Return for each minute how many posts were acknowledged in it, and how fast."""
    by_minute: dict[int, list[float]] = {}
    for at, delay in delays:
        by_minute.setdefault(int(at // WINDOW_SECONDS), []).append(delay)
    return [
        {
            "minute": minute,
            "acknowledged": len(of_it),
            "ack_milliseconds_p50": _milliseconds(of_it, 50),
            "ack_milliseconds_p99": _milliseconds(of_it, 99),
        }
        for minute, of_it in sorted(by_minute.items())
    ]


def _milliseconds(seconds: Sequence[float], percent: float) -> float | None:
    value = percentile(seconds, percent)
    return None if value is None else rounded(1000 * value)


def write_order(path: Path, order: Order) -> None:
    """Keep an order for the driver's process."""
    path.write_text(json.dumps(asdict(order)), encoding="utf-8")


def read_result(path: Path) -> dict[str, object]:
    """Return what a driver's process has found."""
    result: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return result


def main() -> None:
    """Carry out the order of a file."""
    order = Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    posts: list[tuple[memoryview, int, int, int]] = []
    with ExitStack() as stack:
        for path in order.bodies:
            view, rows = stack.enter_context(opened(Path(path)))
            posts += [(view, *row) for row in rows]
        count = min(len(posts), order.most_posts or len(posts))
        cpu_before = time.process_time()
        tally = Driver(order, posts, count=count).run()
        result = summary(tally, cpu_seconds=time.process_time() - cpu_before)
        posts.clear()
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
