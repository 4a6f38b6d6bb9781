"""The windows of a range query in milliseconds, as pieces that one request each can answer.

A range that begins or ends inside a window has a shorter first or last one: a piece of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from core.errors import InvalidInputError
from timeseries.store import RangeQuery
from timeseries.victoriametrics.flags import FIRST_MS

NS_PER_MS = 1_000_000
# Below the server's -search.maxPointsPerTimeseries, 30,000.
MAX_WINDOWS = 10_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Windows of one width that follow each other from `start_ms` to `end_ms`.

    `label_ms` is the start that the first one is shown with: earlier than `start_ms` where the
    range begins inside that window.
    """

    start_ms: int
    end_ms: int
    width_ms: int
    label_ms: int

    def label_of(self, window_end_ms: int) -> int:
        """Return the start that a window is shown with, by its end."""
        return self.label_ms + window_end_ms - self.start_ms - self.width_ms


@dataclass(frozen=True, slots=True)
class Span:
    """The milliseconds `[start_ms, end_ms)`."""

    start_ms: int
    end_ms: int

    @property
    def is_empty(self) -> bool:
        """Whether no instant is inside."""
        return self.end_ms <= self.start_ms

    @property
    def width_ms(self) -> int:
        """How long it is."""
        return self.end_ms - self.start_ms

    def within(self, other: "Span") -> "Span":
        """Return what both have."""
        return Span(max(self.start_ms, other.start_ms), min(self.end_ms, other.end_ms))


def span_of(start_ns: int, end_ns: int, *, last_ms: int) -> Span:
    """Return the kept times in `[start_ns, end_ns)`: none before 1970-01-05 or after `last_ms`."""
    whole = Span(_ceiling(start_ns, NS_PER_MS), _ceiling(end_ns, NS_PER_MS))
    return whole.within(Span(FIRST_MS, last_ms + 1))


def step_ms_of(query: RangeQuery) -> int | None:
    """Return the query's step in milliseconds.

    Raises:
        InvalidInputError: it is not a whole number of milliseconds above 0.
    """
    if query.step_ns is None:
        return None
    step = int(query.step_ns)
    if step <= 0:
        raise InvalidInputError(
            f"step_ns is {step}; a window must be wider than 0.",
            errors={"step_ns": ["must be > 0"]},
        )
    if step % NS_PER_MS:
        raise InvalidInputError(
            f"step_ns is {step}; this store keeps milliseconds: give a multiple of {NS_PER_MS}.",
            errors={"step_ns": [f"must be a multiple of {NS_PER_MS}"]},
        )
    return step // NS_PER_MS


def pieces(span: Span, step_ms: int | None) -> Iterator[Piece]:
    """Yield the windows of a span, aligned to the epoch; without a step all of it is one."""
    if span.is_empty:
        return
    if step_ms is None:
        yield Piece(span.start_ms, span.end_ms, span.width_ms, span.start_ms)
        return
    label = span.start_ms - span.start_ms % step_ms
    first = min(_ceiling(span.start_ms, step_ms) * step_ms, span.end_ms)
    if first > span.start_ms:
        yield Piece(span.start_ms, first, first - span.start_ms, label)
    last = max(first, span.end_ms - span.end_ms % step_ms)
    for start in range(first, last, MAX_WINDOWS * step_ms):
        yield Piece(start, min(last, start + MAX_WINDOWS * step_ms), step_ms, start)
    if last < span.end_ms:
        yield Piece(last, span.end_ms, span.end_ms - last, last)


def _ceiling(number: int, unit: int) -> int:
    return -(-number // unit)
