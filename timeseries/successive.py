"""Aggregates that need every sample in order: standard deviation and growth of counters.

`change` is the last value minus the first, `increase` the growth from sample to sample, where a
value below the one before is a counter that restarted at 0, and `rate` the increase per second
between the first and the last sample. All three are those of each series, by all of its tags, added
up over the series of a group; a series with one sample in a window has none. `stddev` is the
population's, over all samples of a group.

The embedded store calculates them in SQL; the others read the samples, series by series.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from core.clock import NS_PER_SECOND
from timeseries.store import Aggregate

SUCCESSIVE = frozenset({Aggregate.STDDEV, Aggregate.CHANGE, Aggregate.INCREASE, Aggregate.RATE})
Group = tuple[str, ...]
Window = tuple[Group, int]
"""A group and the start of a window."""


@dataclass(slots=True)
class _Growth:
    """One series in one window, so far."""

    first_ns: int
    first: float
    last_ns: int
    last: float
    increase: float = 0.0

    def add(self, at_ns: int, value: float) -> None:
        self.increase += value - self.last if value >= self.last else value
        self.last_ns, self.last = at_ns, value

    def value(self, aggregate: Aggregate) -> float:
        if aggregate is Aggregate.CHANGE:
            return self.last - self.first
        if aggregate is Aggregate.INCREASE:
            return self.increase
        return self.increase * NS_PER_SECOND / (self.last_ns - self.first_ns)


@dataclass(slots=True)
class _Spread:
    """The samples of one group in one window, so far (Welford's method)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        distance = value - self.mean
        self.mean += distance / self.count
        self.squares += distance * (value - self.mean)

    @property
    def stddev(self) -> float:
        return math.sqrt(self.squares / self.count)


@dataclass(slots=True)
class SuccessiveValues:
    """Takes samples, those of one series in order of time, and returns the aggregate by window."""

    aggregate: Aggregate
    _growths: dict[tuple[Window, Hashable], _Growth] = field(default_factory=dict)
    _spreads: dict[Window, _Spread] = field(default_factory=dict)

    def add(self, window: Window, series: Hashable, at_ns: int, value: float) -> None:
        """Add a sample."""
        if self.aggregate is Aggregate.STDDEV:
            self._spreads.setdefault(window, _Spread()).add(value)
        elif (growth := self._growths.get((window, series))) is not None:
            growth.add(at_ns, value)
        else:
            self._growths[window, series] = _Growth(at_ns, value, at_ns, value)

    def windows(self) -> dict[Window, float]:
        """Return the values by window."""
        window_values = {window: spread.stddev for window, spread in self._spreads.items()}
        for (window, _), growth in self._growths.items():
            if growth.last_ns > growth.first_ns:
                window_values[window] = window_values.get(window, 0.0) + growth.value(
                    self.aggregate
                )
        return window_values
