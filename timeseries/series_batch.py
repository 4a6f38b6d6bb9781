"""Samples of numbered series: what a sender repeats in every post is only numbers.

A *labeled series*, as remote_write and OTLP send it, is one field of a measurement. It has its
number in a *series table*, so that each step on the way of a sample does its work once for a
series, and for a sample works on arrays.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timeseries.points import Batch, Block

VALUE_FIELD = "value"
Shape = tuple[str, tuple[str, ...]]
"""A measurement and its tags."""


class LabeledSeries(NamedTuple):
    """A series of the field `value`.

    Attributes:
        measurement: the name.
        tags: the names of its tags, those of the identity first.
        tag_values: the value of each.
    """

    measurement: str
    tags: tuple[str, ...]
    tag_values: tuple[str, ...]

    @property
    def tenant(self) -> str:
        """The tenant that it belongs to."""
        return self.tag_values[0]

    @property
    def appliance(self) -> str:
        """The appliance that it is of."""
        return self.tag_values[1]


class SeriesTable:
    """Numbers of series, in the order in which they were added. Compared by identity.

    Attributes:
        series: the series of each number.
    """

    def __init__(self) -> None:
        self.series: list[LabeledSeries] = []
        self._numbers: dict[LabeledSeries, int] = {}

    def __len__(self) -> int:
        return len(self.series)

    def number(self, series: LabeledSeries) -> int:
        """Return the number of a series, which is added if it has none."""
        number = self._numbers.setdefault(series, len(self.series))
        if number == len(self.series):
            self.series.append(series)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class SeriesBatch:
    """Samples of numbered series whose identity is verified, in columns of equal length.

    Attributes:
        table: has the series.
        numbers: the number of each sample's series.
        values: the values, all finite.
        times_ns: the times, in nanoseconds since the epoch.
        positions: the position of each sample in what was sent; errors refer to it.
    """

    table: SeriesTable
    numbers: NDArray[np.int32]
    values: NDArray[np.float64]
    times_ns: NDArray[np.int64]
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, rows: "NDArray[np.bool_] | NDArray[np.int64]") -> "SeriesBatch":
        """Return the samples at which a mask is true, or those of some rows."""
        return SeriesBatch(
            self.table,
            self.numbers[rows],
            self.values[rows],
            self.times_ns[rows],
            self.positions[rows],
        )

    def only(self, positions: Collection[int]) -> "SeriesBatch":
        """Return the samples at some positions."""
        return self.select(np.isin(self.positions, list(positions)))

    def without(self, positions: Collection[int]) -> "SeriesBatch":
        """Return the samples at all other positions."""
        if not positions:
            return self
        return self.select(~np.isin(self.positions, list(positions)))

    def as_batch(self) -> Batch:
        """Return the same as a batch of blocks, which takes some microseconds a sample."""
        return Batch(tuple(self._blocks()), is_stamped=True)

    def _blocks(self) -> Iterator[Block]:
        groups: dict[Shape, list[int]] = {}
        series = [self.table.series[number] for number in self.numbers.tolist()]
        for row, labeled in enumerate(series):
            groups.setdefault((labeled.measurement, labeled.tags), []).append(row)
        for (measurement, tags), rows in groups.items():
            tag_sets: Sequence[tuple[str, ...]] = [series[row].tag_values for row in rows]
            index = {values: at for at, values in enumerate(dict.fromkeys(tag_sets))}
            yield Block(
                measurement,
                tags,
                list(index),
                [index[values] for values in tag_sets],
                (VALUE_FIELD,),
                (float,),
                (self.values[rows].tolist(),),
                self.times_ns[rows].tolist(),
                self.positions[rows].tolist(),
            )
