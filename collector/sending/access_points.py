"""Access points: the portal's addresses, of which the agent uses the fastest healthy one.

The agent switches only to a clearly faster address, so that it does not alternate between two
similar ones. An address that fails is avoided, longer after each failure, until it answers probes
again. Latencies are those of `GET /health`; with a single address, writes are measured instead.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from threading import Lock

from collector.sending.http import HTTP_ERRORS, HTTPClient
from collector.tls import TLSContexts

log = logging.getLogger(__name__)

WINDOW = 5
AVOID_SECONDS = 15.0
MAX_AVOID_SECONDS = 600.0
FASTER_RATIO = 0.8
FASTER_SECONDS = 0.005
PROBE_INTERVAL_SECONDS = 60.0
OK = 200


def _window() -> deque[float]:
    return deque(maxlen=WINDOW)


@dataclass(slots=True)
class _AccessPoint:
    url: str
    probes: deque[float] = field(default_factory=_window)
    writes: deque[float] = field(default_factory=_window)
    failures: int = 0
    avoided_until: float = 0.0
    is_answering: bool = True

    @property
    def latency_seconds(self) -> float:
        return median(self.probes) if self.probes else float("inf")


class AccessPoints:
    """Selects the address in use. Thread-safe.

    Args:
        urls: the addresses; without measurements an earlier one is preferred.
        monotonic: measures how long an address is avoided.
    """

    def __init__(
        self, urls: Sequence[str], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        if not urls:
            raise ValueError("an agent needs at least one portal address")
        self._points = [_AccessPoint(url.rstrip("/")) for url in urls]
        self._current = self._points[0]
        self._monotonic = monotonic
        self._lock = Lock()

    @property
    def current(self) -> str:
        """The address in use, without a trailing slash."""
        return self._current.url

    @property
    def urls(self) -> list[str]:
        """All addresses."""
        return [point.url for point in self._points]

    @property
    def latency_seconds(self) -> float | None:
        """The latency of the address in use; None before the first measurement."""
        with self._lock:
            measured = self._current.probes or self._current.writes
            return median(measured) if measured else None

    @property
    def has_healthy(self) -> bool:
        """Return whether there is an address that isn't avoided now."""
        with self._lock:
            return bool(self._healthy())

    def __len__(self) -> int:
        return len(self._points)

    def record_failure(self, url: str) -> None:
        """Avoid an address for a while and switch to another one."""
        with self._lock:
            point = self._find(url)
            now = self._monotonic()
            if now >= point.avoided_until:  # one outage counts once, whoever notices it
                doubled = AVOID_SECONDS * 2.0 ** min(point.failures, 16)
                point.avoided_until = now + min(MAX_AVOID_SECONDS, doubled)
                point.failures += 1
            if point is self._current:
                self._switch_after_failure()

    def record_success(self, url: str, latency_seconds: float | None = None) -> None:
        """Record that an address handled a request, and how long a write took."""
        with self._lock:
            point = self._find(url)
            point.failures = 0
            point.avoided_until = 0.0
            point.is_answering = True
            if latency_seconds is not None:
                point.writes.append(latency_seconds)

    def record_probes(self, latencies_seconds: dict[str, float | None]) -> None:
        """Record the latency of each address; None for one that isn't healthy."""
        with self._lock:
            for url, latency_seconds in latencies_seconds.items():
                point = self._find(url)
                point.is_answering = latency_seconds is not None
                if latency_seconds is None:
                    point.probes.clear()
                else:
                    point.probes.append(latency_seconds)
            self._switch_if_faster()

    def _find(self, url: str) -> _AccessPoint:
        return next((point for point in self._points if point.url == url), self._current)

    def _healthy(self) -> list[_AccessPoint]:
        now = self._monotonic()
        return [
            point for point in self._points if point.is_answering and now >= point.avoided_until
        ]

    def _switch_if_faster(self) -> None:
        healthy = self._healthy()
        if self._current not in healthy:
            self._switch_after_failure()
            return
        best = min(healthy, key=lambda point: point.latency_seconds)
        limit = self._current.latency_seconds
        if best.latency_seconds < min(limit * FASTER_RATIO, limit - FASTER_SECONDS):
            before, after = limit * 1000, best.latency_seconds * 1000
            self._switch(best, f"{after:.0f} ms instead of {before:.0f} ms")

    def _switch_after_failure(self) -> None:
        """Switch to the fastest healthy address; if there is none, try them in turn."""
        healthy = self._healthy()
        if healthy:
            fastest = min(healthy, key=lambda point: point.latency_seconds)
            self._switch(fastest, f"{self._current.url} failed")
        else:
            index = self._points.index(self._current)
            self._current = self._points[(index + 1) % len(self._points)]

    def _switch(self, point: _AccessPoint, reason: str) -> None:
        if point is not self._current:
            log.info("switched to access point %s: %s", point.url, reason)
        self._current = point


class AccessPointProber:
    """Measures the latency of every access point; a task of the agent if there are several.

    Each probe opens a new connection, so that network, TLS and server are measured alike.
    """

    def __init__(
        self,
        access_points: AccessPoints,
        *,
        tls: TLSContexts | None = None,
        timeout_seconds: float = 10.0,
    ) -> None:
        self._access_points = access_points
        self._tls = tls or TLSContexts()
        self._timeout_seconds = timeout_seconds

    def step(self) -> float:
        """Probe all of them once; return the seconds until the next time."""
        urls = self._access_points.urls
        self._access_points.record_probes({url: self.probe(url) for url in urls})
        return PROBE_INTERVAL_SECONDS

    def probe(self, url: str) -> float | None:
        """Return the latency of an address in seconds; None if it isn't healthy."""
        http = HTTPClient(self._tls)
        began = time.perf_counter()
        try:
            response = http.request(
                "GET",
                f"{url}/health",
                headers={"Connection": "close"},
                timeout_seconds=self._timeout_seconds,
            )
        except HTTP_ERRORS:
            return None
        finally:
            http.close()
        return time.perf_counter() - began if response.status == OK else None
