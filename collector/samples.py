"""From points to frames: what plugins read is gathered, encoded and put into the buffer."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from collector.buffer import DiskBuffer
from collector.frames import Frame
from collector.plugin_host import PluginHost
from core.errors import InvalidInputError
from timeseries.lineprotocol import encode
from timeseries.points import Point

log = logging.getLogger(__name__)

POINTS_PER_FRAME = 2000


class SampleFlow:
    """Collects what the plugins read and flushes it to the buffer now and then. For one thread."""

    def __init__(
        self, host: PluginHost, buffer: DiskBuffer, *, flush_interval_seconds: float
    ) -> None:
        self._host = host
        self._buffer = buffer
        self._flush_interval = timedelta(seconds=flush_interval_seconds)
        self._pending: list[Point] = []
        self._flushed_at: datetime | None = None

    def add(self, points: Iterable[Point]) -> None:
        """Take points from elsewhere than a plugin."""
        self._pending += points

    def step(self, now: datetime) -> float:
        """Read what is due, flush when it is time, and return the seconds until the next is due."""
        self._pending += self._host.gather_due(now)
        if self._flushed_at is None or now - self._flushed_at >= self._flush_interval:
            self._flushed_at = now
            self.flush()
        due_at = min(self._host.next_due_at(now), self._flushed_at + self._flush_interval)
        return max(0.05, (due_at - now).total_seconds())

    def flush(self) -> None:
        """Put everything collected on disk."""
        points, self._pending = self._pending, []
        for frame in frames_of(points):
            self._buffer.append(frame)


def frames_of(points: Iterable[Point]) -> Iterator[Frame]:
    """Yield points as frames of bounded size; a point that can't be a line is left out."""
    for some in _chunks(points, POINTS_PER_FRAME):
        good, lines = _encode(some)
        if good:
            newest_ns = max(point.time_ns for point in good)
            yield Frame(lines.rstrip(b"\n"), len(good), newest_ns)


def _encode(points: Sequence[Point]) -> tuple[Sequence[Point], bytes]:
    try:
        return points, encode(points)
    except InvalidInputError:  # rare: find out which
        good, lines = [], b""
        for point in points:
            try:
                lines += encode([point])
            except InvalidInputError as error:
                log.warning("left out a sample: %s", error.message)
            else:
                good.append(point)
        return good, lines


def _chunks(points: Iterable[Point], size: int) -> Iterator[list[Point]]:
    chunk: list[Point] = []
    for point in points:
        chunk.append(point)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
