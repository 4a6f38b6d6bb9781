"""Turns of the threads that write to the SQLite database.

SQLite has one writer at a time, and those that wait ask again at longer and longer intervals: who
has just come is often first, and somebody who waits may never be. Here they wait in a line, and the
tenants in it take turns, so that a tenant with many writes delays the others by one of them. Other
processes are not in the line: SQLite's own timeout applies between them.
"""

import threading
from collections import defaultdict, deque
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event

from core.errors import DatabaseUnavailableError

# The tenant for which this thread or task writes; empty for the server itself.
WRITER: ContextVar[str] = ContextVar("writer", default="")

TIMEOUT_SECONDS = 10.0
BUSY = "The database is busy or unavailable. Nothing was changed; try again in a few seconds."
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "BEGIN IMMEDIATE")
_KEY = "has_write_turn"


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
        if record_info is None or record_info.get(_KEY):
            return
        if not turns.acquire(WRITER.get(), timeout_seconds=TIMEOUT_SECONDS):
            raise DatabaseUnavailableError(BUSY)
        record_info[_KEY] = True

    def after_return(_connection: Any, record: Any) -> None:  # noqa: ANN401 - of the DBAPI, of the pool
        if record.record_info.pop(_KEY, False):
            turns.release()

    event.listen(engine, "before_cursor_execute", before_statement)
    event.listen(engine, "checkin", after_return)
