"""The embedded store: one DuckDB file with a folder of Parquet files, no server.

One thread writes and commits many submissions together. The future of a submission resolves after
its commit has reached the disk, so an acknowledged sample survives kill -9. Reads run in parallel
on their own cursors. Only one process can open the file.

New samples are rows of a table by measurement. Once an hour or day is settled, they are sealed into
files with roll-ups; see `segments`. Queries see one relation of both.

A sample of a series and instant that has others overwrites these, field by field; see `overwrites`.
So a sender that retries, and writes a point twice, has it stored once.

After an error that makes DuckDB invalidate the database, such as a full disk, the next write or
read reopens it; until then both raise `StoreUnavailableError`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import duckdb
import pyarrow as pa

from timeseries.columns import (
    SampleColumns,
    SeriesColumns,
    columns_of,
    columns_of_table,
    samples_by_series,
)
from timeseries.duckdb.catalog import Catalog
from timeseries.duckdb.cold.maintenance import Maintenance
from timeseries.duckdb.cold.sealing import DetailOf, Sealing
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.hot.database import (
    Database,
    Limits,
    is_damage,
    is_fatal,
    why_not_opened,
)
from timeseries.duckdb.hot.writer import DuckDBWriter
from timeseries.duckdb.query.latest import expired_latest_sql, latest_sql, merge_latest
from timeseries.duckdb.query.range_query import range_reads
from timeseries.duckdb.query.relation import Relation, Statement, stored_columns
from timeseries.duckdb.query.row_groups import Read, Row
from timeseries.duckdb.query.samples import (
    rows_sql,
    samples_source,
    series_tags,
    tags_sql,
)
from timeseries.duckdb.query.scan import batch_from, extent_sql, hours_sql, slice_sql, slices
from timeseries.duckdb.query.sql import clamp_time, select
from timeseries.duckdb.recovery import settle_files
from timeseries.duckdb.schema import Span
from timeseries.lineprotocol.grammar import MAX_INT64
from timeseries.points import Batch
from timeseries.series_batch import SeriesBatch
from timeseries.store import (
    DamagedStoreError,
    Detail,
    Extent,
    Latest,
    LatestQuery,
    NeededField,
    RangeQuery,
    RejectedPoint,
    Resolution,
    SampleQuery,
    ScanQuery,
    Series,
    StoreUnavailableError,
    TooManySamplesError,
)
from timeseries.validation import FieldType

MEMORY: Literal[":memory:"] = ":memory:"
MAX_QUEUED_POINTS = 500_000
# Nearly all series have samples in the newest eighth of a span.
NEWEST_PART = 8
_Item = TypeVar("_Item")


class DuckDBStore(Catalog):
    """A `Store` in one DuckDB file and its folder, or temporary.

    Args:
        path: the file, created with its folder if missing, or ":memory:".
        max_queued_points: how many points may wait for the writer before `submit` refuses.
        limits: what it may use of the machine.
        files: where the files of samples are; by default in the folder beside the database.
        detail_of: how much of a field of a measurement is always rolled up; by default all.

    Attributes:
        database: the DuckDB file.
        manifest: the segments in the folder.
        writer: writes to the database, on its own thread.
        maintenance: moves samples from the database to the folder, and deletes them.
        notice: what is damaged; empty if nothing is. Pages and `/health` show it.

    Raises:
        StoreUnavailableError: the file can't be opened; the message says why.
    """

    takes_many_senders = True
    takes_series = True
    reads_many_tenants = True

    def __init__(
        self,
        path: Path | Literal[":memory:"],
        *,
        max_queued_points: int = MAX_QUEUED_POINTS,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        files: Files | None = None,
        detail_of: DetailOf = lambda _measurement, _field: Detail.ALL,
    ) -> None:
        self.database = Database(path, limits=limits, files=files)
        self.notice = ""
        is_beside = self.database.files.allowed == LocalFiles(self.database.folder).allowed
        try:
            with self.database.cursor() as cursor:
                if path != MEMORY:
                    self.notice = settle_files(cursor, self.database.files, Path(path))
                self.manifest = Manifest(
                    cursor,
                    self.database.files,
                    former=None if is_beside else self.database.folder,
                    columns_of=stored_columns,
                )
            sealing = Sealing(self.database, self.manifest, detail_of)
            self.writer = DuckDBWriter(
                self.database,
                self.manifest,
                is_rolled_up=sealing.is_rolled_up,
                max_queued_points=max_queued_points,
            )
        except BaseException as error:
            with suppress(duckdb.Error):
                self.database.close()
            if isinstance(error, duckdb.Error) and is_damage(error):
                raise DamagedStoreError(why_not_opened(path, str(error))) from error
            raise
        self.maintenance = Maintenance(
            self.database,
            self.writer,
            sealing,
        )

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next commit; the future has the rejected points."""
        return self.writer.submit(batch, identity)

    def submit_series(self, batch: SeriesBatch) -> Future[list[RejectedPoint]]:
        """Queue samples of numbered series, whose identity is verified, for the next commit."""
        return self.writer.submit_series(batch)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""

        def read(relation: Relation) -> list[Series]:
            fields = sorted(relation.table.fields.keys() & set(query.fields))
            reads = range_reads(query, relation, fields)
            answer = [series for field_read in reads for series in self._series(query, field_read)]
            return sorted(answer, key=lambda series: series.field)

        return self._ask(query, read)

    def query_columns(self, query: RangeQuery) -> list[SeriesColumns]:
        """Return the series of a range query as arrays, by field."""

        def read(relation: Relation) -> list[SeriesColumns]:
            fields = sorted(relation.table.fields.keys() & set(query.fields))
            reads = range_reads(query, relation, fields, is_ordered=False)
            answer = [
                columns for field_read in reads for columns in self._columns(query, field_read)
            ]
            return sorted(answer, key=lambda columns: columns.field)

        return self._ask(query, read)

    def samples(self, query: SampleQuery) -> list[SampleColumns]:
        """Return the numbers themselves, with one series for each set of tags."""
        span = (clamp_time(query.start_ns), clamp_time(query.end_ns))

        def read(relation: Relation) -> list[SampleColumns]:
            kinds, count, columns = relation.table.fields, 0, list[SampleColumns]()
            for name in query.fields:
                if kinds.get(name, FieldType.STRING) is FieldType.STRING:
                    continue
                source, values = samples_source(relation, name, span)
                if not source:
                    continue
                ((rows,),) = self.fetch(select(["count(*)"], source), values)
                count += rows
                if count > query.max_samples:
                    raise TooManySamplesError.of(query)
                tags = series_tags(relation)
                columns.append(self._samples_of(name, tags, (source, values), span))
            return columns

        return self._ask(query, read)

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group.

        For expired samples, roll-ups have the newest numbers.
        """

        def read(relation: Relation) -> list[Latest]:
            fields = sorted(relation.table.fields.keys() & set(query.fields))
            if not fields:
                return []
            expired = self.fetch(*expired_latest_sql(query, relation, fields))
            samples = self.fetch(*latest_sql(query, relation, fields))
            return merge_latest(expired, samples, tags=query.group_by, fields=fields)

        return self._ask(query, read)

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first.

        Only one slice of the span is in memory; points written meanwhile may be missing.
        """
        hours = self._ask(query, lambda relation: self.fetch(*hours_sql(query, relation)))
        for span in slices(hours, query):

            def read(relation: Relation, span: Span = span) -> list[Batch]:
                batches = [
                    batch_from(rows, query.measurement, part.table)
                    for part in relation.consistent()
                    if (rows := self._rows_of(part, span)) is not None
                ]
                if len(batches) > 1:
                    points = chain.from_iterable(batch.points() for batch in batches)
                    return [Batch.of(sorted(points, key=lambda point: point.time_ns))]
                return batches

            yield from (batch for batch in self._ask(query, read) if len(batch))

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the time range and number of the points of a scan; None without points."""
        rows = self._ask(query, lambda relation: self.fetch(*extent_sql(query, relation)))
        ((points, oldest_ns, newest_ns),) = rows or [(0, 0, 0)]
        return Extent(oldest_ns, newest_ns + 1, points) if points else None

    def maintain(self, *, now_ns: int, needed: Collection[NeededField] = ()) -> int:
        """Move settled samples into files, and merge small files; return how many samples."""
        return self.maintenance.run(now_ns=now_ns, needed=needed)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, including those still queued.

        It runs in steps, with writes of other tenants in between; call it again to complete an
        interrupted deletion.
        """
        for _ in self.maintenance.delete_tenant(tenant):
            pass

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample of a resolution that is older than `before_ns`.

        A file is deleted once all its samples are older.
        """
        self.maintenance.delete_before(before_ns, resolution=resolution)

    def close(self) -> None:
        """Write queued points, checkpoint and close the file."""
        self.writer.close()
        self.database.close()

    def _ask(
        self,
        query: RangeQuery | LatestQuery | ScanQuery | SampleQuery,
        work: Callable[[Relation], list[_Item]],
    ) -> list[_Item]:
        end_ns = query.until_ns if isinstance(query, LatestQuery) else query.end_ns
        return self._read(
            query.measurement,
            query.tenants,
            work,
            filters={} if isinstance(query, SampleQuery) else query.filters,
            matchers=query.matchers if isinstance(query, RangeQuery | SampleQuery) else (),
            before_ns=MAX_INT64 + 1 if end_ns is None else end_ns,
        )

    def _samples_of(
        self, name: str, tags: Sequence[str], statement: Statement, span: Span
    ) -> SampleColumns:
        """Return the samples of a source; the tags are mostly those of the newest part of it."""
        source, values = statement
        newest = (max(span[0], span[1] - (span[1] - span[0]) // NEWEST_PART), span[1])
        with self._reading() as cursor:
            # All statements see the same rows.
            cursor.begin()
            rows = cursor.sql(rows_sql(source, tags), params=values).to_arrow_table()
            keys = rows.column("k").combine_chunks().dictionary_encode()
            for part in (newest, span):
                series = cursor.sql(tags_sql(source, tags, part), params=values).to_arrow_table()
                tags_of = dict(
                    zip(
                        series.column("k").to_pylist(),
                        zip(*(column.to_pylist() for column in series.columns[1:]), strict=True),
                        strict=True,
                    )
                )
                if tags_of.keys() >= {*keys.dictionary.to_pylist()}:
                    break
        texts = [tags_of[key] for key in keys.dictionary.to_pylist()]
        return samples_by_series(rows, keys, name, [zip(tags, row, strict=True) for row in texts])

    def _rows_of(self, relation: Relation, span: Span) -> pa.Table | None:
        """Return the samples of a slice; None if no table or file can have any."""
        text, values = slice_sql(relation, span)
        if not text:
            return None
        with self._reading() as cursor:
            return cursor.sql(text, params=values).to_arrow_table()

    def _series(self, query: RangeQuery, read: Read) -> Iterator[Series]:
        rows, width = self._run(read), len(query.group_by)
        for index, name in enumerate(read.fields):
            for row in rows:
                times, values = row[width + 2 * index : width + 2 * index + 2]
                if times:
                    tags = dict(zip(query.group_by, row[:width], strict=True))
                    yield Series(name, tags, times, values)

    def _columns(self, query: RangeQuery, read: Read) -> list[SeriesColumns]:
        if not read.text:
            return []
        if read.finish is not tuple:
            return columns_of(self._series(query, read))
        with self._reading() as cursor:
            table = cursor.sql(read.text, params=read.values).to_arrow_table()
        return columns_of_table(table, read.fields)

    def _run(self, read: Read) -> Sequence[Row]:
        if read.shortcut is not None:
            with self._reading() as cursor:
                rows = read.shortcut(cursor)
            if rows is not None:
                return rows
        return read.finish(self.fetch(read.text, read.values))

    def fetch(self, text: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Run a read on its own cursor; an empty text gives no rows."""
        if not text:
            return []
        with self._reading() as cursor:
            return cursor.execute(text, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a cursor for a read."""
        try:
            with self.database.cursor() as cursor:
                yield cursor
        except duckdb.Error as error:
            if is_fatal(error):
                self.writer.recover()
            if is_damage(error) and not self.notice:
                reason = str(error).splitlines()[0]
                self.notice = f"Some samples can't be read, because their file is damaged: {reason}"
            raise StoreUnavailableError(
                f"The time series store {self.database.path} could not run the query: {error}"
            ) from error
