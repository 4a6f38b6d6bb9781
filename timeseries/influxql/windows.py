"""Samples by group and window, and the functions that reduce each window to a value.

Samples are sorted by group, then by window and time, so that each window of a group is a *segment*:
a run of rows. All segments are reduced together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GroupedSamples:
    """Samples with the group of each."""

    groups: Integers
    times_ns: Integers
    values: Floats

    def ordered(self, *keys: NDArray[np.generic]) -> "GroupedSamples":
        """Return the rows sorted by keys, of which the last counts most."""
        order = np.lexsort(keys)
        return GroupedSamples(self.groups[order], self.times_ns[order], self.values[order])


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows, where each segment begins, and the window of each segment.

    Attributes:
        rows: the samples, of one segment after the other, by time in it.
        starts: the first row of each segment.
        windows_ns: the start of the window of each segment.
        interval_ns: the width of windows; 0 if there is one of each group.
    """

    rows: GroupedSamples
    starts: Integers
    windows_ns: Integers
    interval_ns: int = 0

    @property
    def counts(self) -> Integers:
        """The number of samples of each segment."""
        return np.diff(np.append(self.starts, len(self.rows.values)))

    @property
    def groups(self) -> Integers:
        """The group of each segment."""
        return self.rows.groups[self.starts]

    def sorted_by_value(self) -> "Segments":
        """Return the segments with their rows by value, then by time."""
        segment = np.repeat(np.arange(len(self.starts)), self.counts)
        return replace(self, rows=self.rows.ordered(self.rows.times_ns, self.rows.values, segment))


@dataclass(frozen=True, slots=True)
class Reduced:
    """A value for each segment, and of selectors the time of the sample that has it.

    `is_there` tells which segments have a value, where not all have.
    """

    values: Floats
    times_ns: Integers | None = None
    is_there: Flags | None = None


