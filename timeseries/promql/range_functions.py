"""Functions of range vectors, each over all windows of all series at once.

Source: `promql/functions.go` of Prometheus 2.42, whose extrapolation and corner cases these follow.
"""

from collections.abc import Callable, Mapping

import numpy as np

from timeseries.promql.values import Flags, Floats, Integers, Scalar, Vector
from timeseries.promql.windows import Members, Windows

_THRESHOLD = 1.1
"""A window is continued to its ends if they are nearer than this many intervals of samples."""
CHUNK_SERIES = 256
"""The time that a query has left is looked at after so many series."""


def _extrapolated(windows: Windows, *, is_counter: bool, is_rate: bool) -> Floats:
    samples, first, last = windows.samples, windows.first, windows.last
    growth = samples.values[last] - samples.values[first]
    if is_counter:
        growth = growth + _resets(windows, first, last)
    first_ms, last_ms = samples.times_ms[first], samples.times_ms[last]
    ends_ms = windows.ends.times_ms
    to_start = (first_ms - (ends_ms - windows.range_ms)) / 1000
    to_end = (ends_ms - last_ms) / 1000
    sampled = (last_ms - first_ms) / 1000
    interval = sampled / (windows.counts - 1)
    if is_counter:
        # A counter can't have been below 0.
        starts = samples.values[first]
        to_zero = sampled * (starts / growth)
        is_nearer = (growth > 0) & (starts >= 0) & (to_zero < to_start)
        to_start = np.where(is_nearer, to_zero, to_start)
    covered = sampled
    for distance in (to_start, to_end):
        is_near = distance < interval * _THRESHOLD
        covered = covered + np.where(is_near, distance, interval / 2)
    factor = covered / sampled
    return growth * (factor / (windows.range_ms / 1000) if is_rate else factor)


def _resets(windows: Windows, first: Integers, last: Integers) -> Floats:
    """Return what counters lost by restarting at 0 in each window."""
    samples = windows.samples
    lost = np.zeros(len(samples.values))
    before = samples.values[:-1]
    lost[1:] = np.where((samples.values[1:] < before) & ~samples.is_first[1:], before, 0.0)
    total = np.cumsum(lost)
    return total[last] - total[first]


def _successive(windows: Windows, *, is_rate: bool) -> Floats:
    """Return the difference of the last two samples, for irate and idelta."""
    samples, last = windows.samples, windows.last
    before = np.maximum(last - 1, 0)
    newest, previous = samples.values[last], samples.values[before]
    if not is_rate:
        return newest - previous
    growth = np.where(newest < previous, newest, newest - previous)
    return growth / ((samples.times_ms[last] - samples.times_ms[before]) / 1000)


def _count_of(is_counted: Callable[[Floats, Floats], Flags]) -> Callable[[Windows], Floats]:
    """Return a function that counts pairs of successive samples."""

    def count(windows: Windows) -> Floats:
        samples = windows.samples
        flags = np.zeros(len(samples.values), dtype=np.int64)
        flags[1:] = is_counted(samples.values[:-1], samples.values[1:]) & ~samples.is_first[1:]
        total = np.cumsum(flags)
        return (total[windows.last] - total[windows.first]).astype(np.float64)

    return count


def _has_changed(before: Floats, after: Floats) -> Flags:
    is_changed: Flags = (before != after) & ~(np.isnan(before) & np.isnan(after))
    return is_changed


def _by_windows(reduce: np.ufunc) -> Callable[[Windows], Floats]:
    """Return a function that reduces the samples of each window where they are stored."""

    def reduced(windows: Windows) -> Floats:
        # An index must be below the length, also that of an end.
        values = np.append(windows.samples.values, 0.0)
        pairs = np.stack((windows.low, windows.high), axis=-1)
        parts = []
        for start in range(0, len(pairs), CHUNK_SERIES):
            windows.check()
            part = pairs[start : start + CHUNK_SERIES]
            parts.append(reduce.reduceat(values, part.ravel())[::2])
        return np.concatenate(parts).reshape(windows.low.shape)

    return reduced


def _variance(members: Members) -> Floats:
    means = members.sums(members.values) / members.counts
    deviations = members.values - members.by_sample(means)
    return members.sums(deviations * deviations) / members.counts


