"""Filling a store: many batches at once, and a day of samples repeated for the days after it."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from benchmarks.processes import BenchmarkError
from core.ids import new_id
from timeseries.duckdb.files.parquet import FAST_LEVEL, write_parquet
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.query.rollup_sql import NEWEST_COLUMN
from timeseries.duckdb.schema import TIME_COLUMN
from timeseries.duckdb.store import DuckDBStore
from timeseries.points import Batch
from timeseries.store import DAY_NS, RejectedPoint, Resolution, Store

MOST_PENDING = 200
Samples = Iterable[tuple[Mapping[str, str], Batch]]
"""Batches, each with the identity of who sent it."""


def submit_all(stores: Sequence[Store], samples: Samples) -> int:
    """Submit batches to every store; return how many values each of them took.

    Raises:
        BenchmarkError: a store refuses points.
    """
    values = 0

    def submissions() -> Iterator[tuple[Store, Mapping[str, str], Batch]]:
        nonlocal values
        for identity, batch in samples:
            values += values_of(batch)
            yield from ((store, identity, batch) for store in stores)

    submit_each(submissions())
    return values


def submit_each(submissions: Iterable[tuple[Store, Mapping[str, str], Batch]]) -> None:
    """Submit each batch to its store, with the identity of who sent it.

    Raises:
        BenchmarkError: a store refuses points.
    """
    pending = deque[Future[list[RejectedPoint]]]()
    for store, identity, batch in submissions:
        pending.append(store.submit(batch, identity=identity))
        if len(pending) > MOST_PENDING:
            _take(pending.popleft())
    for future in pending:
        _take(future)


def values_of(batch: Batch) -> int:
    """Return how many values a batch has."""
    return sum(len(block) * len(block.fields) for block in batch.blocks)


def seal(store: Store, *, now_ns: int) -> None:
    """Maintain a store until nothing is left to do: a run ends after a while."""
    while store.maintain(now_ns=now_ns):
        pass


def repeat_first_day(store: Store, days: int, *, until_ns: int) -> None:
    """Copy the sealed samples of the first day to the days after it, up to a whole hour.

    Each copy is a new segment with later times, as if the store had sealed it: filling a month of a
    large fleet takes minutes instead of hours.
    """
    if not isinstance(store, DuckDBStore):
        raise TypeError("only the embedded store has segments")
    for day in range(1, days + 1):
        for measurement in store.manifest.measurements:
            segments = store.manifest.of(measurement)
            first_ns = min(segment.oldest_ns for segment in segments)
            copied = [segment for segment in segments if segment.oldest_ns < first_ns + DAY_NS]
            copies = [_later(store, segment, day * DAY_NS, until_ns=until_ns) for segment in copied]
            with store.database.cursor() as cursor:
                cursor.begin()
                store.manifest.commit(
                    cursor, measurement, add=[copy for copy in copies if copy.rows]
                )
        click.echo(f"filled day {day} of {days}", err=True)


def _take(pending: Future[list[RejectedPoint]]) -> None:
    if rejected := pending.result():
        raise BenchmarkError(f"{len(rejected)} points were refused: {rejected[0].reason}")


def _later(store: DuckDBStore, segment: Segment, offset_ns: int, *, until_ns: int) -> Segment:
    later = replace(
        segment,
        name=new_id(),
        oldest_ns=segment.oldest_ns + offset_ns,
        newest_ns=min(segment.newest_ns + offset_ns, until_ns - 1),
        rows=0,
        sizes={},
    )
    sizes, files = {}, store.manifest.files
    for resolution, path in segment.paths.items():
        table = parquet.read_table(files.address(path))
        for at, name in enumerate(table.column_names):
            if name in {TIME_COLUMN, NEWEST_COLUMN}:
                table = table.set_column(at, name, pc.add(table[name], offset_ns))
        table = table.filter(pc.less(table[TIME_COLUMN], until_ns))
        if not table.num_rows:
            return later
        file = files.create(later.path(resolution))
        batches = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
        sizes[resolution] = write_parquet(file, batches, level=FAST_LEVEL)
        files.publish(file, later.path(resolution))
        if resolution is Resolution.RAW:
            later = replace(later, rows=table.num_rows)
    return replace(later, sizes=sizes)
