"""Values of PromQL over a grid of times.

A scalar is an array with a number for each step. A vector has a row for each series, with a number
for each step where the series is present: NaN is a number, too. All steps of a query are computed
together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from timeseries.promql.syntax import EvaluationError

NAME_LABEL = "__name__"
LOOKBACK_MS = 300_000
"""How long a series without a newer sample is present."""
MAX_CELLS = 5_000_000
"""The series of a vector, times the steps of the query."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Labels = Mapping[str, str]
Scalar = Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """The times of a query, in milliseconds: an instant, or the steps of a range."""

    start_ms: int
    step_ms: int
    steps: int

    @property
    def times_ms(self) -> Integers:
        """The time of each step."""
        return self.start_ms + self.step_ms * np.arange(self.steps, dtype=np.int64)

    @property
    def end_ms(self) -> int:
        """The last time."""
        return self.start_ms + self.step_ms * (self.steps - 1)

    def earlier(self, by_ms: int) -> "Grid":
        """Return the grid that is so much earlier."""
        return replace(self, start_ms=self.start_ms - by_ms)


@dataclass(frozen=True, slots=True)
class Vector:
    """Series with a value at the steps where they are present; labels are unique."""

    labels: Sequence[Labels]
    values: Floats
    is_present: Flags

    @classmethod
    def empty(cls, steps: int) -> "Vector":
        """Return no series."""
        return cls([], np.zeros((0, steps)), np.zeros((0, steps), dtype=bool))

    @classmethod
    def merged(cls, labels: Sequence[Labels], values: Floats, is_present: Flags) -> "Vector":
        """Return series of which several may have the same labels, at different steps.

        Raises:
            EvaluationError: two of them are present at the same step.
        """
        groups = group_rows(labels, key_of)
        if len(groups) == len(labels):
            return cls(labels, values, is_present)
        rows = [members[0] for members in groups.values()]
        merged_values, merged_present = values[rows], is_present[rows]
        for at, members in enumerate(groups.values()):
            for row in members[1:]:
                if (merged_present[at] & is_present[row]).any():
                    raise EvaluationError(
                        "The expression gives several series with the same labels "
                        f"{shown(labels[row])}. Aggregate them, or match on more labels."
                    )
                merged_values[at] = np.where(is_present[row], values[row], merged_values[at])
                merged_present[at] |= is_present[row]
        return cls([labels[row] for row in rows], merged_values, merged_present)

    def select(self, rows: Sequence[int] | Integers) -> "Vector":
        """Return some rows."""
        return Vector([self.labels[row] for row in rows], self.values[rows], self.is_present[rows])

    def compact(self) -> "Vector":
        """Return the vector without series that are never present."""
        rows = np.flatnonzero(self.is_present.any(axis=1))
        return self if len(rows) == len(self.labels) else self.select(rows)

    def unnamed(self, values: Floats) -> "Vector":
        """Return the same series without their names, with other values."""
        return Vector.merged(list(map(without_name, self.labels)), values, self.is_present)


@dataclass(frozen=True)
class Samples:
    """The samples of some series, of one series after the other, by time.

    Attributes:
        labels: the labels of each series.
        offsets: where each series begins; the last is the number of all samples.
        times_ms: the times, which ascend in a series.
        values: the values.
    """

    labels: Sequence[Labels]
    offsets: Integers
    times_ms: Integers
    values: Floats

    @cached_property
    def series_of(self) -> Integers:
        """The row of each sample's series."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    @cached_property
    def is_first(self) -> Flags:
        """Whether each sample is the first one of its series."""
        flags = np.zeros(len(self.times_ms), dtype=bool)
        flags[self.offsets[:-1]] = True
        return flags

    def last_until(self, grid: Grid) -> Integers:
        """Return the last sample of each series at or before each time.

        Where there is none, it is the one before the first of the series.
        """
        steps_ms = max(1, grid.step_ms)
        column = np.maximum(0, -((grid.start_ms - self.times_ms) // steps_ms))
        is_inside = column < grid.steps
        last = np.full((len(self.labels), grid.steps), -1, dtype=np.int64)
        # Samples ascend, and of several for one step the last assignment counts.
        last[self.series_of[is_inside], column[is_inside]] = np.flatnonzero(is_inside)
        np.maximum.accumulate(last, axis=1, out=last)
        return np.maximum(last, self.offsets[:-1, None] - 1, out=last)

    def newest(self, grid: Grid) -> tuple[Integers, Flags]:
        """Return the index of the sample that counts at each step, and whether there is one."""
        last = self.last_until(grid)
        is_present = last >= self.offsets[:-1, None]
        last = np.maximum(last, 0)
        if len(self.times_ms):
            is_present &= self.times_ms[last] >= grid.times_ms - LOOKBACK_MS
        return last, is_present


def check_cells(series: int, steps: int) -> None:
    """Check that a value does not take too much memory.

    Raises:
        EvaluationError: it has too many series and steps.
    """
    if series * steps > MAX_CELLS:
        raise EvaluationError(
            f"A part of the expression has {series:,} series at {steps:,} steps, more than "
            f"{MAX_CELLS:,} values. Use a larger step, a shorter range, or more matchers."
        )


def key_of(labels: Labels) -> frozenset[tuple[str, str]]:
    """Return what identifies labels, whatever their order."""
    return frozenset(labels.items())


def group_rows(
    labels: Iterable[Labels], key: Callable[[Labels], object]
) -> dict[object, list[int]]:
    """Return the rows with the same key."""
    groups: dict[object, list[int]] = {}
    for row, own in enumerate(labels):
        groups.setdefault(key(own), []).append(row)
    return groups


def without_name(labels: Labels) -> Labels:
    """Return labels without the name of the metric."""
    return {label: text for label, text in labels.items() if label != NAME_LABEL}


def shown(labels: Labels) -> str:
    """Return labels as PromQL writes them."""
    pairs = (f'{name}="{text}"' for name, text in sorted(labels.items()) if name != NAME_LABEL)
    return f"{labels.get(NAME_LABEL, '')}{{{', '.join(pairs)}}}"
