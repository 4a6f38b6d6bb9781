"""Connections that threads borrow one after the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """As many connections as are used at once. Thread-safe."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._idle: list[C] = []
        self._is_closed = False

    @contextmanager
    def borrowed(self) -> Iterator[C]:
        """Lend a connection for the length of the block; one whose block failed is closed."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection if connection is not None else self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all; those in use when they come back."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()
