"""Whether a migration is whole: both stores counted, chunk by chunk and field by field.

A count takes one value per series and instant, so that points which a store keeps twice do not
make it differ from one that keeps them once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from core.clock import NS_PER_SECOND
from timeseries.extent import chunks
from timeseries.moving.migration import Selection
from timeseries.store import Aggregate, RangeQuery, ScanQuery, Store

# Narrower than any roll-up, so that the points themselves are counted.
_STEP_NS = 30 * NS_PER_SECOND
_PAUSE_SECONDS = 2.0
_MAX_PAUSES = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """A chunk of which the stores hold different numbers of a field's values."""

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
    """Yield where the destination does not hold what the source holds.

    Only chunks with samples in the source are looked at; the destination may hold more of others.
    A store may find what was just written only some seconds later, so the first differences are
    looked at again after a pause. Text that the destination keeps none of is `left_out`'s.
    """
    pauses = iter([_PAUSE_SECONDS] * _MAX_PAUSES)
    for name in selection.names(source):
        query = selection.query(name)
        extent = source.extent(query)
        if extent is None:
            continue
        omitted = left_out_of(source, destination, query)
        known = source.fields(name, tenants=selection.tenants)
        fields = tuple(field for field in known if field not in omitted)
        for chunk in chunks(query, extent):
            wanted = _counts(source, chunk, fields)
            found = _counts(destination, chunk, fields) if wanted else {}
            while not _holds(found, wanted) and (seconds := next(pauses, None)):
                pause(seconds)
                found = _counts(destination, chunk, fields)
            for field, count in wanted.items():
                if found.get(field, 0) != count:
                    yield Difference(chunk, field, count, found.get(field, 0))
            on_chunk(chunk)


def left_out(source: Store, destination: Store, selection: Selection) -> list[str]:
    """Return the text fields of which the destination keeps nothing, as `measurement.field`."""
    return [
        f"{name}.{field}"
        for name in selection.names(source)
        for field in left_out_of(source, destination, selection.query(name))
    ]


def left_out_of(source: Store, destination: Store, query: ScanQuery) -> list[str]:
    """Return the text fields of a measurement of which the destination keeps nothing."""
    kept = destination.fields(query.measurement, tenants=query.tenants)
    fields = source.fields(query.measurement, tenants=query.tenants).items()
    return [name for name, kind in fields if kind == "string" and name not in kept]


def _holds(found: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    return all(found.get(field, 0) == count for field, count in wanted.items())


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
    return {one.field: round(sum(one.values)) for one in series}
