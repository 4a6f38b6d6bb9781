"""Maintenance of a DuckDB store: sealing, merging, retention, and deletion of a tenant."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import duckdb

from core.errors import VedetteError
from timeseries.declared import DECLARED
from timeseries.duckdb.cold.sealing import MAX_MERGED_ROWS, Sealing
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.database import Database, is_fatal
from timeseries.duckdb.hot.writer import DuckDBWriter
from timeseries.duckdb.query.scan import slices
from timeseries.duckdb.query.units import Unit, settled_before, units_to_seal
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Key,
    Schema,
    Span,
    TextFields,
    quoted,
    table_name,
    tag_column,
    text_fields,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.store import (
    DAY_NS,
    HOUR_NS,
    TENANT_TAG,
    NeededField,
    Resolution,
    ScanQuery,
    StoreUnavailableError,
)

_log = logging.getLogger(__name__)
RUN_SECONDS = 45.0
MAX_PAUSE_SECONDS = 5.0
MIN_EXPIRED = 8
"""How many segments without samples are worth merging."""
MAX_CONVERTED = 4
"""How many segments of a measurement a run writes anew because of the layout of their files."""
EXPIRED_NS = 30 * DAY_NS
"""Segments without samples are merged within such periods."""
MIN_FREE_BYTES = 2**20
"""The free space of the file that is worth giving back."""
QUIET_POINTS = 200_000
"""Fewer than this between two runs bring no checkpoint about for a long time."""
_TIME = quoted(TIME_COLUMN)
_IS_TENANT = f"{quoted(tag_column(TENANT_TAG))} = ?"


class Maintenance:
    """Seals and merges beside the writer; deletes rows on its thread, between two commits."""

    def __init__(
        self,
        database: Database,
        writer: DuckDBWriter,
        sealing: Sealing,
    ) -> None:
        self._database = database
        self._writer = writer
        self._manifest = sealing.manifest
        self._sealing = sealing
        self._running = threading.Lock()
        self._sealed_at: dict[str, float] = {}
        self._free_bytes = 0
        self._written_points = 0
        self._deleting = threading.Lock()
        """Locked while samples are sealed, merged or deleted."""

    def run(self, *, now_ns: int, needed: Collection[NeededField] = ()) -> int:
        """Seal and merge what is settled; return how many samples.

        Whoever sends many measurements must not take the machine from the others' reads and writes:
        after each measurement a run pauses as long as that took, `MAX_PAUSE_SECONDS` at most, and
        after `RUN_SECONDS` it leaves the rest to the next run. It begins with the measurement
        that has waited longest.

        A measurement that fails does not stop the others; the first error is raised at the end.
        """
        moved, errors = 0, list[VedetteError]()
        with self._running:
            self._sealing.need(needed)
            try:
                with self._failing("every measurement"):
                    self._manifest.delete_garbage()
            except VedetteError as error:
                errors.append(error)
            deadline = time.monotonic() + RUN_SECONDS
            names = self._writer.measurements(None).union(self._manifest.measurements)
            for measurement in sorted(names, key=lambda name: self._sealed_at.get(name, 0.0)):
                started = time.monotonic()
                if started > deadline:
                    _log.info("sealing samples takes long: the next run continues")
                    break
                try:
                    moved += sum(step() for step in self._steps(measurement, now_ns=now_ns))
                    self._writer.samples_left(measurement)
                except VedetteError as error:
                    _log.warning("could not seal %r: %s", measurement, error.message)
                    errors.append(error)
                self._sealed_at[measurement] = time.monotonic()
                time.sleep(min(time.monotonic() - started, MAX_PAUSE_SECONDS))
        # Until a checkpoint, rows take ten times as much memory; on a quiet server it never comes.
        # On a busy one it would delay every sender for seconds, and comes soon beside a snapshot.
        written_points = self._writer.written_points
        if moved or written_points - self._written_points < QUIET_POINTS:
            self._writer.checkpoint()
        self._written_points = written_points
        try:
            with self._failing("every measurement"):
                self._manifest.lists.write()
        except VedetteError as error:
            errors.append(error)
        self._shrink_file()
        if errors:
            raise errors[0]
        return moved

    def _shrink_file(self) -> None:
        """Free the end of the file, which DuckDB then cuts off.

        What was written last often stands there: rows of the manifest. If others do, too, it is
        tried again once the free space has changed.
        """
        free_bytes = self._database.free_bytes
        if free_bytes < MIN_FREE_BYTES or free_bytes == self._free_bytes:
            return
        with self._deleting, self._failing("the manifest"), self._database.cursor() as cursor:
            self._manifest.rewrite(cursor)
        self._writer.checkpoint()
        self._free_bytes = self._database.free_bytes

    def delete_before(self, before_ns: int, *, resolution: Resolution) -> None:
        """Apply retention: rows in steps with writes in between, files at once.

        A file is deleted when all its samples are too old.
        """
        self._writer.run(lambda _cursor, _schema: None)  # everything queued before is written
        for measurement in self._manifest.measurements:
            with self._deleting:
                expired = [
                    segment
                    for segment in self._manifest.of(measurement)
                    if resolution in segment.sizes and segment.newest_ns < before_ns
                ]
                self._replace(
                    measurement, expired, [segment.without(resolution) for segment in expired]
                )
        if resolution is Resolution.RAW:
            for key in sorted(self._writer.schema):
                with self._deleting:
                    for _ in self._delete_rows(key, f"{_TIME} < {before_ns}", []):
                        pass
        self._writer.checkpoint()

    def delete_tenant(self, tenant: str) -> Iterator[int]:
        """Delete what a tenant had submitted before: its rows in steps, then its files.

        An interrupted deletion leaves whole steps done, and the next one continues.

        Yields:
            How many rows a step deleted.
        """
        with self._deleting:
            self._writer.run(lambda _cursor, _schema: None)
            for key in sorted(self._writer.schema):
                if key.owner in {"", tenant}:
                    yield from self._delete_rows(key, _IS_TENANT, [tenant])
            self._writer.drop([key for key in self._writer.schema if key.owner == tenant != ""])
            for measurement in self._manifest.measurements:
                theirs = [
                    segment
                    for segment in self._manifest.of(measurement)
                    if segment.tenant == tenant
                ]
                self._replace(measurement, theirs, [])
                yield sum(segment.rows for segment in theirs)
            with self._failing("a deleted tenant"):
                self._manifest.delete_garbage(at_once=True)
            self._writer.checkpoint()

    def _steps(self, measurement: str, *, now_ns: int) -> Iterator[Callable[[], int]]:
        # Samples that can't be settled yet stay staged: moving them costs the most where few moved.
        tables, _ = self._writer.tables(measurement, None, before_ns=settled_before(now_ns))
        for key in sorted(tables):
            with self._failing(measurement), self._database.cursor() as cursor:
                units = units_to_seal(cursor, key, now_ns=now_ns)
            for unit in units:
                yield partial(self._one, measurement, partial(self._sealing.seal, unit))
        self._writer.drop(
            key
            for key in self._writer.keys(measurement)
            if key.owner or measurement not in DECLARED
        )
        for unit, segments in self._mergeable(measurement, now_ns=now_ns):
            yield partial(self._one, measurement, partial(self._sealing.merge, unit, segments))
        for segments in self._expired(measurement):
            yield partial(self._one, measurement, partial(self._sealing.merge_expired, segments))
        yield from self._conversions(measurement, now_ns=now_ns)

    def _one(self, measurement: str, work: Callable[[], int]) -> int:
        with self._deleting, self._failing(measurement):
            try:
                return work()
            except duckdb.TransactionException as error:
                # For example, a column was added meanwhile: the samples stay where they are.
                _log.info("%r is sealed later: %s", measurement, error)
                return 0

    @contextmanager
    def _failing(self, measurement: str) -> Iterator[None]:
        try:
            yield
        except (duckdb.Error, OSError) as error:
            if isinstance(error, duckdb.TransactionException) and not is_fatal(error):
                raise
            if is_fatal(error):
                self._writer.recover()
            raise StoreUnavailableError(
                f"The time series store can't move samples of {measurement!r} to files: {error}"
            ) from error

    def _mergeable(self, measurement: str, *, now_ns: int) -> Iterator[tuple[Unit, list[Segment]]]:
        """Yield the small segments of each settled day, by tenant, if there are several."""
        days: dict[tuple[str, int, TextFields], list[Segment]] = {}
        for segment in self._manifest.of(measurement):
            day = segment.oldest_ns // DAY_NS
            is_small = segment.rows < MAX_MERGED_ROWS // 2
            if (
                Resolution.RAW in segment.sizes
                and is_small
                and (day + 1) * DAY_NS <= settled_before(now_ns)
            ):
                days.setdefault((segment.tenant, day, text_fields(segment.table)), []).append(
                    segment
                )
        for (tenant, day, _), segments in days.items():
            if len(segments) > 1:
                rows = sum(segment.rows for segment in segments)
                key = Key(tenant, measurement)
                yield Unit(tenant, key, (day * DAY_NS, (day + 1) * DAY_NS), rows), segments

    def _expired(self, measurement: str) -> Iterator[list[Segment]]:
        """Yield the segments without samples of each period that are alike, if there are many."""
        periods: dict[tuple[object, ...], list[Segment]] = {}
        for segment in self._manifest.of(measurement):
            if Resolution.RAW not in segment.sizes:
                # Fields that one of them rolls up less would seem to have no values in it.
                details = frozenset(segment.rolled.items())
                sizes = frozenset(segment.sizes) - {Resolution.DAY}
                key = (segment.tenant, segment.oldest_ns // EXPIRED_NS, sizes, details)
                periods.setdefault(key, []).append(segment)
        yield from (segments for segments in periods.values() if len(segments) >= MIN_EXPIRED)

    def _conversions(self, measurement: str, *, now_ns: int) -> Iterator[Callable[[], int]]:
        """Yield steps that write settled segments of the other layout anew, the newest first."""
        is_open = self._manifest.files.is_open
        others = [
            segment
            for segment in self._manifest.of(measurement)
            if segment.is_open != is_open
            and (segment.oldest_ns // DAY_NS + 1) * DAY_NS <= settled_before(now_ns)
        ]
        others.sort(key=lambda segment: segment.newest_ns, reverse=True)
        for segment in others[:MAX_CONVERTED]:
            work = partial(self._sealing.merge_expired, [segment])
            if Resolution.RAW in segment.sizes:
                start = segment.oldest_ns // DAY_NS * DAY_NS
                key = Key(segment.tenant, measurement)
                unit = Unit(segment.tenant, key, (start, start + DAY_NS), segment.rows)
                work = partial(self._sealing.merge, unit, [segment])
            yield partial(self._one, measurement, work)

    def _replace(self, measurement: str, remove: Sequence[Segment], add: Sequence[Segment]) -> None:
        if not remove:
            return
        with self._failing(measurement), self._database.cursor() as cursor:
            cursor.begin()
            self._manifest.commit(
                cursor,
                measurement,
                remove=remove,
                add=[segment for segment in add if segment.sizes],
            )

    def _delete_rows(self, key: Key, condition: str, values: Sequence[object]) -> Iterator[int]:
        """Delete rows of a table, some in each step; yield how many."""
        table = quoted(table_name(key))
        counted = (
            f"SELECT {_TIME} // {HOUR_NS}, count(*) FROM {table} WHERE {condition} "  # noqa: S608 - own identifiers only
            "GROUP BY 1 ORDER BY 1"
        )
        text = f"DELETE FROM {table} WHERE {condition} AND {_TIME} >= ? AND {_TIME} <= ?"  # noqa: S608 - own identifiers only

        # An empty table may be dropped at any time.
        def count(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> list[tuple[int, int]]:
            return cursor.execute(counted, values).fetchall() if key in schema else []

        def delete(span: Span) -> int:
            def work(cursor: duckdb.DuckDBPyConnection, schema: Schema) -> int:
                if key not in schema:
                    return 0
                bounds = [max(span[0], MIN_INT64), span[1] - 1]
                (deleted,) = cursor.execute(text, [*values, *bounds]).fetchall()[0]
                return int(deleted)

            return self._writer.run(work)

        everything = ScanQuery(
            measurement=key.measurement, start_ns=MIN_INT64, end_ns=MAX_INT64 + 1, tenants=None
        )
        yield from (delete(span) for span in slices(self._writer.run(count), everything))
