"""The embedded store: one DuckDB file, no server.

Writes go through one thread that commits many submissions together; a submission's future resolves
after the commit that holds it has reached the disk, so an acknowledged sample outlives kill -9.
Reads run beside it on cursors of their own. DuckDB lets one process at a time open the file.

A sender that retries can deliver a point twice and both rows are kept. `latest`, and of the
aggregates min, max and last, are the same with or without them; sum and count are made from one row
per series and instant, and so are the roll-ups; avg and percentiles weigh such an instant twice
until it is rolled up, which deletes what is there twice.

A database that DuckDB shut down, as after a disk that was full at the wrong moment, is opened again
by the next write or read; until then both get `StoreUnavailableError`.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import duckdb

from timeseries.batch import Batch
from timeseries.duckdb.database import Database, is_fatal
from timeseries.duckdb.deletion import TenantDeletion
from timeseries.duckdb.extent_sql import extent_sql
from timeseries.duckdb.latest_sql import expired_latest_sql, merged_latest
from timeseries.duckdb.lists import Lists
from timeseries.duckdb.range_sql import PlainRead, Read, Row, range_reads
from timeseries.duckdb.scan import batch_from, hours_sql, slice_sql, slices
from timeseries.duckdb.schema import Table
from timeseries.duckdb.sql import latest_sql
from timeseries.duckdb.upkeep import Upkeep
from timeseries.duckdb.writer import DuckDBWriter
from timeseries.listed import Listed
from timeseries.store import (
    Extent,
    Latest,
    LatestQuery,
    RangeQuery,
    RejectedPoint,
    Resolution,
    ScanQuery,
    Series,
    StoreUnavailableError,
)

MEMORY: Literal[":memory:"] = ":memory:"
MAX_QUEUED_POINTS = 500_000


class DuckDBStore(Listed):
    """A `Store` in one DuckDB file, or in memory.

    Args:
        path: the file, made with its folder where missing, or ":memory:".
        max_queued_points: how many points may wait for the writer before `submit` refuses.

    Raises:
        StoreUnavailableError: the file can't be opened; the message says why.
    """

    def __init__(
        self, path: Path | Literal[":memory:"], *, max_queued_points: int = MAX_QUEUED_POINTS
    ) -> None:
        self._database = Database(path)
        self._writer = DuckDBWriter(self._database, max_queued_points=max_queued_points)
        self._upkeep = Upkeep(self._database, self._writer)
        self._lists = Lists(self._writer, self._fetch)

    takes_many_senders = True

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next commit; the future holds those refused.

        Raises:
            OverloadedError: too many points wait already.
        """
        return self._writer.submit(batch, identity)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""
        table = self._table(query.measurement)
        fields = sorted(table.fields.keys() & set(query.fields))
        if not fields:
            return []
        width = len(query.group_by)
        series = []
        progress = self._writer.roll_ups.progress(query.measurement)
        for read in range_reads(query, table, fields, progress=progress):
            rows = self._answered(read)
            for index, name in enumerate(read.fields):
                for row in rows:
                    times, values = row[width + 2 * index : width + 2 * index + 2]
                    if times:
                        tags = dict(zip(query.group_by, row[:width], strict=True))
                        series.append(Series(name, tags, times, values))
        return series

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group.

        Of samples that have expired, the roll-ups know the newest numbers.
        """
        table = self._table(query.measurement)
        fields = sorted(table.fields.keys() & set(query.fields))
        if not fields:
            return []
        progress = self._writer.roll_ups.progress(query.measurement)
        expired = self._fetch(*expired_latest_sql(query, table, fields, progress=progress))
        kept = self._fetch(*latest_sql(query, table, fields))
        return merged_latest(expired, kept, tags=query.group_by, fields=fields)

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first.

        A slice of the span is in memory at a time; what is written meanwhile may be left out.
        """
        table = self._writer.table(query.measurement)
        if table is None:
            return
        for span in slices(self._fetch(*hours_sql(query, table)), query):
            with self._reading() as cursor:
                text, values = slice_sql(query, table, span)
                data = cursor.sql(text, params=values).to_arrow_table()
            if data.num_rows:
                yield batch_from(data, query.measurement, table)

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return from when to when a scan would yield points, and how many; None for none."""
        table = self._writer.table(query.measurement)
        if table is None:
            return None
        ((points, oldest_ns, newest_ns),) = self._fetch(*extent_sql(query, table)) or [(0, 0, 0)]
        return Extent(oldest_ns, newest_ns + 1, points) if points else None

    def roll_up(self, *, now_ns: int) -> int:
        """Bring the roll-ups up to date, in steps between the writes."""
        return self._upkeep.roll_up(now_ns=now_ns)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, those still queued included.

        It is done in steps, with the writes of others in between; a deletion that was cut short is
        completed by another.
        """
        with self._upkeep.deleting:
            for _ in TenantDeletion(self._writer, self._fetch, tenant).steps():
                pass

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample of a resolution that is older than `before_ns`.

        Where there are roll-ups, whole hours are deleted, and of the samples none that is not
        rolled up yet.
        """
        self._upkeep.delete_before(before_ns, resolution=resolution)

    def close(self) -> None:
        """Write what is queued, fold the log into the file and release it."""
        self._writer.close()
        self._database.close()

    def _table(self, measurement: str) -> Table:
        return self._writer.table(measurement) or Table()

    def _answered(self, read: Read) -> Sequence[Row]:
        if read.plain is not None and (found := self._plainly(read.plain)) is not None:
            return found
        return read.finish(self._fetch(read.text, read.values))

    def _plainly(self, read: PlainRead) -> Sequence[Row] | None:
        """Answer from the samples as they are; None where they are too many."""
        if not read.text:
            return []
        with self._reading() as cursor:
            rows = cursor.execute(read.text, read.values).fetchmany(read.most_rows + 1)
        return None if len(rows) > read.most_rows else read.finish(rows)

    def _fetch(self, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a read on a cursor of its own; no text gives no rows."""
        if not text:
            return []
        with self._reading() as cursor:
            return cursor.execute(text, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Lend a cursor for a read."""
        try:
            with self._database.cursor() as cursor:
                yield cursor
        except duckdb.Error as error:
            if is_fatal(error):
                self._writer.mend()
            raise StoreUnavailableError(
                f"The time series store {self._database.path} could not answer: {error}"
            ) from error
