"""Requests under way: what an agent waits for at an access point, so that it can leave that.

A request can't be taken back, but its connection can be closed: its thread then gets an error, and
repeats it at the next access point. The portal handles repeated requests without harm.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock


@dataclass(slots=True, eq=False)
class Request:
    """A request without a response so far.

    Attributes:
        url: the address of the access point.
        began_at: in monotonic seconds.
        expected_seconds: how long the server may wait; positive for a long poll, infinite where
            the response may take any time.
        abort: closes the connection.
        was_aborted: whether that was done: an error says nothing about the access point.
        is_answered: set by the sender if the server could handle it.
    """

    url: str
    began_at: float
    expected_seconds: float
    abort: Callable[[], None]
    was_aborted: bool = False
    is_answered: bool = False


class RequestsUnderWay:
    """The requests of all threads. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._requests: set[Request] = set()
        self._lock = Lock()

    @contextmanager
    def track(
        self, url: str, abort: Callable[[], None], *, expected_seconds: float
    ) -> Iterator[Request]:
        """Note a request while the block runs."""
        request = Request(url, self._monotonic(), expected_seconds, abort)
        with self._lock:
            self._requests.add(request)
        try:
            yield request
        finally:
            with self._lock:
                self._requests.discard(request)

    def overdue_seconds(self, url: str) -> float:
        """Return how long a request at an address is overdue; negative if none is."""
        now = self._monotonic()
        with self._lock:
            return max(
                (
                    now - request.began_at - request.expected_seconds
                    for request in self._requests
                    if request.url == url
                ),
                default=-math.inf,
            )

    def abort(self, url: str, *, only_polls: bool) -> None:
        """Abort all requests at an address, or only the long polls."""
        with self._lock:
            for request in self._requests:
                is_poll = 0 < request.expected_seconds < math.inf
                is_left = request.url == url and (is_poll or not only_polls)
                if is_left and not request.was_aborted:
                    request.was_aborted = True
                    request.abort()
