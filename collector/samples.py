"""Points become frames: samples are collected, encoded as line protocol, and put in the buffer."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import Lock

from collector.buffering.buffer import DiskBuffer
from collector.buffering.frames import Frame
from collector.implausible import ImplausibleFilter
from core.errors import InvalidInputError
from timeseries.lineprotocol.encode import encode
from timeseries.points import Point

log = logging.getLogger(__name__)

POINTS_PER_FRAME = 2000
# A reading that is due within a tenth of its interval is taken at once: this saves a wake-up.
EARLY_RATIO = 0.1


class SampleWriter:
    """Collects points and flushes them to the buffer. `add` may be called from any thread.

    Attributes:
        implausible: what was dropped because it can't be true.
    """

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
        self.implausible = ImplausibleFilter()

    def add(self, points: Iterable[Point]) -> Sequence[Point]:
        """Add points to the next flush, without implausible values; return what was added."""
        plausible = self.implausible.plausible(points)
        with self._lock:
            self._pending += plausible
        return plausible

    def flush_when_due(self) -> float:
        """Flush if it is due; return the seconds until the next flush."""
        now, interval_seconds = self._monotonic(), self.flush_interval_seconds
        if self._flushed_seconds is not None:
            left_seconds = self._flushed_seconds + interval_seconds - now
            if left_seconds > EARLY_RATIO * interval_seconds:
                return left_seconds
        self._flushed_seconds = now
        self.flush()
        return interval_seconds

    def flush(self) -> None:
        """Write all collected points to disk."""
        with self._flush_lock:
            with self._lock:
                points, self._pending = self._pending, []
            append_points(points, self._buffer)


def append_points(points: Iterable[Point], buffer: DiskBuffer) -> int:
    """Append points to a buffer and return how many were valid."""
    count = 0
    for frame in encode_frames(points):
        buffer.append(frame)
        count += frame.points
    return count


def encode_frames(points: Iterable[Point]) -> Iterator[Frame]:
    """Yield points as frames of limited size, without those that can't be encoded."""
    remaining = iter(points)
    while chunk := list(islice(remaining, POINTS_PER_FRAME)):
        valid, lines = _encode(chunk)
        if valid:
            newest_ns = max(point.time_ns for point in valid)
            yield Frame(lines.rstrip(b"\n"), len(valid), newest_ns)


def _encode(points: Sequence[Point]) -> tuple[Sequence[Point], bytes]:
    try:
        return points, encode(points)
    except Exception:  # noqa: BLE001 - a third-party plugin may return anything; find the culprit
        return _encode_valid(points)


def _encode_valid(points: Sequence[Point]) -> tuple[Sequence[Point], bytes]:
    valid, lines, errors = [], b"", []
    for point in points:
        try:
            lines += encode([point])
        except InvalidInputError as error:
            errors.append(error.message)
        except Exception as error:  # noqa: BLE001 - as above
            errors.append(f"{point!r:.200}: {error}")
        else:
            valid.append(point)
    if errors:
        log.warning("dropped %d invalid points, the first: %s", len(errors), errors[0])
    return valid, lines
