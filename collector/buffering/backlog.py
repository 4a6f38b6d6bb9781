"""The backlog: what was not sent while it was fresh, as stretches of segments, oldest first."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from collector.buffering.frames import Found
from collector.buffering.segments import Segment

Monotonic = Callable[[], float]


@dataclass(slots=True)
class Span:
    """A stretch of a segment that waits: whole frames, and how many points they hold."""

    segment: Segment
    start: int
    end: int
    points: int


class Backlog:
    """Stretches of segments that wait. Not safe to share by threads: the buffer guards it."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self.points = 0

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def oldest(self) -> Span:
        """The stretch that is read next."""
        return self._spans[0]

    def add(self, segment: Segment, found: Found) -> None:
        """Put a frame behind all that waits."""
        self.points += found.points
        last = self._spans[-1] if self._spans else None
        if last is not None and last.segment is segment and last.end == found.start:
            last.end = found.end
            last.points += found.points
        else:
            self._spans.append(Span(segment, found.start, found.end, found.points))

    def settle(self, segment: Segment, found: Found) -> int | None:
        """Let go of what lies at the very front.

        Returns:
            How many points were lost with damage and are only known to be now that the stretch
            has come to its end; None when `found` is not at the front any more.
        """
        span = self._spans[0] if self._spans else None
        if span is None or span.segment is not segment or span.start != found.start:
            return None
        span.start = found.end
        taken = min(span.points, found.points)
        span.points -= taken
        self.points -= taken
        if span.start < span.end:
            return 0
        self._spans.popleft()
        self.points -= span.points
        return span.points

    def give_up(self, segment: Segment) -> int:
        """Forget all of a segment and return how many points that were."""
        lost = sum(span.points for span in self._spans if span.segment is segment)
        self._spans = deque(span for span in self._spans if span.segment is not segment)
        self.points -= lost
        return lost


class Pace:
    """Holds a stream of points to a rate: each batch puts off the next one by what it took."""

    def __init__(self, points_per_second: float, monotonic: Monotonic = time.monotonic) -> None:
        self._points_per_second = points_per_second
        self._monotonic = monotonic
        self._free_at = 0.0

    @property
    def batch_points(self) -> int:
        """How many points a batch may have: what a second allows."""
        return max(1, int(self._points_per_second))

    def took(self, points: int) -> None:
        """Count points that were sent."""
        self._free_at = self._monotonic() + points / self._points_per_second

    def wait_seconds(self) -> float:
        """Return how long the next batch has to wait; 0 when it may go now."""
        return max(0.0, self._free_at - self._monotonic())
