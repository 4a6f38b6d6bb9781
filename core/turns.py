"""How the threads of a process take turns: at the interpreter, and at writing to SQLite.

Long requests give way to short ones, because Python computes in one thread at a time. A thread that
computes makes all others wait for the interpreter, and a short request needs it again after each of
its statements. A request is long once it has computed for `SHORT_CPU_SECONDS`, or from its start if
its sender is busy (`serving.portal_shares`). Before a statement and between parts of bulk work it
waits until no short request is in progress, unless its transaction has written: others may wait for
what that has locked. What it waits is bounded by what it has computed, so that it goes on however
many short ones come.

SQLite has one writer at a time, and those that wait ask again at longer and longer intervals: who
has just come is often first, and somebody who waits may never be. Here they wait in a line, and the
tenants in it take turns, so that a tenant with many writes delays the others by one of them. Other
processes are not in the line: SQLite's own timeout applies between them.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event

from core.errors import DatabaseUnavailableError

SHORT_CPU_SECONDS = 0.03
# A request that takes longer waits for something else than the interpreter, such as the store.
SHORT_SECONDS = 0.25
# A long request waits so many times as long as it has computed, and this much more.
WAIT_SHARE, LEAST_WAIT_SECONDS = 3.0, 0.05
_HAS_WRITTEN = "has_written"
_LOCKS = ("FOR UPDATE", "LOCK IN SHARE MODE")
# The tenant for which this thread or task writes; empty for the server itself.
WRITER: ContextVar[str] = ContextVar("writer", default="")

TIMEOUT_SECONDS = 10.0
BUSY = "The database is busy or unavailable. Nothing was changed; try again in a few seconds."
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "BEGIN IMMEDIATE")
_HAS_TURN = "has_write_turn"


class _Request:
    """A request in progress, in its thread."""

    def __init__(self, requests: "Requests", *, is_long: bool) -> None:
        self._requests = requests
        self._thread = threading.get_ident()
        self._began_cpu = time.thread_time()
        self._is_long = is_long
        self._waited_seconds = 0.0

    def give_way(self) -> None:
        if threading.get_ident() != self._thread:
            return
        cpu_seconds = time.thread_time() - self._began_cpu
        if not self._is_long:
            if cpu_seconds < SHORT_CPU_SECONDS:
                return
            self._is_long = True
            self._requests.end(self)
        most_seconds = LEAST_WAIT_SECONDS + WAIT_SHARE * cpu_seconds
        self._waited_seconds += self._requests.wait(most_seconds - self._waited_seconds)


_CURRENT: ContextVar[_Request | None] = ContextVar("request", default=None)


class Requests:
    """The requests that the threads of a process answer."""

    def __init__(self) -> None:
        self._short: dict[_Request, float] = {}
        self._changed = threading.Condition()

    @contextmanager
    def answering(self, *, is_long: bool = False) -> Iterator[None]:
        """Answer a request in this thread for the length of the block."""
        request = _Request(self, is_long=is_long)
        if not is_long:
            with self._changed:
                self._short[request] = time.monotonic()
        token = _CURRENT.set(request)
        try:
            yield
        finally:
            _CURRENT.reset(token)
            self.end(request)

    def end(self, request: _Request) -> None:
        """Count a request as short no more."""
        with self._changed:
            if self._short.pop(request, None) is not None and not self._short:
                self._changed.notify_all()

    def wait(self, most_seconds: float) -> float:
        """Wait until no short request is in progress; return for how long."""
        began = now = time.monotonic()
        with self._changed:
            while self._short:
                until = max(self._short.values()) + SHORT_SECONDS
                timeout = min(until, began + most_seconds) - now
                if timeout <= 0:
                    break
                self._changed.wait(timeout)
                now = time.monotonic()
        return now - began


def give_way() -> None:
    """Wait for short requests, if this thread answers a long one; call it between parts of work."""
    request = _CURRENT.get()
    if request is not None:
        request.give_way()


def install_giving_way(engine: Engine) -> None:
    """Let requests give way before their statements, until a connection's first write or lock."""

    def before_statement(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:  # noqa: ANN401
        request = _CURRENT.get()
        if request is None:
            return
        record_info = connection.connection.record_info
        if record_info is None or _HAS_WRITTEN in record_info:
            return
        request.give_way()
        if not statement.startswith("SELECT") or any(lock in statement for lock in _LOCKS):
            record_info[_HAS_WRITTEN] = True

    def after_return(_connection: Any, record: Any) -> None:  # noqa: ANN401 - of the DBAPI, of the pool
        record.record_info.pop(_HAS_WRITTEN, None)

    event.listen(engine, "before_cursor_execute", before_statement)
    event.listen(engine, "checkin", after_return)


class WriteTurns:
    """A lock that waiting tenants get in turns, and the threads of each in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: defaultdict[str, deque[threading.Lock]] = defaultdict(deque)
        self._number = 0
        self._last_turns: dict[str, int] = {}

    @property
    def length(self) -> int:
        """How many threads wait; safe to read from any thread."""
        return sum(map(len, list(self._waiting.values())))

    def acquire(self, writer: str, *, timeout_seconds: float) -> bool:
        """Wait for a turn; return whether it came in time."""
        with self._lock:
            if not self._is_taken:
                self._take(writer)
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting[writer].append(gate)
        if gate.acquire(timeout=timeout_seconds):
            return True
        with self._lock:
            # Not by index, which would add an empty line for a writer whose turn came just now.
            if gate in self._waiting.get(writer, ()):
                self._remove(writer, gate)
                return False
        return True  # the turn came just now

    def release(self) -> None:
        """Give the turn to the tenant whose last one is longest ago."""
        with self._lock:
            self._is_taken = False
            if self._waiting:
                writer = min(self._waiting, key=lambda name: self._last_turns.get(name, 0))
                gate = self._waiting[writer][0]
                self._remove(writer, gate)
                self._take(writer)
                gate.release()

    def _take(self, writer: str) -> None:
        self._is_taken = True
        self._number += 1
        self._last_turns[writer] = self._number

    def _remove(self, writer: str, gate: threading.Lock) -> None:
        self._waiting[writer].remove(gate)
        if not self._waiting[writer]:
            del self._waiting[writer]


def install_write_turns(engine: Engine) -> None:
    """Let each connection of a SQLite engine wait for its turn before it first writes.

    It has the turn until it is returned to the pool, as a session does when its transaction ends.

    Raises:
        DatabaseUnavailableError: (from the statement) the turn did not come in time.
    """
    turns = WriteTurns()

    def before_statement(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:  # noqa: ANN401
        if not statement[:20].lstrip().upper().startswith(_WRITES):
            return
        record_info = connection.connection.record_info
        if record_info is None or record_info.get(_HAS_TURN):
            return
        if not turns.acquire(WRITER.get(), timeout_seconds=TIMEOUT_SECONDS):
            raise DatabaseUnavailableError(BUSY)
        record_info[_HAS_TURN] = True

    def after_return(_connection: Any, record: Any) -> None:  # noqa: ANN401 - of the DBAPI, of the pool
        if record.record_info.pop(_HAS_TURN, False):
            turns.release()

    event.listen(engine, "before_cursor_execute", before_statement)
    event.listen(engine, "checkin", after_return)
