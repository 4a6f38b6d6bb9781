"""What a store has already of points that are to be written, by series and instant."""

from collections.abc import Generator

from timeseries.batch import Batch, Block
from timeseries.store import ScanQuery, Store

SeriesKey = frozenset[tuple[str, str]]
Present = dict[SeriesKey, dict[int, frozenset[str]]]


def is_empty(store: Store, query: ScanQuery) -> bool:
    """Whether a scan yields nothing."""
    batches = store.scan(query)
    try:
        return not any(len(batch) for batch in batches)
    finally:
        if isinstance(batches, Generator):
            batches.close()


def present(store: Store, query: ScanQuery) -> Present:
    """Return which fields a store has, by series and instant."""
    found: Present = {}
    for batch in store.scan(query):
        for block in batch.blocks:
            fields = frozenset(block.fields)
            instants = [found.setdefault(key, {}) for key in _series_keys(block)]
            for time_ns, index in zip(block.times_ns, block.tag_set_of, strict=True):
                known = instants[index].get(time_ns)
                instants[index][time_ns] = fields if known is None else known | fields
    return found


def without_present(batch: Batch, found: Present) -> Batch:
    """Return a batch without the points whose fields are all present already."""
    nothing: frozenset[str] = frozenset()
    positions: set[int] = set()
    for block in batch.blocks:
        fields = frozenset(block.fields)
        instants = [found.get(key, {}) for key in _series_keys(block)]
        rows = zip(block.positions, block.times_ns, block.tag_set_of, strict=True)
        positions.update(
            position
            for position, time_ns, index in rows
            if fields <= instants[index].get(time_ns, nothing)
        )
    return batch.without(positions)


def _series_keys(block: Block) -> list[SeriesKey]:
    return [
        frozenset((tag, value) for tag, value in zip(block.tags, one, strict=True) if value)
        for one in block.tag_sets
    ]
