"""Rows in their tables: the write cursor, the schema of the last commit, and what is staged."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import chain

import duckdb

from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.files.segments import Segment, segment_paths
from timeseries.duckdb.hot.database import MAX_WAL_MIB, Database, is_fatal
from timeseries.duckdb.hot.overwrites import (
    EARLIEST_NS,
    NewestTimes,
    Overwrites,
    Suspect,
    overwritten_spans,
    staged_suspects,
)
from timeseries.duckdb.hot.rows import Inserter, arrow_table
from timeseries.duckdb.hot.staged_files import chunk_for_files, write_segments
from timeseries.duckdb.hot.staged_series import SeriesIntake
from timeseries.duckdb.hot.staging import RowsByTable, StagingTable
from timeseries.duckdb.schema import (
    COLUMNS_SQL,
    TIME_COLUMN,
    Key,
    Schema,
    Span,
    ddl,
    parse_schema,
    quoted,
    table_name,
)
from timeseries.series_batch import VALUE_FIELD
from timeseries.validation import FieldType

_log = logging.getLogger(__name__)


class TableWriter:
    """Moves rows into tables and files, in one transaction each; for the writer's thread alone.

    Args:
        database: reopened after DuckDB invalidated it.
        manifest: the segments, which may have samples that are overwritten; gets those of many
            staged samples.
        is_rolled_up: whether sealed samples of a tenant's measurement and field have roll-ups.

    Attributes:
        overwrites: when a series has several rows at one instant.
    """

    overwrites: Overwrites
    _schema: Schema
    _planned_schema: Schema
    _staging: StagingTable
    _oldest_ns: dict[Key, int]

    def __init__(
        self, database: Database, manifest: Manifest, is_rolled_up: Callable[[str, str, str], bool]
    ) -> None:
        self._database = database
        self._manifest = manifest
        self._is_rolled_up = is_rolled_up
        self._use(database.cursor())

    def _drop_empty(self, key: Key) -> None:
        """Drop a table; a reader that finds it missing doesn't find it in the schema again."""
        before = self._schema, self._planned_schema, dict(self._oldest_ns)
        self._forget(key)
        self._inserter.clear()
        try:
            self._cursor.execute(f"DROP TABLE {quoted(table_name(key))}")
        except duckdb.Error:
            self._schema, self._planned_schema, self._oldest_ns = before
            raise
        self._intake.forget(self._cursor, key)

    def _forget(self, key: Key) -> None:
        self._schema = {other: table for other, table in self._schema.items() if other != key}
        self._planned_schema = self._staging.schema(self._schema)
        self._oldest_ns.pop(key, None)

    def _use(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._inserter = Inserter(cursor)
        # To list what is not there takes a third of the time to open a store.
        columns = [] if self._database.is_new else cursor.execute(COLUMNS_SQL).fetchall()
        self._schema = {
            key: replace(table, sealed=self._sealed_types(key))
            for key, table in parse_schema(columns).items()
        }
        self._staging = StagingTable(cursor)
        self._planned_schema = self._staging.schema(self._schema)
        self.overwrites = Overwrites(cursor, self._schema)
        self._newest = NewestTimes(self._newest_before(dict(self._schema)), self._newest_staged)
        self._intake = SeriesIntake(self._staging.series, self._newest)
        # Suspects may overwrite samples; they are listed until they are in their table.
        self._suspects: dict[str, list[Suspect]] = {}
        for key, rows in self._staging.rows(self._staging.keys).items():
            self._suspects.setdefault(key.measurement, []).extend(staged_suspects(rows))
        # No sample of a table, staged or not, is older; without an entry, any may be.
        self._oldest_ns = {}
        self._is_broken = False

    def _sealed_types(self, key: Key) -> Mapping[str, FieldType]:
        """Return the types of a tenant's fields in files."""
        return self._manifest.types(*key)

    def _newest_before(self, tables: Schema) -> Callable[[str], int]:
        """Return what finds the newest time of a measurement, in tables, staged, and in files."""

        def find(measurement: str) -> int:
            times = [segment.newest_ns for segment in self._manifest.of(measurement)]
            for key in tables:
                if key.measurement == measurement and key in self._schema:
                    times += chain.from_iterable(
                        self._cursor.execute(
                            f"SELECT max({TIME_COLUMN}) FROM {quoted(table_name(key))}"  # noqa: S608 - own identifiers only
                        ).fetchall()
                    )
            times += [suspect.newest_ns for suspect in self._suspects.get(measurement, ())]
            return max((time_ns for time_ns in times if time_ns is not None), default=EARLIEST_NS)

        return find

    def _newest_staged(self, measurement: str, tenant: str, appliance: str) -> int:
        newest_ns = self._staging.series.series.newest_ns(Key(tenant, measurement), appliance)
        return EARLIEST_NS if newest_ns is None else newest_ns

    def _beside_checkpoint(self) -> AbstractContextManager[None]:
        """Return what a small commit runs in: it brings no checkpoint about where none is near."""
        is_far = self._database.wal_bytes < MAX_WAL_MIB * 2**20 / 2
        return nullcontext() if is_far else self._database.snapshot()

    def _write(
        self,
        rows: RowsByTable,
        planned: Schema,
        *,
        from_stage: Sequence[Key] = (),
        segments: Sequence[Segment] = (),
    ) -> None:
        """Insert rows into their tables in one transaction.

        Args:
            rows: those to insert.
            planned: the schema that their tables need first.
            from_stage: tables whose rows come from the staging table.
            segments: of one measurement, with the other samples of it that were staged.
        """
        schema = dict(self._schema)
        columns = {
            key: arrow_table(table_rows, planned[key], is_ordered=key.measurement in self._suspects)
            for key, table_rows in rows.items()
        }
        suspected = self._suspects.keys() & {key.measurement for key in rows}
        with self._transaction(segments):
            for key, data in columns.items():
                table = planned[key]
                for statement in ddl(key, schema.get(key), table):
                    self._cursor.execute(statement)
                schema[key] = table
                self._inserter.insert(table_name(key), data)
            for measurement in suspected:
                self._note_overwrites(measurement, schema)
            self._staging.remove(self._cursor, from_stage)
        self._schema = schema
        self._staging.removed(from_stage)
        staged = {key.measurement for key in self._staging.keys}
        for measurement in suspected - staged:
            del self._suspects[measurement]

    def _note_overwrites(self, measurement: str, schema: Schema) -> None:
        """Note when samples are overwritten by suspects that the open transaction has inserted."""
        suspects = self._suspects[measurement]
        tables = {key: table for key, table in schema.items() if key.measurement == measurement}

        def find(segments: Sequence[Segment]) -> list[tuple[str, Span]]:
            files = self._manifest.files
            return overwritten_spans(self._cursor, suspects, tables, segments, files)

        spans = self._manifest.read(measurement, find)
        self.overwrites.add(self._cursor, measurement, spans)

    def _flush(self, keys: Sequence[Key] | None = None) -> None:
        """Move staged rows, all or of some tables, into their tables."""
        staged_keys = self._staging.keys if keys is None else keys
        staged_keys = [key for key in staged_keys if not self._flush_to_files(key)]
        if staged_keys:
            self._write(
                self._staging.rows(staged_keys), self._planned_schema, from_stage=staged_keys
            )

    def _flush_to_files(self, key: Key) -> bool:
        """Move staged samples of numbered series to files; return False if they are too few.

        A bucket is too slow for the writer's thread, and roll-ups are made of tables.
        """
        if (
            key.measurement in self._suspects
            or self._manifest.files.filesystem is not None
            or self._is_rolled_up(*key, VALUE_FIELD)
        ):
            return False
        chunk = chunk_for_files(self._staging.series.chunks(key))
        if chunk is None:
            return False
        try:
            segments = write_segments(self._manifest.files, key, chunk)
        except BaseException:
            self._manifest.files.abandon()
            raise
        rows = {key: others} if (others := self._staging.rows_only(key)) else {}
        try:
            self._write(rows, self._planned_schema, from_stage=[key], segments=segments)
        except duckdb.Error as error:
            if not is_fatal(error):  # after that it may be committed
                self._manifest.files.delete(segment_paths(segments))
            raise
        return True

    @contextmanager
    def _transaction(self, segments: Sequence[Segment] = ()) -> Iterator[None]:
        """Begin, then commit with new segments of a measurement, or roll back on an error."""
        with self._database.snapshot():
            self._cursor.begin()
            try:
                yield
            except BaseException:
                self._roll_back()
                raise
            try:
                if segments:
                    self._manifest.commit(self._cursor, segments[0].measurement, add=segments)
                else:
                    self._cursor.commit()
            except duckdb.Error:
                self._inserter.clear()
                raise

    def _roll_back(self) -> None:
        try:
            self._cursor.rollback()
        except duckdb.Error as error:
            # An invalidated database can't roll back; the first error has the cause.
            _log.warning("could not roll back: %s", error)
        self._inserter.clear()

    def _probe(self) -> None:
        try:
            self._cursor.execute("SELECT 1")
        except duckdb.Error as error:
            self._is_broken = is_fatal(error)
            self._reopen_if_broken()

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Reopen a broken database before running work, and note if the work broke it."""
        self._reopen_if_broken()
        try:
            yield
        except duckdb.Error as error:
            self._is_broken = self._is_broken or is_fatal(error)
            raise

    def _reopen_if_broken(self) -> None:
        if not self._is_broken:
            return
        self._cursor.close()
        self._use(self._database.reopen())
        _log.warning("reopened the time series database after a fatal error")
