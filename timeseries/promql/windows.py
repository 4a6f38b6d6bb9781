"""Windows: the samples of a range selector at each step of a grid."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from timeseries.promql.values import Floats, Grid, Integers, Samples

CHUNK_SAMPLES = 2_000_000
"""About how many samples of windows that overlap are in memory at the same time."""


@dataclass(frozen=True)
class Windows:
    """The samples `[low, high)` of each series in the window of each step.

    Attributes:
        samples: the samples.
        low: the first sample of each window.
        high: the sample after its last one.
        ends: the ends of the windows; they begin `range_ms` before.
        range_ms: their length.
        at_ms: the times for which they are evaluated.
        check: raises if the query takes too long.
    """

    samples: Samples
    low: Integers
    high: Integers
    ends: Grid
    range_ms: int
    at_ms: Integers
    check: Callable[[], None]

    @classmethod
    def of(
        cls,
        samples: Samples,
        grid: Grid,
        *,
        range_ms: int,
        offset_ms: int,
        check: Callable[[], None],
    ) -> "Windows":
        """Return the windows of a range selector; both ends are inside, as in Prometheus 2."""
        ends = grid.earlier(offset_ms)
        low = samples.last_until(ends.earlier(range_ms + 1)) + 1
        high = samples.last_until(ends) + 1
        return cls(samples, low, high, ends, range_ms, grid.times_ms, check)

    @cached_property
    def counts(self) -> Integers:
        """The number of samples in each window."""
        return self.high - self.low

    @property
    def first(self) -> Integers:
        """The first sample of each window; any if it is empty."""
        return np.minimum(self.low, max(0, len(self.samples.values) - 1))

    @property
    def last(self) -> Integers:
        """The last sample of each window; any if it is empty."""
        return np.maximum(self.high - 1, 0)

    def reduced(self, reduce: Callable[["Members"], Floats]) -> Floats:
        """Return a value for each window that is not empty, made from its samples."""
        values = np.full(self.low.size, np.nan)
        low, counts = self.low.ravel(), self.counts.ravel()
        nonempty = np.flatnonzero(counts > 0)
        totals = np.cumsum(counts[nonempty])
        start = 0
        while start < len(nonempty):
            self.check()
            until = (totals[start - 1] if start else 0) + CHUNK_SAMPLES
            end = max(start + 1, int(np.searchsorted(totals, until, side="right")))
            cells = nonempty[start:end]
            values[cells] = reduce(Members.of(self, cells, low[cells], counts[cells]))
            start = end
        return values.reshape(self.low.shape)


@dataclass(frozen=True, slots=True)
class Members:
    """The samples of some windows, of one window after the other.

    Attributes:
        cells: the windows, counted by step and then by series.
        values: their values.
        seconds: their times, in seconds after that of the first sample of their window.
        starts: where each window begins.
        counts: the number of samples of each window.
        ahead_seconds: how long after its first sample each window is evaluated.
    """

    cells: Integers
    values: Floats
    seconds: Floats
    starts: Integers
    counts: Integers
    ahead_seconds: Floats

    @classmethod
    def of(cls, windows: Windows, cells: Integers, low: Integers, counts: Integers) -> "Members":
        """Return the samples of some cells of windows."""
        starts = np.cumsum(counts) - counts
        index = np.repeat(low - starts, counts) + np.arange(int(counts.sum()))
        times_ms = windows.samples.times_ms
        seconds = (times_ms[index] - np.repeat(times_ms[low], counts)) / 1000
        at_ms = windows.at_ms[cells % len(windows.at_ms)]
        ahead_seconds = (at_ms - times_ms[low]) / 1000
        return cls(cells, windows.samples.values[index], seconds, starts, counts, ahead_seconds)

    def sums(self, values: Floats) -> Floats:
        """Return the sum of some values, given by sample, in each window."""
        return np.add.reduceat(values, self.starts)

    def by_sample(self, values: Floats) -> Floats:
        """Return values, given by window, for each sample."""
        return np.repeat(values, self.counts)
