"""The single thread that writes to a DuckDB database: group commits, flushes and maintenance."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

import duckdb

from core.errors import VedetteError
from timeseries.duckdb.files.manifest import Manifest
from timeseries.duckdb.hot.database import Checkpoints, Database
from timeseries.duckdb.hot.ingest import plan_group
from timeseries.duckdb.hot.overwrites import (
    merge_if_many,
)
from timeseries.duckdb.hot.rows import oldest_ns
from timeseries.duckdb.hot.staged_series import MAX_STAGED_SAMPLES, Chunk
from timeseries.duckdb.hot.staging import RowsByTable
from timeseries.duckdb.hot.table_writer import TableWriter
from timeseries.duckdb.query.units import TENANT
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Key,
    Schema,
    Span,
    Table,
    quoted,
    table_name,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import Batch
from timeseries.series_batch import SeriesBatch
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.validation import FieldType
from timeseries.write_queue import Linger, Submission, Task, WriteQueue, as_store_error

MAX_GROUP_POINTS = 50_000
# Parsing a large body takes tens of milliseconds: the gap covers the next one.
LINGER = Linger(gap_seconds=0.02, max_seconds=0.1, from_points_per_second=2_000)
# From this many points on, committing into the tables costs less than staging first.
MIN_DIRECT_POINTS = 4_000
# The same for each table: of Prometheus' metrics, each has one.
MIN_TABLE_POINTS = 200
MAX_STAGED_POINTS = 50_000
# A reader waits until they are in their table.
MAX_SAMPLES_OF_TABLE = 50_000
# Few points in so many tables are flushed at once.
MAX_TABLES = 32
# Moving staged samples into their tables costs milliseconds per table, however few they are.
FLUSH_INTERVAL_SECONDS = 10.0

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class DuckDBWriter(TableWriter):
    """The one thread that commits batches in groups, and flushes what is staged; see `TableWriter`.

    Args:
        max_queued_points: how many points may wait before `submit` refuses.

    Attributes:
        written_points: how many points were written since the start.
    """

    written_points = 0

    def __init__(
        self,
        database: Database,
        manifest: Manifest,
        *,
        is_rolled_up: Callable[[str, str, str], bool],
        max_queued_points: int,
    ) -> None:
        super().__init__(database, manifest, is_rolled_up)
        self._checkpoints = Checkpoints(database, on_error=self.recover)
        self._queue = WriteQueue(
            max_points=max_queued_points, max_group_points=MAX_GROUP_POINTS, linger=LINGER
        )
        self.submit = self._queue.submit
        self._thread = threading.Thread(target=self._run, name="duckdb-writer", daemon=True)
        self._thread.start()

    def submit_series(self, batch: SeriesBatch) -> Future[list[RejectedPoint]]:
        """Queue samples of numbered series, whose identity is verified."""
        submission = Submission(Batch(()), {}, numbered=batch)
        self._queue.put(submission)
        return submission.future

    @property
    def schema(self) -> Schema:
        """The tables, once every acknowledged point is in them; never changed in place."""
        self._flush_in_steps()
        return self._schema

    def tables(
        self,
        measurement: str,
        tenants: Sequence[str] | None,
        *,
        before_ns: int = MAX_INT64 + 1,
        are_own_moved: bool = True,
    ) -> tuple[dict[Key, Table], list[Table]]:
        """Return a measurement's tables, once every acknowledged point is in them, and others.

        Args:
            measurement: its name.
            tenants: whose tables, beside the one that all share; None for all.
            before_ns: tables with only samples of this time or later are the others.
            are_own_moved: whether what is staged of tenants' own tables is moved into them.

        Raises:
            StoreUnavailableError: acknowledged samples can't be moved into them.
        """
        if tenants is None:
            all_keys = {*self._schema, *self._staging.keys, *self._flush_errors}
            keys = sorted(key for key in all_keys if key.measurement == measurement)
        else:
            keys = [Key(owner, measurement) for owner in dict.fromkeys(("", *tenants))]
        later = {key for key in keys if self._oldest_ns.get(key, MIN_INT64) >= before_ns}
        keys = [key for key in keys if key not in later]
        moved = [key for key in keys if are_own_moved or not key.owner]
        staged = set(self._staging.keys).intersection(moved)
        # A flush may commit; while that waits for this reader, the read has begun with one.
        if staged and not self._manifest.delays_commits:
            self._queue.run(lambda: self._try_flush(sorted(staged)))
        for key in moved:
            if key in self._flush_errors:
                raise StoreUnavailableError(
                    f"Samples of {measurement!r} are staged but can't be moved into their table: "
                    f"{self._flush_errors[key]}. No sample is lost; the next query retries. "
                    "See the portal log for the first failure."
                )
        schema, planned = self._schema, self._planned_schema
        return (
            {key: schema[key] for key in keys if key in schema},
            [planned[key] for key in later if key in planned],
        )

    def keys(self, measurement: str) -> list[Key]:
        """Return the tables of a measurement that exist."""
        return [key for key in self._schema if key.measurement == measurement]

    def dropped_any(self, tables: Schema) -> bool:
        """Return whether a table no longer exists, even if there is a new one of its name."""
        return any(self._schema.get(key) is not table for key, table in tables.items())

    def measurements(self, tenants: Sequence[str] | None) -> set[str]:
        """Return the measurements that may have samples of these tenants."""
        keys = {*self._schema, *self._staging.keys, *self._flush_errors}
        return {
            key.measurement
            for key in keys
            if tenants is None or not key.owner or key.owner in tenants
        }

    def staged_measurements(self, tenants: Sequence[str] | None) -> set[str]:
        """Return the measurements that have staged samples in tables of these tenants."""
        return {
            key.measurement
            for key in self._staging.keys
            if key not in self._flush_errors
            and (tenants is None or (key.owner and key.owner in tenants))
        }

    def staged_names(
        self, measurement: str, tenants: Sequence[str] | None
    ) -> tuple[set[str], dict[str, FieldType]]:
        """Return the tags and fields of what is staged of these tenants' own tables."""
        tags, fields = set[str](), dict[str, FieldType]()
        for key in self._staging.keys:
            is_visible = key.owner and (tenants is None or key.owner in tenants)
            if key.measurement == measurement and is_visible:
                for own_tags, own_fields in self._staging.names(key):
                    tags.update(own_tags)
                    fields.update(own_fields)
        return tags, fields

    @property
    def staged_points(self) -> int:
        """The number of points that are durable but not in their tables yet."""
        return self._staging.points + self._staging.series.points

    def run(self, work: Callable[[duckdb.DuckDBPyConnection, Schema], _Result]) -> _Result:
        """Run work on the writer's thread in its own transaction, and wait for the result."""

        def run() -> None:
            self._flush()
            with self._transaction():
                results.append(work(self._cursor, self._schema))

        results: list[_Result] = []
        self._flush_in_steps()
        self._do(run)
        return results[0]

    def drop(self, keys: Iterable[Key]) -> None:
        """Drop tables, unless samples have arrived in them since they were emptied."""

        def run() -> None:
            for key in list(keys):
                table = quoted(table_name(key))
                if (
                    key in self._schema
                    and not self._staging.has(key)
                    and not self._cursor.execute(
                        f"SELECT 1 FROM {table} LIMIT 1"  # noqa: S608 - own identifiers only
                    ).fetchall()
                ):
                    self._drop_empty(key)

        self._do(run)

    def samples_left(self, measurement: str) -> None:
        """Find the oldest samples of a measurement's tables, and whether any are overwritten still.

        To be called after some have left.
        """

        def is_in_tables(tenant: str, span: Span) -> bool:
            return any(
                self._cursor.execute(
                    f"SELECT 1 FROM {quoted(table_name(key))} "  # noqa: S608 - own identifiers only
                    f"WHERE {TENANT} = ? AND {TIME_COLUMN} >= ? AND {TIME_COLUMN} <= ? LIMIT 1",
                    [tenant, span[0], span[1] - 1],
                ).fetchall()
                for key in self._schema
                if key.measurement == measurement
            )

        def run() -> None:
            self.overwrites.keep(self._cursor, measurement, is_in_tables)
            for key in [key for key in self._schema if key.measurement == measurement]:
                ((oldest,),) = self._cursor.execute(
                    f"SELECT min({quoted(TIME_COLUMN)}) FROM {quoted(table_name(key))}"  # noqa: S608 - own identifiers only
                ).fetchall()
                times = [MAX_INT64 if oldest is None else oldest]
                if self._staging.has(key):
                    times.append(self._staging.oldest_ns(key))
                self._oldest_ns[key] = min(times)

        self._do(run)

    def checkpoint(self) -> None:
        """Write the WAL into the file, which frees the space of deleted rows."""

        def run() -> None:
            self._cursor.execute("CHECKPOINT")

        try:
            self._do(run)
        except VedetteError as error:
            # A transaction was open; the next commit that finds a long WAL checkpoints.
            _log.info("the space of deleted samples is freed later: %s", error.message)

    def recover(self) -> None:
        """Reopen the database; for a reader that found it invalidated."""
        self._queue.put(Task(self._probe))

    def close(self) -> None:
        """Write queued points and stop."""
        self._queue.close()
        self._thread.join()
        self._checkpoints.close()
        self._cursor.close()

    def _use(self, cursor: duckdb.DuckDBPyConnection) -> None:
        super()._use(cursor)
        self._flush_at = 0.0
        self._due: list[Key] = []
        self._flush_errors: Mapping[Key, str] = {}

    def _do(self, work: Callable[[], None]) -> None:
        def run() -> None:
            with self._recovering():
                work()

        self._queue.run(run)

    def _run(self) -> None:
        while (work := self._queue.take(seconds=self._seconds_to_flush())) is not None:
            if isinstance(work, Task):
                work.execute()
            else:
                self._commit([item for item in work if item.future.set_running_or_notify_cancel()])
            self._flush_one_if_due()
            self._checkpoints.begin_if_due()
        self._try_flush()

    def _seconds_to_flush(self) -> float | None:
        """Return when the next flush is due; None while nothing is staged."""
        if self._due:
            return 0.0
        if not self._staging.points:
            return None
        return max(0.0, self._flush_at - time.monotonic())

    def _flush_one_if_due(self) -> None:
        """Flush one table, so that senders never wait for more than one; few points at once."""
        is_full = self._staging.points >= MAX_STAGED_POINTS
        if not self._due and self._staging.series.points >= MAX_STAGED_SAMPLES:
            self._due = list(self._staging.series.pending)
        elif not self._due and (is_full or self._seconds_to_flush() == 0):
            self._flush_at = time.monotonic() + FLUSH_INTERVAL_SECONDS
            self._due = self._staging.keys_of_rows if is_full else self._staging.keys_to_flush
            if len(self._due) <= MAX_TABLES and self._staging.points < MIN_DIRECT_POINTS:
                # A quiet server would spend most of its time on a commit for each.
                self._try_flush(self._due)
                self._due = []
        if self._due:
            self._try_flush([self._due.pop()])

    def _commit(self, group: list[Submission]) -> None:
        """Commit a group; if that fails, commit each submission alone to isolate the bad one."""
        try:
            with self._recovering():
                answers = self._insert(group)
        except Exception as error:  # noqa: BLE001 - handed to the senders; the thread must go on
            if len(group) > 1 and not self._is_broken:
                for submission in group:
                    self._commit([submission])
                return
            _log.warning("could not write points: %s", error)
            for submission in group:
                submission.future.set_exception(as_store_error(error))
            return
        for submission, answer in zip(group, answers, strict=True):
            submission.future.set_result(answer)

    def _insert(self, submissions: list[Submission]) -> Sequence[list[RejectedPoint]]:
        parts = [self._intake.split(submission) for submission in submissions]
        # Of samples of one series and instant, those that overwrite others come last.
        self._stage_samples([chunk for _, chunk in parts if chunk is not None])
        group = plan_group(
            [batch for batch, _ in parts],
            schema=self._planned_schema,
            sealed=self._sealed_types,
        )
        for measurement, suspects in group.suspects.items():
            self._suspects[measurement] = merge_if_many(
                [*self._suspects.get(measurement, ()), *suspects]
            )
        is_full = self._staging.points >= 2 * MAX_STAGED_POINTS
        self._note_oldest(group.rows)
        is_dense = group.points >= max(MIN_DIRECT_POINTS, MIN_TABLE_POINTS * len(group.rows))
        if is_dense or is_full:
            # Staged rows of these tables were written before.
            keys = [key for key in self._staging.keys if key in group.rows]
            staged = self._staging.rows(keys)
            rows = {key: [*staged.get(key, ()), *added] for key, added in group.rows.items()}
            self._write(rows, group.schema, from_stage=keys)
        elif group.points:
            self._insert_staged(group.rows)
        self.written_points += group.points
        self._planned_schema = group.schema
        for submission, rejected in zip(submissions, group.rejected, strict=True):
            if submission.numbered is not None:
                self._intake.add(self._inserter, submission.numbered, rejected, group.schema)
        return group.rejected

    def _stage_samples(self, chunks: Sequence[Chunk]) -> None:
        """Stage samples of numbered series; one commit has those of all submissions."""
        if not chunks:
            return
        staged = self._staging.series
        commit = replace(Chunk.joined(chunks), number=self._staging.next_number())
        oldest = int(commit.times_ns.min())
        for key, _ in commit.series.counts(commit.ids):
            if key in self._oldest_ns:
                self._oldest_ns[key] = min(oldest, self._oldest_ns[key])
        with self._beside_checkpoint():
            staged.insert(self._inserter, commit)
        staged.inserted(commit)
        self.written_points += len(commit.ids)
        for key, points in staged.pending.items():
            if points >= MAX_SAMPLES_OF_TABLE and key not in {*self._due, *self._flush_errors}:
                self._due.append(key)

    def _note_oldest(self, rows: RowsByTable) -> None:
        """Note the oldest times before the commit, after which a reader must know them."""
        for key, table_rows in rows.items():
            former = self._oldest_ns.get(key)
            if former is not None or key not in self._planned_schema:
                oldest = oldest_ns(table_rows)
                self._oldest_ns[key] = oldest if former is None else min(former, oldest)

    def _insert_staged(self, rows: RowsByTable) -> None:
        with self._beside_checkpoint():
            self._staging.insert(self._inserter, rows)
        if not self._staging.points:
            self._flush_at = time.monotonic() + FLUSH_INTERVAL_SECONDS
        self._staging.inserted(rows)

    def _flush_in_steps(self) -> None:
        """Move staged rows into their tables, one by one: creating a table takes milliseconds, and
        nobody's writes must wait for a thousand tables of somebody else.
        """
        if threading.current_thread() is not self._thread:
            for key in self._staging.keys:
                self._queue.run(partial(self._try_flush, [key]))

    def _try_flush(self, keys: Sequence[Key] | None = None) -> None:
        """Flush; rows that can't be written stay staged and the error is recorded."""
        staged_keys = self._staging.keys if keys is None else keys
        staged_keys = [key for key in staged_keys if self._staging.has(key)]
        try:
            with self._recovering():
                self._flush(staged_keys)
            self._flush_errors = {
                key: why for key, why in self._flush_errors.items() if key not in staged_keys
            }
        except Exception as error:  # noqa: BLE001 - rows stay durable; retried later
            if len(staged_keys) > 1 and not self._is_broken:
                for key in staged_keys:
                    self._try_flush([key])
                return
            self._flush_errors = {**self._flush_errors, **dict.fromkeys(staged_keys, str(error))}
            names = ", ".join(key.measurement for key in staged_keys)
            _log.warning("could not flush samples of %s: %s", names, error)