def _regression(members: Members) -> tuple[Floats, Floats]:
    """Return slope and value at the first sample of the line of least squares."""
    is_constant = np.minimum.reduceat(members.values, members.starts) == np.maximum.reduceat(
        members.values, members.starts
    )
    first = members.values[members.starts]
    mean_x = members.sums(members.seconds) / members.counts
    mean_y = members.sums(members.values) / members.counts
    x = members.seconds - members.by_sample(mean_x)
    slope = members.sums(x * (members.values - members.by_sample(mean_y))) / members.sums(x * x)
    slope = np.where(is_constant, np.where(np.isinf(first), np.nan, 0.0), slope)
    return slope, np.where(is_constant, first, mean_y - slope * mean_x)


def _quantiles(members: Members, q: Floats) -> Floats:
    """Return a quantile of the samples of each window, NaN being less than any number."""
    results = np.empty(len(members.counts))
    # Windows of one size are a table, whose rows are sorted in a tenth of the time.
    for count in np.unique(members.counts):
        rows = np.flatnonzero(members.counts == count)
        table = members.values[members.starts[rows, None] + np.arange(count)]
        nans = np.isnan(table).sum(axis=1)
        table = np.sort(np.where(np.isnan(table), -np.inf, table), axis=1)
        rank = q[rows] * (count - 1)
        low = np.floor(rank).astype(np.int64)
        high = np.minimum(count - 1, low + 1)
        lower, upper = (
            np.where(at < nans, np.nan, table[np.arange(len(rows)), at]) for at in (low, high)
        )
        results[rows] = lower * (1 - (rank - low)) + upper * (rank - low)
    return results


def quantile_over_time(windows: Windows, q: Scalar) -> Vector:
    """Return a quantile of each window; q is a number for each step."""
    ranks = np.clip(np.nan_to_num(q), 0.0, 1.0)
    values = windows.reduced(lambda members: _quantiles(members, ranks[members.cells % len(ranks)]))
    values = np.where(q < 0, -np.inf, np.where(q > 1, np.inf, values))
    return _vector(windows, np.where(np.isnan(q), np.nan, values), least=1)


def predict_linear(windows: Windows, ahead: Scalar) -> Vector:
    """Return the line of each window's samples in some seconds; these are a number for each step.

    The line is that of least squares, and the time counts from that of the evaluation.
    """

    def reduce(members: Members) -> Floats:
        slope, start = _regression(members)
        return start + slope * (members.ahead_seconds + ahead[members.cells % len(ahead)])

    return _vector(windows, windows.reduced(reduce), least=2)


_Reducer = Callable[[Windows], Floats]
_FUNCTIONS: Mapping[str, tuple[_Reducer, int]] = {
    "rate": (lambda windows: _extrapolated(windows, is_counter=True, is_rate=True), 2),
    "increase": (lambda windows: _extrapolated(windows, is_counter=True, is_rate=False), 2),
    "delta": (lambda windows: _extrapolated(windows, is_counter=False, is_rate=False), 2),
    "irate": (lambda windows: _successive(windows, is_rate=True), 2),
    "idelta": (lambda windows: _successive(windows, is_rate=False), 2),
    "deriv": (lambda windows: windows.reduced(lambda members: _regression(members)[0]), 2),
    "changes": (_count_of(_has_changed), 1),
    "resets": (_count_of(lambda before, after: after < before), 1),
    "sum_over_time": (_by_windows(np.add), 1),
    "avg_over_time": (lambda windows: _by_windows(np.add)(windows) / windows.counts, 1),
    "min_over_time": (_by_windows(np.fmin), 1),
    "max_over_time": (_by_windows(np.fmax), 1),
    "count_over_time": (lambda windows: windows.counts.astype(np.float64), 1),
    "last_over_time": (lambda windows: windows.samples.values[windows.last], 1),
    "present_over_time": (lambda windows: np.ones(windows.low.shape), 1),
    "stdvar_over_time": (lambda windows: windows.reduced(_variance), 1),
    "stddev_over_time": (lambda windows: np.sqrt(windows.reduced(_variance)), 1),
}
"""By name: the function, and the number of samples that it needs."""
RANGE_FUNCTIONS = _FUNCTIONS.keys()


def over_windows(name: str, windows: Windows) -> Vector:
    """Return a function of `RANGE_FUNCTIONS` of each window."""
    reduce, least = _FUNCTIONS[name]
    if not windows.samples.labels:
        return Vector.empty(windows.low.shape[1])
    values = reduce(windows)
    vector = _vector(windows, values, least=least)
    if name == "last_over_time":
        return Vector(windows.samples.labels, vector.values, vector.is_present)
    return vector


def _vector(windows: Windows, values: Floats, *, least: int) -> Vector:
    """Return the values of windows with enough samples, without names."""
    is_present = windows.counts >= least
    named = Vector(windows.samples.labels, values, is_present)
    return named.unnamed(values)
