"""Aggregations over the series of an instant vector, of all groups and steps at once."""

from collections.abc import Callable, Sequence

import numpy as np

from timeseries.promql.syntax import EvaluationError
from timeseries.promql.values import (
    NAME_LABEL,
    Flags,
    Floats,
    Labels,
    Scalar,
    Vector,
    check_cells,
    group_rows,
    key_of,
)

MAX_COUNTED_VALUES = 1_000
GroupOf = Callable[[Labels], Labels]


def grouping(names: Sequence[str], *, is_without: bool) -> GroupOf:
    """Return what gives the labels of a series' group."""
    listed = {*names, NAME_LABEL} if is_without else {*names}

    def group_of(labels: Labels) -> Labels:
        return {name: text for name, text in labels.items() if (name in listed) is not is_without}

    return group_of


def aggregated(name: str, vector: Vector, group_of: GroupOf) -> Vector:
    """Return the sum, average, extremes, number or deviation of each group."""
    if not vector.labels:
        return vector
    groups = _Groups(vector, group_of)
    values = groups.reduced(name)
    return Vector(groups.labels, values, groups.counts > 0)


def selected(name: str, vector: Vector, count: Scalar, group_of: GroupOf) -> Vector:
    """Return the series with the largest or smallest values of each group at each step.

    Args:
        name: `topk` or `bottomk`.
        vector: the series.
        count: how many of a group, at each step.
        group_of: what gives the labels of a series' group.
    """
    keys = -vector.values if name == "topk" else vector.values
    # NaN comes after every number, and what is absent after NaN.
    keys = np.where(np.isnan(keys), np.inf, keys)
    keys = np.where(vector.is_present, keys, np.nan)
    is_present = np.zeros_like(vector.is_present)
    for members in group_rows(vector.labels, lambda labels: key_of(group_of(labels))).values():
        for number in np.unique(np.nan_to_num(count)):
            cells = np.ix_(np.array(members), np.flatnonzero(np.nan_to_num(count) == number))
            is_present[cells] = _least(keys[cells], int(min(number, len(members))))
    return Vector(vector.labels, vector.values, is_present)


def _least(keys: Floats, count: int) -> Flags:
    """Return which numbers are among the least of each column; of equal ones the first."""
    if count < 1:
        return np.zeros(keys.shape, dtype=bool)
    if count >= len(keys):
        return ~np.isnan(keys)
    by_step = np.ascontiguousarray(keys.T)
    level = np.partition(by_step, count - 1, axis=1)[:, count - 1, None]
    is_less = by_step < level
    remaining = count - is_less.sum(axis=1, keepdims=True)
    is_level = by_step == level
    is_chosen = is_less | (is_level & (np.cumsum(is_level, axis=1) <= remaining))
    # Fewer are present than are asked for.
    return np.where(np.isnan(level), ~np.isnan(by_step), is_chosen).T


def quantile(vector: Vector, q: Scalar, group_of: GroupOf) -> Vector:
    """Return a quantile of each group; NaN is less than any number."""
    groups = group_rows(vector.labels, lambda labels: key_of(group_of(labels)))
    steps = vector.values.shape[1]
    values, is_present = np.full((len(groups), steps), np.nan), np.zeros((len(groups), steps), bool)
    for at, members in enumerate(groups.values()):
        own = vector.is_present[members]
        is_nan = own & np.isnan(vector.values[members])
        keys = np.where(own, np.where(is_nan, -np.inf, vector.values[members]), np.inf)
        counts = own.sum(axis=0)
        is_present[at] = counts > 0
        values[at] = _ranked(np.sort(keys, axis=0), counts, is_nan.sum(axis=0), q)
    labels = [group_of(vector.labels[members[0]]) for members in groups.values()]
    return Vector(labels, values, is_present)


def _ranked(ordered: Floats, counts: np.ndarray, nans: np.ndarray, q: Scalar) -> Floats:
    """Return the quantile of the first `counts` values of each column."""
    rank = np.clip(np.nan_to_num(q), 0.0, 1.0) * np.maximum(counts - 1, 0)
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(np.maximum(counts - 1, 0), low + 1)
    steps = np.arange(ordered.shape[1])
    weight = rank - low
    lower, upper = (
        np.where(position < nans, np.nan, ordered[position, steps]) for position in (low, high)
    )
    values = lower * (1 - weight) + upper * weight
    return np.select([np.isnan(q), q < 0, q > 1], [np.nan, -np.inf, np.inf], values)


def count_values(vector: Vector, label: str, group_of: GroupOf) -> Vector:
    """Return how many series of each group have each value, which becomes a label.

    Raises:
        EvaluationError: there are too many values.
    """
    if len(np.unique(vector.values[vector.is_present])) > MAX_COUNTED_VALUES:
        raise EvaluationError(
            f"count_values has more than {MAX_COUNTED_VALUES:,} values. Round them first."
        )
    labels, rows = list[Labels](), list[Floats]()
    steps = vector.values.shape[1]
    for members in group_rows(vector.labels, lambda own: key_of(group_of(own))).values():
        values, is_present = vector.values[members], vector.is_present[members]
        numbers = np.unique(values[is_present])
        check_cells(len(rows) + len(numbers), steps)
        for number in numbers:
            is_equal = np.isnan(values) if np.isnan(number) else values == number
            labels.append({**group_of(vector.labels[members[0]]), label: number_text(number)})
            rows.append((is_equal & is_present).sum(axis=0).astype(np.float64))
    counts = np.array(rows).reshape(len(rows), steps)
    return Vector.merged(labels, counts, counts > 0).compact()


def number_text(number: float) -> str:
    """Return a number as Prometheus writes it."""
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return np.format_float_positional(number, trim="-")


class _Groups:
    """The rows of a vector by group, of which each can be reduced to one row."""

    def __init__(self, vector: Vector, group_of: GroupOf) -> None:
        groups = group_rows(vector.labels, lambda labels: key_of(group_of(labels)))
        order = np.array([row for members in groups.values() for row in members])
        self.labels = [group_of(vector.labels[members[0]]) for members in groups.values()]
        self._sizes = np.array([len(members) for members in groups.values()])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._values = vector.values[order]
        self._is_present = vector.is_present[order]
        self.counts = np.add.reduceat(self._is_present, self._starts, axis=0, dtype=np.int64)

    def reduced(self, name: str) -> Floats:
        """Return an aggregate of each group at each step."""
        reduce: dict[str, Callable[[], Floats]] = {
            "sum": lambda: self._sums(self._values),
            "avg": lambda: self._sums(self._values) / self.counts,
            "min": lambda: self._extreme(np.fmin),
            "max": lambda: self._extreme(np.fmax),
            "count": lambda: self.counts.astype(np.float64),
            "group": lambda: np.ones(self.counts.shape),
            "stdvar": self._variance,
            "stddev": lambda: np.sqrt(self._variance()),
        }
        return reduce[name]()

    def _sums(self, values: Floats) -> Floats:
        present = np.where(self._is_present, values, 0.0)
        return np.add.reduceat(present, self._starts, axis=0)

    def _extreme(self, extreme: np.ufunc) -> Floats:
        present = np.where(self._is_present, self._values, np.nan)
        return extreme.reduceat(present, self._starts, axis=0)

    def _variance(self) -> Floats:
        means = self._sums(self._values) / self.counts
        deviations = self._values - np.repeat(means, self._sizes, axis=0)
        variances = self._sums(deviations * deviations) / self.counts
        # Also of a single NaN, as in Prometheus.
        return np.where(self.counts == 1, 0.0, variances)
