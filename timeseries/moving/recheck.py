"""Which hours of the source have changed since they were moved.

Samples can land in hours long past: an appliance that was cut off sends them when it is back. So
each chunk is recorded with the number of values that the source held of it just before it was read,
and a number that differs later tells that it has to be read again.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from timeseries.extent import HOUR_NS
from timeseries.moving.state import Moved
from timeseries.store import Aggregate, RangeQuery, ScanQuery, Store


def values_in(store: Store, query: ScanQuery) -> int:
    """Return how many values of fields a store holds of a span."""
    return sum(_by_hour(store, query).values())


def changed(store: Store, query: ScanQuery, recorded: Sequence[Moved]) -> Iterator[ScanQuery]:
    """Yield the recorded chunks that have changed, and hours before or between them that are new.

    Args:
        store: the source.
        query: what is moved of a measurement.
        recorded: the chunks that are moved, oldest first; they begin and end with whole hours, or
            with the query.
    """
    if not recorded:
        return
    query = replace(query, end_ns=recorded[-1].end_ns)
    extent = store.extent(query)
    if extent is None:
        return
    start_ns = max(query.start_ns, extent.start_ns // HOUR_NS * HOUR_NS)
    starts = [moved.start_ns // HOUR_NS * HOUR_NS for moved in recorded]
    counts = [0] * len(recorded)
    for hour_ns, count in sorted(_by_hour(store, replace(query, start_ns=start_ns)).items()):
        at = bisect_right(starts, hour_ns) - 1
        if at >= 0 and hour_ns < recorded[at].end_ns:
            counts[at] += count
        else:
            end_ns = min(hour_ns + HOUR_NS, query.end_ns)
            yield replace(query, start_ns=max(hour_ns, query.start_ns), end_ns=end_ns)
    for moved, count in zip(recorded, counts, strict=True):
        # Where there is nothing any more, retention has taken it.
        if count not in (0, moved.values):
            yield replace(query, start_ns=moved.start_ns, end_ns=moved.end_ns)


def _by_hour(store: Store, query: ScanQuery) -> dict[int, int]:
    """Return the number of values in each hour that has any, by its start."""
    found: dict[int, int] = {}
    for series in store.query_range(
        RangeQuery(
            measurement=query.measurement,
            fields=tuple(store.fields(query.measurement, tenants=query.tenants)),
            start_ns=query.start_ns,
            end_ns=query.end_ns,
            aggregate=Aggregate.COUNT,
            step_ns=HOUR_NS,
            tenants=query.tenants,
            filters=query.filters,
        )
    ):
        for hour_ns, count in zip(series.times_ns, series.values, strict=True):
            found[hour_ns] = found.get(hour_ns, 0) + round(count)
    return found
