"""Quantiles between two values, which InfluxQL lacks: its `percentile` takes the nearest rank.

Which ranks lie around a quantile depends on how many values a window has. So the windows are
counted first; then for each size the percentages are asked for whose nearest ranks are those two,
and the value is put between them as PostgreSQL's `percentile_cont` does. Windows of one range have
nearly all the same size; beyond `MAX_SIZES` the larger ones, where it matters least, take the
nearest rank.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from timeseries.influxdb.http import Value
from timeseries.influxdb.ql import aggregate, percentile
from timeseries.store import Aggregate

MAX_SIZES = 16
COUNT, NEAREST = "n", "near"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The expressions that give a quantile of windows of some sizes.

    Attributes:
        ratio: the quantile, from 0 to 1.
        sizes: how many values a window may have; each with its two columns.
    """

    ratio: float
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, ratio: float, sizes: Iterable[int]) -> "Quantiles":
        """Return the expressions for the smallest of these sizes."""
        return cls(ratio, tuple(sorted(set(sizes))[:MAX_SIZES]))

    def columns(self, field: str) -> dict[str, str]:
        """Return expressions by the names of their columns."""
        from_ranks = {
            f"{side}{size}": percentile(field, 100 * (rank + 1) / size)
            for size in self.sizes
            for side, rank in zip("lh", _ranks(self.ratio, size)[:2], strict=True)
        }
        return {
            COUNT: aggregate(Aggregate.COUNT, field),
            NEAREST: percentile(field, 100 * self.ratio),
            **from_ranks,
        }

    def value(self, row: Mapping[str, Value]) -> float | None:
        """Return the quantile of a window from its row of those columns."""
        size = int(row[COUNT] or 0)
        low, high = row.get(f"l{size}"), row.get(f"h{size}")
        if low is None or high is None:
            # A size too many, or a sample that came between the two requests.
            low = high = row[NEAREST]
        if low is None or high is None:
            return None
        return float(low) + (float(high) - float(low)) * _ranks(self.ratio, size)[2]


def quantile_of_flags(ratio: float, *, false: int, true: int) -> float:
    """Return the quantile of so many zeros and ones."""
    low, high, share = _ranks(ratio, false + true)
    first, second = float(low >= false), float(high >= false)
    return first + (second - first) * share


def _ranks(ratio: float, size: int) -> tuple[int, int, float]:
    """Return the ranks around a quantile, counted from 0, and how far it is from the first."""
    place = ratio * (size - 1)
    low = math.floor(place)
    return low, math.ceil(place), place - low
