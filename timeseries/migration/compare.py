"""Comparing two stores: which chunks changed, which points are missing, whether a copy is complete.

Samples can arrive in old hours: an appliance that was offline sends them when it reconnects. So
each chunk is recorded with the number of values that the source had just before it was read, and is
read again if that number changes.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from core.clock import NS_PER_SECOND
from timeseries.migration.state import MigratedChunk
from timeseries.points import Batch, Block
from timeseries.store import HOUR_NS, Aggregate, RangeQuery, ScanQuery, Store, chunks

SeriesKey = frozenset[tuple[str, str]]
Present = dict[SeriesKey, dict[int, frozenset[str]]]
# Narrower than any roll-up, so that samples are counted.
_STEP_NS = 30 * NS_PER_SECOND
_PAUSE_SECONDS = 2.0
_MAX_PAUSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The samples to migrate; an empty `measurements` and `tenants=None` select all."""

    measurements: tuple[str, ...] = ()
    tenants: tuple[str, ...] | None = None
    start_ns: int
    end_ns: int

    def query(self, measurement: str) -> ScanQuery:
        """Return the scan of one measurement."""
        return ScanQuery(
            measurement=measurement,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            tenants=self.tenants,
        )

    def names(self, store: Store) -> list[str]:
        """Return the selected measurements that a store has, sorted."""
        names = store.measurements(tenants=self.tenants)
        return [name for name in names if not self.measurements or name in self.measurements]


def is_empty(store: Store, query: ScanQuery) -> bool:
    """Return whether a scan has no points."""
    batches = store.scan(query)
    try:
        return not any(len(batch) for batch in batches)
    finally:
        if isinstance(batches, Generator):
            batches.close()


def existing_points(store: Store, query: ScanQuery) -> Present:
    """Return the fields of the points in a store, by series and instant."""
    present: Present = {}
    for batch in store.scan(query):
        for block in batch.blocks:
            fields = frozenset(block.fields)
            instants = [present.setdefault(key, {}) for key in _series_keys(block)]
            for time_ns, index in zip(block.times_ns, block.tag_set_of, strict=True):
                stored_fields = instants[index].get(time_ns)
                instants[index][time_ns] = (
                    fields if stored_fields is None else stored_fields | fields
                )
    return present


def drop_existing(batch: Batch, present: Present) -> Batch:
    """Return a batch without the points whose fields all exist already."""
    nothing: frozenset[str] = frozenset()
    positions: set[int] = set()
    for block in batch.blocks:
        fields = frozenset(block.fields)
        instants = [present.get(key, {}) for key in _series_keys(block)]
        rows = zip(block.positions, block.times_ns, block.tag_set_of, strict=True)
        positions.update(
            position
            for position, time_ns, index in rows
            if fields <= instants[index].get(time_ns, nothing)
        )
    return batch.without(positions)


def _series_keys(block: Block) -> list[SeriesKey]:
    return [
        frozenset((tag, value) for tag, value in zip(block.tags, tag_set, strict=True) if value)
        for tag_set in block.tag_sets
    ]


def count_values(store: Store, query: ScanQuery) -> int:
    """Return how many field values a store has in a span."""
    return sum(_by_hour(store, query).values())


def changed_chunks(
    store: Store, query: ScanQuery, recorded: Sequence[MigratedChunk]
) -> Iterator[ScanQuery]:
    """Yield the recorded chunks that have changed, and new hours before or between them.

    Args:
        store: the source.
        query: the selected samples of a measurement.
        recorded: the migrated chunks, oldest first; they start and end at whole hours, or with the
            query.
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
        # A count of 0 means that retention has deleted the chunk.
        if count not in (0, moved.values):
            yield replace(query, start_ns=moved.start_ns, end_ns=moved.end_ns)


def _by_hour(store: Store, query: ScanQuery) -> dict[int, int]:
    """Return the number of values of each hour, by its start."""
    counts: dict[int, int] = {}
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
            counts[hour_ns] = counts.get(hour_ns, 0) + round(count)
    return counts


@dataclass(frozen=True, slots=True)
class Difference:
    """A chunk in which the stores have different numbers of values of a field."""

    chunk: ScanQuery
    field: str
    source_count: int
    destination_count: int


def differences(
    source: Store,
    destination: Store,
    selection: Selection,
    *,
    on_chunk: Callable[[ScanQuery], object],
    pause: Callable[[float], object],
) -> Iterator[Difference]:
    """Yield the chunks in which the destination lacks values of the source.

    Both stores count one value per series and instant, so duplicates do not matter. A store may
    find new points only after some seconds, so the first differences are checked again after a
    pause. Text fields that the destination does not store are in `omitted_fields`.
    """
    pauses = iter([_PAUSE_SECONDS] * _MAX_PAUSES)
    for name in selection.names(source):
        query = selection.query(name)
        extent = source.extent(query)
        if extent is None:
            continue
        omitted = omitted_fields_of(source, destination, query)
        names = source.fields(name, tenants=selection.tenants)
        fields = tuple(field for field in names if field not in omitted)
        for chunk in chunks(query, extent):
            expected = _counts(source, chunk, fields)
            counts = _counts(destination, chunk, fields) if expected else {}
            while not _matches(counts, expected) and (seconds := next(pauses, None)):
                pause(seconds)
                counts = _counts(destination, chunk, fields)
            for field, count in expected.items():
                if counts.get(field, 0) != count:
                    yield Difference(chunk, field, count, counts.get(field, 0))
            on_chunk(chunk)


def omitted_fields(source: Store, destination: Store, selection: Selection) -> list[str]:
    """Return the text fields that the destination does not store, as `measurement.field`."""
    return [
        f"{name}.{field}"
        for name in selection.names(source)
        for field in omitted_fields_of(source, destination, selection.query(name))
    ]


def omitted_fields_of(source: Store, destination: Store, query: ScanQuery) -> list[str]:
    """Return the text fields of a measurement that the destination does not store."""
    stored = destination.fields(query.measurement, tenants=query.tenants)
    fields = source.fields(query.measurement, tenants=query.tenants).items()
    return [name for name, kind in fields if kind == "string" and name not in stored]


def _matches(counts: Mapping[str, int], expected: Mapping[str, int]) -> bool:
    return all(counts.get(field, 0) == count for field, count in expected.items())


def _counts(store: Store, chunk: ScanQuery, fields: tuple[str, ...]) -> dict[str, int]:
    series = store.query_range(
        RangeQuery(
            measurement=chunk.measurement,
            fields=fields,
            start_ns=chunk.start_ns,
            end_ns=chunk.end_ns,
            aggregate=Aggregate.COUNT,
            step_ns=_STEP_NS,
            tenants=chunk.tenants,
            filters=chunk.filters,
        )
    )
    return {item.field: round(sum(item.values)) for item in series}
