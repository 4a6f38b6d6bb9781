"""From points to frames: what was read is collected, encoded and put into the buffer."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from core.errors import InvalidInputError
from timeseries.lineprotocol import encode
from timeseries.points import Point

log = logging.getLogger(__name__)

POINTS_PER_FRAME = 2000
# What is due within a tenth of its interval is done at once: it saves a wake-up.
EARLY_RATIO = 0.1


class SampleFlow:
    """Collects points and flushes them to the buffer. `add` may be called from any thread."""

    def __init__(
        self,
        buffer: DiskBuffer,
        *,
        flush_interval_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer = buffer
        self._monotonic = monotonic
        self._lock = Lock()
        self._flush_lock = Lock()
        self._pending: list[Point] = []
        self._flushed_seconds: float | None = None
        self.flush_interval_seconds = flush_interval_seconds

    def add(self, points: Iterable[Point]) -> None:
        """Take points for the next flush."""
        with self._lock:
            self._pending += points

    def flush_when_due(self) -> float:
        """Flush when it is time; return the seconds until the next flush."""
        now, interval_seconds = self._monotonic(), self.flush_interval_seconds
        if self._flushed_seconds is not None:
            left_seconds = self._flushed_seconds + interval_seconds - now
            if left_seconds > EARLY_RATIO * interval_seconds:
                return left_seconds
        self._flushed_seconds = now
        self.flush()
        return interval_seconds

    def flush(self) -> None:
        """Put everything collected on disk."""
        with self._flush_lock:
            with self._lock:
                points, self._pending = self._pending, []
            push(points, self._buffer)


def push(points: Iterable[Point], buffer: DiskBuffer) -> int:
    """Put points into a buffer at once and return how many there were."""
    pushed = 0
    for frame in frames_of(points):
        buffer.append(frame)
        pushed += frame.points
    return pushed


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
    except Exception:  # noqa: BLE001 - a foreign plugin may give anything; find out which
        return _encode_good(points)


def _encode_good(points: Sequence[Point]) -> tuple[Sequence[Point], bytes]:
    good, lines, faults = [], b"", []
    for point in points:
        try:
            lines += encode([point])
        except InvalidInputError as error:
            faults.append(error.message)
        except Exception as error:  # noqa: BLE001 - as above
            faults.append(f"{point!r:.200}: {error}")
        else:
            good.append(point)
    if faults:
        log.warning("left out %d samples, the first: %s", len(faults), faults[0])
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