def segments_of(
    rows: GroupedSamples, *, start_ns: int, interval_ns: int, offset_ns: int
) -> Segments:
    """Return rows by group and window; without an interval, all of a group are one window."""
    rows = rows.ordered(rows.values, rows.times_ns, rows.groups)
    if not len(rows.values):
        return Segments(rows, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    windows = windows_of(
        rows.times_ns, start_ns=start_ns, interval_ns=interval_ns, offset_ns=offset_ns
    )
    is_start = np.ones(len(windows), dtype=bool)
    is_start[1:] = (windows[1:] != windows[:-1]) | (rows.groups[1:] != rows.groups[:-1])
    starts = np.flatnonzero(is_start)
    return Segments(rows, starts, windows[starts], interval_ns)


def windows_of(times_ns: Integers, *, start_ns: int, interval_ns: int, offset_ns: int) -> Integers:
    """Return the start of the window of each time."""
    if not interval_ns:
        return np.full(len(times_ns), start_ns, dtype=np.int64)
    windows: Integers = (times_ns - offset_ns) // interval_ns * interval_ns + offset_ns
    return windows


def _of_row(segments: Segments, index: Integers) -> Reduced:
    return Reduced(segments.rows.values[index], segments.rows.times_ns[index])


def _mean(segments: Segments) -> Reduced:
    return Reduced(np.add.reduceat(segments.rows.values, segments.starts) / segments.counts)


def _last(segments: Segments) -> Reduced:
    # Of samples at the same time, the greatest counts.
    return _of_row(segments, segments.starts + segments.counts - 1)


def _first(segments: Segments) -> Reduced:
    times_ns = segments.rows.times_ns
    segment = np.repeat(np.arange(len(segments.starts)), segments.counts)
    is_first = times_ns == times_ns[segments.starts][segment]
    index = np.maximum.reduceat(np.where(is_first, np.arange(len(times_ns)), -1), segments.starts)
    return _of_row(segments, index)


def _min(segments: Segments) -> Reduced:
    ordered = segments.sorted_by_value()
    return _of_row(ordered, ordered.starts)


def _max(segments: Segments) -> Reduced:
    # Of samples with the same value, the earliest counts.
    rows = segments.rows
    segment = np.repeat(np.arange(len(segments.starts)), segments.counts)
    ordered = replace(segments, rows=rows.ordered(rows.times_ns, -rows.values, segment))
    return _of_row(ordered, ordered.starts)


def _median(segments: Segments) -> Reduced:
    ordered = segments.sorted_by_value()
    low = ordered.starts + (ordered.counts - 1) // 2
    high = ordered.starts + ordered.counts // 2
    values = ordered.rows.values
    return Reduced(values[low] + (values[high] - values[low]) / 2)


def _stddev(segments: Segments) -> Reduced:
    counts, values = segments.counts, segments.rows.values
    means = np.repeat(_mean(segments).values, counts)
    squares = np.add.reduceat((values - means) ** 2, segments.starts)
    with np.errstate(all="ignore"):
        return Reduced(np.where(counts > 1, np.sqrt(squares / (counts - 1)), np.nan))


def _mode(segments: Segments) -> Reduced:
    """Return the value that is most often in a window; of several, the least."""
    ordered = segments.sorted_by_value()
    values = ordered.rows.values
    is_start = np.ones(len(values), dtype=bool)
    is_start[1:] = values[1:] != values[:-1]
    is_start[ordered.starts] = True
    runs = np.flatnonzero(is_start)
    segment = np.searchsorted(ordered.starts, runs, side="right") - 1
    lengths = np.diff(np.append(runs, len(values)))
    order = np.lexsort((runs, -lengths, segment))
    first = np.searchsorted(segment[order], np.arange(len(ordered.starts)))
    return Reduced(values[runs[order][first]])


def count_distinct(segments: Segments) -> Reduced:
    """Return how many different values a window has."""
    ordered = segments.sorted_by_value()
    values = ordered.rows.values
    is_first = np.ones(len(values), dtype=bool)
    is_first[1:] = values[1:] != values[:-1]
    is_first[ordered.starts] = True
    return Reduced(np.add.reduceat(is_first.astype(np.float64), ordered.starts))


def integral(segments: Segments, unit_ns: int) -> Reduced:
    """Return the area below the line through the samples, by unit of time.

    What is between the last sample of a window and the next one is divided at the window's end.
    """
    rows, counts = segments.rows, segments.counts
    segment = np.repeat(np.arange(len(counts)), counts)
    # Of samples at the same time, the last one counts.
    is_last = np.ones(len(segment), dtype=bool)
    is_last[:-1] = (np.diff(rows.times_ns) != 0) | (np.diff(rows.groups) != 0)
    times_ns, values, segment = rows.times_ns[is_last], rows.values[is_last], segment[is_last]
    follows = np.flatnonzero(np.diff(rows.groups[is_last]) == 0)
    before, after = segment[follows], segment[follows + 1]
    steps, growth = np.diff(times_ns)[follows], np.diff(values)[follows]
    ends_ns = segments.windows_ns[before] + segments.interval_ns
    until_end = np.where(before == after, steps, ends_ns - times_ns[follows])
    at_end = values[follows] + growth * (until_end / steps)
    areas = np.zeros(len(counts))
    np.add.at(areas, before, (values[follows] + at_end) / 2 * (until_end / unit_ns))
    rest = (at_end + values[follows + 1]) / 2 * ((steps - until_end) / unit_ns)
    np.add.at(areas, after, rest)
    return Reduced(areas)


def percentile(segments: Segments, percent: float) -> Reduced:
    """Return the nearest rank, which a window with few samples does not have."""
    ordered = segments.sorted_by_value()
    counts = ordered.counts
    ranks = np.floor(counts * percent / 100 + 0.5).astype(np.int64) - 1
    is_there = (ranks >= 0) & (ranks < counts)
    reduced = _of_row(ordered, ordered.starts + np.clip(ranks, 0, counts - 1))
    return replace(reduced, is_there=is_there)


REDUCERS: Mapping[str, Callable[[Segments], Reduced]] = {
    "mean": _mean,
    "sum": lambda segments: Reduced(np.add.reduceat(segments.rows.values, segments.starts)),
    "count": lambda segments: Reduced(segments.counts.astype(np.float64)),
    "first": _first,
    "last": _last,
    "min": _min,
    "max": _max,
    "spread": lambda segments: Reduced(_max(segments).values - _min(segments).values),
    "median": _median,
    "stddev": _stddev,
    "mode": _mode,
}
