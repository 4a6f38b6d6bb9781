"""The access points: which of the portal's addresses to use, by what they answer and how fast.

The fastest healthy one is used. Another is taken only when it is clearly faster, so that two near
ones do not take turns. One that fails is avoided, each time for longer, and returned to when it
answers probes again and is the better one. Latencies are of the same small question, put to all;
with one address nothing is asked, and the writes are timed.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from threading import Lock

log = logging.getLogger(__name__)

MEASURED = 5
AVOID_SECONDS = 15.0
AVOID_LONGEST_SECONDS = 600.0
BETTER_RATIO = 0.8
BETTER_SECONDS = 0.005


def _few() -> deque[float]:
    return deque(maxlen=MEASURED)


@dataclass(slots=True)
class _Point:
    url: str
    probes: deque[float] = field(default_factory=_few)
    writes: deque[float] = field(default_factory=_few)
    failures: int = 0
    avoided_until: float = 0.0
    is_answering: bool = True

    @property
    def latency_seconds(self) -> float:
        return median(self.probes) if self.probes else float("inf")


class PortalAddresses:
    """Points at the address in use. Safe to share by threads.

    Args:
        urls: the addresses; without measurements an earlier one is preferred.
        monotonic: measures for how long one is avoided.
    """

    def __init__(
        self, urls: Sequence[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if not urls:
            raise ValueError("an agent needs at least one portal address")
        self._points = [_Point(url.rstrip("/")) for url in urls]
        self._current = self._points[0]
        self._monotonic = monotonic
        self._lock = Lock()

    @property
    def current(self) -> str:
        """The address in use, without a slash at the end."""
        return self._current.url

    @property
    def urls(self) -> list[str]:
        """All addresses."""
        return [point.url for point in self._points]

    @property
    def latency_seconds(self) -> float | None:
        """How long the address in use takes to answer; None as long as it was not measured."""
        with self._lock:
            measured = self._current.probes or self._current.writes
            return median(measured) if measured else None

    @property
    def has_healthy(self) -> bool:
        """Whether one of them is not avoided at present."""
        with self._lock:
            return bool(self._healthy())

    def __len__(self) -> int:
        return len(self._points)

    def mark_failed(self, url: str) -> None:
        """Avoid an address for a while and move on."""
        with self._lock:
            point = self._find(url)
            now = self._monotonic()
            if now >= point.avoided_until:  # one outage is one failure, whoever notices
                doubled = AVOID_SECONDS * 2.0 ** min(point.failures, 16)
                point.avoided_until = now + min(AVOID_LONGEST_SECONDS, doubled)
                point.failures += 1
            if point is self._current:
                self._move_on()

    def mark_answered(self, url: str, latency_seconds: float | None = None) -> None:
        """Note that an address has done what was asked, and how long a write took."""
        with self._lock:
            point = self._find(url)
            point.failures = 0
            point.avoided_until = 0.0
            point.is_answering = True
            if latency_seconds is not None:
                point.writes.append(latency_seconds)

    def mark_probed(self, latencies_seconds: dict[str, float | None]) -> None:
        """Note how long each address took to say that it is healthy; None when it did not."""
        with self._lock:
            for url, latency_seconds in latencies_seconds.items():
                point = self._find(url)
                point.is_answering = latency_seconds is not None
                if latency_seconds is None:
                    point.probes.clear()
                else:
                    point.probes.append(latency_seconds)
            self._choose_better()

    def _find(self, url: str) -> _Point:
        return next((point for point in self._points if point.url == url), self._current)

    def _healthy(self) -> list[_Point]:
        now = self._monotonic()
        return [
            point for point in self._points if point.is_answering and now >= point.avoided_until
        ]

    def _choose_better(self) -> None:
        healthy = self._healthy()
        if self._current not in healthy:
            self._move_on()
            return
        best = min(healthy, key=lambda point: point.latency_seconds)
        limit = self._current.latency_seconds
        if best.latency_seconds < min(limit * BETTER_RATIO, limit - BETTER_SECONDS):
            before, after = limit * 1000, best.latency_seconds * 1000
            self._use(best, f"it answers in {after:.0f} ms, the other in {before:.0f} ms")

    def _move_on(self) -> None:
        """Take the fastest healthy one; where none is, the next in turn, for all are tried."""
        healthy = self._healthy()
        if healthy:
            fastest = min(healthy, key=lambda point: point.latency_seconds)
            self._use(fastest, f"{self._current.url} failed")
        else:
            index = self._points.index(self._current)
            self._current = self._points[(index + 1) % len(self._points)]

    def _use(self, point: _Point, reason: str) -> None:
        if point is not self._current:
            log.info("the access point is %s from now on: %s", point.url, reason)
        self._current = point
