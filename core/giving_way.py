"""Long requests give way to short ones, because Python computes in one thread at a time.

A thread that computes makes all others wait for the interpreter, and a short request needs it again
after each of its statements. A request is long once it has computed for `SHORT_CPU_SECONDS`, or
from its start if its sender is busy (`serving.portal_shares`). Before a statement and between parts
of bulk work it waits until no short request is in progress, unless its transaction has written:
others may wait for what that has locked. What it waits is bounded by what it has computed, so that
it goes on however many short ones come.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sqlalchemy import Connection, Engine, event

SHORT_CPU_SECONDS = 0.03
# A request that takes longer waits for something else than the interpreter, such as the store.
SHORT_SECONDS = 0.25
# A long request waits so many times as long as it has computed, and this much more.
WAIT_SHARE, LEAST_WAIT_SECONDS = 3.0, 0.05
_HAS_WRITTEN = "has_written"
_LOCKS = ("FOR UPDATE", "LOCK IN SHARE MODE")


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
