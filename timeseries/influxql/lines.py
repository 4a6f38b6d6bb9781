"""Lines: the values of a function in one series of an answer, and the functions from line to line.

A line is in the order of the answer, newest first if that is what the statement asks for. A value
that there is not is NaN, which no store holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from core.clock import NS_PER_SECOND
from timeseries.influxql.syntax import Fill
from timeseries.influxql.windows import Flags, Floats, Integers


@dataclass(frozen=True, slots=True)
class Line:
    """Times and values of equal length."""

    times_ns: Integers
    values: Floats

    @classmethod
    def empty(cls) -> "Line":
        """Return a line without values."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0))

    def without_missing(self) -> "Line":
        """Return the line without missing values."""
        is_there = ~np.isnan(self.values)
        return Line(self.times_ns[is_there], self.values[is_there])

    def at(self, times_ns: Integers) -> tuple[Floats, Flags]:
        """Return the values at some times, NaN elsewhere, and whether the line has these times."""
        values = np.full(len(times_ns), np.nan)
        is_there = np.zeros(len(times_ns), dtype=bool)
        if len(self.times_ns):
            order = np.argsort(self.times_ns, kind="stable")
            index = np.searchsorted(self.times_ns[order], times_ns)
            index = order[np.minimum(index, len(order) - 1)]
            is_there = self.times_ns[index] == times_ns
            values[is_there] = self.values[index[is_there]]
        return values, is_there


def filled(line: Line, times_ns: Integers, fill: Fill, number: float) -> Line:
    """Return a line with a value at each time, as `fill` says; one without values has none."""
    if fill is Fill.NONE or not len(line.times_ns):
        return line
    if fill is not Fill.LINEAR:
        return Line(times_ns, aligned(line, times_ns, fill, number))
    values, is_there = line.at(times_ns)
    rows, there = np.arange(len(values)), np.flatnonzero(is_there)
    return Line(times_ns, np.interp(rows, there, values[there], left=np.nan, right=np.nan))


def aligned(line: Line, times_ns: Integers, fill: Fill, number: float) -> Floats:
    """Return the values at some times, and where there are none those that `fill` says."""
    values, is_there = line.at(times_ns)
    if fill is Fill.NUMBER:
        values[~is_there] = number
    if fill is Fill.PREVIOUS and len(values):
        last = np.maximum.accumulate(np.where(is_there, np.arange(len(values)), -1))
        values = np.where(last >= 0, values[last], np.nan)
    return values


def derivative(line: Line, unit_ns: float) -> Line:
    """Return the growth of each value over the one before, by unit of time."""
    steps = np.diff(line.times_ns)
    is_later = steps != 0
    growth = np.diff(line.values)[is_later] / (np.abs(steps[is_later]) / unit_ns)
    return Line(line.times_ns[1:][is_later], growth)


def difference(line: Line, _: float) -> Line:
    """Return the growth of each value over the one before."""
    return Line(line.times_ns[1:], np.diff(line.values))


def moving_average(line: Line, count: float) -> Line:
    """Return the mean of each value and those before it."""
    width = int(count)
    if len(line.values) < width:
        return Line.empty()
    windows = np.lib.stride_tricks.sliding_window_view(line.values, width)
    return Line(line.times_ns[width - 1 :], windows.mean(axis=1))


def cumulative_sum(line: Line, _: float) -> Line:
    """Return the sum of each value and all before it."""
    return Line(line.times_ns, np.cumsum(line.values))


def elapsed(line: Line, unit_ns: float) -> Line:
    """Return the time since the value before, in whole units."""
    return Line(line.times_ns[1:], np.trunc(np.diff(line.times_ns) / unit_ns))


def _not_negative(line: Line) -> Line:
    is_growth = line.values >= 0
    return Line(line.times_ns[is_growth], line.values[is_growth])


@dataclass(frozen=True, slots=True)
class Transformation:
    """A function from line to line, with a number as its argument.

    Attributes:
        apply: the function.
        argument: the number by default; None if it must be there.
        takes_duration: whether the number is a duration in nanoseconds.
        keeps_growth: whether negative results are left out.
        windows_before: how many windows before the range it reads.
    """

    apply: Callable[[Line, float], Line]
    argument: float | None = 0.0
    takes_duration: bool = False
    keeps_growth: bool = False
    windows_before: int = 1

    def line(self, line: Line, argument: float) -> Line:
        """Return the result, without missing values."""
        result = self.apply(line.without_missing(), argument)
        return _not_negative(result) if self.keeps_growth else result


_DERIVATIVE = Transformation(derivative, argument=NS_PER_SECOND, takes_duration=True)
_DIFFERENCE = Transformation(difference)
TRANSFORMATIONS: Mapping[str, Transformation] = {
    "derivative": _DERIVATIVE,
    "non_negative_derivative": replace(_DERIVATIVE, keeps_growth=True),
    "difference": _DIFFERENCE,
    "non_negative_difference": replace(_DIFFERENCE, keeps_growth=True),
    "moving_average": Transformation(moving_average, argument=None),
    "cumulative_sum": Transformation(cumulative_sum, windows_before=0),
    "elapsed": Transformation(elapsed, argument=1.0, takes_duration=True),
}


def calculated(operator: str, left: Floats | float, right: Floats | float) -> Floats:
    """Return arithmetic of two columns or numbers; what is divided by 0 is 0."""
    with np.errstate(all="ignore"):
        if operator == "/":
            return np.where(np.equal(right, 0) & ~np.isnan(left), 0.0, np.divide(left, right))
        results: Floats = _CALCULATIONS[operator](left, right)
    return results


_CALCULATIONS: Mapping[str, np.ufunc] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "%": np.fmod,
}
