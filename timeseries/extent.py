"""Extents: from when to when a store has samples of a measurement, and about how many.

Moving and exporting walk a store in *chunks* of an hour or a day; an extent says where to begin and
end, and how much there is for the sake of progress. A store that can say it at once has `extent`;
any other is asked for its counts by day.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from core.clock import NS_PER_SECOND
from timeseries.store import Aggregate, RangeQuery, ScanQuery, Store

HOUR_NS = 3600 * NS_PER_SECOND
_DAY_NS = 24 * HOUR_NS
_SMALL_DAY_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the samples of a measurement lie: `[start_ns, end_ns)`, and the number of points.

    `is_exact` is False where the bounds are those of days, and the points a lower bound.
    """

    start_ns: int
    end_ns: int
    points: int
    is_exact: bool = True


@runtime_checkable
class KnowsExtents(Protocol):
    """A store that can say its extents at once."""

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of what a scan would yield; None where that is nothing."""


def extent_of(store: Store, query: ScanQuery) -> Extent | None:
    """Return the extent of what a scan would yield; None where that is nothing."""
    if isinstance(store, KnowsExtents):
        return store.extent(query)
    counts = store.query_range(
        RangeQuery(
            measurement=query.measurement,
            fields=tuple(store.fields(query.measurement)),
            start_ns=max(0, query.start_ns),
            end_ns=query.end_ns,
            aggregate=Aggregate.COUNT,
            step_ns=_DAY_NS,
            tenants=query.tenants,
            filters=query.filters,
        )
    )
    days = [day for series in counts for day in series.times_ns]
    if not days:
        return None
    return Extent(
        start_ns=max(min(days), query.start_ns),
        end_ns=min(max(days) + _DAY_NS, query.end_ns),
        points=max(int(sum(series.values)) for series in counts),
        is_exact=False,
    )


def chunks(query: ScanQuery, extent: Extent) -> Iterator[ScanQuery]:
    """Yield the query cut into the whole hours of an extent, or its days where those are small."""
    end_ns = min(query.end_ns, extent.end_ns)
    start_ns = max(query.start_ns, extent.start_ns)
    days = max(1, (end_ns - start_ns) // _DAY_NS)
    width_ns = _DAY_NS if extent.points <= days * _SMALL_DAY_POINTS else HOUR_NS
    while start_ns < end_ns:
        next_ns = min(start_ns - start_ns % width_ns + width_ns, end_ns)
        yield replace(query, start_ns=start_ns, end_ns=next_ns)
        start_ns = next_ns
