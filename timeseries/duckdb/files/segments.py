"""Segments: settled samples of one tenant and measurement in Parquet files, and their manifest.

A *segment* has up to four files with one name, in `<tenant>/<measurement>/<day>/` of the store's
folder: `.raw.parquet` with the samples, sorted by series and then time, and the roll-ups of exactly
these samples, `.5m.parquet`, `.1h.parquet` and `.1d.parquet`. Files never change. The *manifest* is
the table of segments in the database: a file without its row does not count, and is deleted at the
next start. Files are in a folder or in a bucket; see `files`.

A sample is either in the measurement's table (*hot*) or in one segment, because the transaction
that adds a segment also deletes the rows, or what was staged, that it was made of. Readers use the
segments from memory and the table from the database: `Manifest.read` repeats a read if these two
have changed in between.
"""

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import duckdb

from core.errors import VedetteError
from core.ids import new_id
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.schema import Span, Table, encoded, united
from timeseries.store import DAY_NS, Detail, Resolution, StoreUnavailableError
from timeseries.validation import FieldType

_log = logging.getLogger(__name__)
MANIFEST_TABLE = "segments"
_SIZES = {
    Resolution.RAW: "raw_bytes",
    Resolution.FIVE_MINUTES: "five_minute_bytes",
    Resolution.HOUR: "hour_bytes",
    Resolution.DAY: "day_bytes",
}
_COLUMNS = (
    "name, tenant, measurement, oldest, newest, first_appliance, last_appliance, rows, "
    f"tags, fields, types, rolled, details, {', '.join(_SIZES.values())}"
)
MANIFEST_DDL = (
    f"CREATE TABLE IF NOT EXISTS {MANIFEST_TABLE} (name VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
    "measurement VARCHAR NOT NULL, oldest BIGINT NOT NULL, newest BIGINT NOT NULL, "
    "first_appliance VARCHAR NOT NULL, last_appliance VARCHAR NOT NULL, rows BIGINT NOT NULL, "
    "tags VARCHAR[] NOT NULL, fields VARCHAR[] NOT NULL, types VARCHAR[] NOT NULL, "
    "rolled VARCHAR[] NOT NULL, raw_bytes BIGINT, five_minute_bytes BIGINT, hour_bytes BIGINT)"
)
# Details are NULL in rows of earlier versions, which rolled up all.
_COLUMNS_DDL = (
    f"ALTER TABLE {MANIFEST_TABLE} ADD COLUMN IF NOT EXISTS details UTINYINT[]; "
    f"ALTER TABLE {MANIFEST_TABLE} ADD COLUMN IF NOT EXISTS day_bytes BIGINT"
)
_LIST = f"SELECT {_COLUMNS} FROM {MANIFEST_TABLE}"  # noqa: S608 - ours
_OWNER_DDL = "CREATE TABLE IF NOT EXISTS files_owner (id VARCHAR NOT NULL)"
# The detail from which on a field has anything in a roll-up.
_LEAST_DETAILS: Mapping[Resolution | None, Detail] = {
    Resolution.FIVE_MINUTES: Detail.MEANS,
    Resolution.DAY: Detail.PERCENTILES,
}
_EPOCH = date(1970, 1, 1).toordinal()
_MAX_NAME = 200
_MAX_REPEATS = 3
_HAS_MANIFEST = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Settled samples of one tenant and measurement.

    Attributes:
        name: the name of its files, unique.
        oldest_ns: the time of the oldest sample.
        newest_ns: the time of the newest one.
        first_appliance: the first appliance in order; "" for samples without.
        last_appliance: the last one.
        rows: how many samples.
        table: the tags and fields that have values in the samples.
        rolled: the fields that are rolled up, and how much.
        sizes: the bytes of its files.
    """

    name: str
    tenant: str
    measurement: str
    oldest_ns: int
    newest_ns: int
    first_appliance: str
    last_appliance: str
    rows: int
    table: Table
    rolled: Mapping[str, Detail]
    sizes: Mapping[Resolution, int]

    @property
    def fields(self) -> Mapping[str, FieldType]:
        """The fields that it still has values of."""
        return self.stored(Resolution.RAW if Resolution.RAW in self.sizes else None).fields

    def stored(self, resolution: Resolution | None) -> Table:
        """Return the tags of one of its files, and the fields that it has values of."""
        if resolution is Resolution.RAW:
            return self.table
        least = _LEAST_DETAILS.get(resolution, Detail.HOURS)
        kinds = self.table.fields.items()
        return Table(self.table.tags, {name: kind for name, kind in kinds if self.has(name, least)})

    def has(self, field: str, detail: Detail) -> bool:
        """Return whether a field is rolled up at least so much."""
        return self.rolled.get(field, Detail.NONE) >= detail

    @property
    def paths(self) -> dict[Resolution, str]:
        """Its files, relative to the folder of the store."""
        return {resolution: self.path(resolution) for resolution in self.sizes}

    def path(self, resolution: Resolution) -> str:
        """Return the path of a file, relative to the folder of the store."""
        day = self.oldest_ns // DAY_NS
        parts = (self.tenant, self.measurement)
        return "/".join([*map(folder_name, parts), _day_name(day), f"{self.name}.{resolution}"]) + (
            ".parquet"
        )

    def overlaps(self, span: Span, *, margin_ns: int = 0) -> bool:
        """Return whether it may have samples in a span, or in the margin before it."""
        return self.oldest_ns < span[1] and self.newest_ns >= span[0] - margin_ns

    def is_inside(self, spans: Iterable[Span], *, width_ns: int = 1) -> bool:
        """Return whether all its samples, or the windows of that width with them, begin in a span.

        Args:
            spans: the times.
            width_ns: the width of the windows.
        """
        first_ns = self.oldest_ns // width_ns * width_ns
        return any(start <= first_ns and self.newest_ns < end for start, end in spans)

    def without(self, resolution: Resolution) -> "Segment":
        """Return it after retention has deleted one of its files; days end with their hours."""
        gone = {resolution, *([Resolution.DAY] if resolution is Resolution.HOUR else [])}
        return replace(
            self, sizes={other: size for other, size in self.sizes.items() if other not in gone}
        )


def folder_name(name: str) -> str:
    """Return the folder of a tenant or measurement: a long name is cut and gets a checksum."""
    text = encoded(name) or "%"
    if len(text) <= _MAX_NAME:
        return text
    return f"{text[: _MAX_NAME - 17]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


class Manifest:
    """The segments of every measurement as of the last commit.

    Args:
        cursor: reads the table, which it creates if missing.
        files: its files.
        former: the folder beside the database, if that is not their place: other databases may
            have theirs there, too, and files that are still in the folder are moved.

    Raises:
        StoreUnavailableError: the files are not those of the database.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        files: Files,
        *,
        former: Path | None = None,
    ) -> None:
        self.files = files
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self._changing: set[str] = set()
        # Held while a change is committed.
        self._change = threading.Lock()
        self._pins: dict[object, int] = {}
        self._pin = threading.Lock()
        self._number = 0
        self._garbage: list[tuple[int, list[str]]] = []
        paths = files.list_paths()
        if paths and not cursor.execute(_HAS_MANIFEST, [MANIFEST_TABLE]).fetchall():
            raise StoreUnavailableError(
                f"{files.place} has files of samples, and the time series file is new and lists "
                "none of them. Restore the file from the same backup, or move the files of samples "
                "away to begin anew."
            )
        create_manifest(cursor)
        if former:
            files.claim(_owner(cursor))
        for segment in read_segments(cursor):
            earlier = self._segments.get(segment.measurement, ())
            self._segments[segment.measurement] = (*earlier, segment)
        self._sweep(paths, LocalFiles(former) if former else None)

    def of(self, measurement: str) -> tuple[Segment, ...]:
        """Return the segments of a measurement."""
        return self._segments.get(measurement, ())

    def types(self, owner: str, measurement: str) -> dict[str, FieldType]:
        """Return the types of the fields that a tenant's segments have values of."""
        stored = {
            (id(segment.table), id(segment.rolled), Resolution.RAW in segment.sizes): Table(
                fields=segment.fields
            )
            for segment in self.of(measurement)
            if segment.tenant == owner
        }
        return dict(united(stored.values()).fields)

    @property
    def measurements(self) -> list[str]:
        """The measurements that have segments."""
        return [name for name, segments in list(self._segments.items()) if segments]

    def read(self, measurement: str, work: Callable[[tuple[Segment, ...]], _Result]) -> _Result:
        """Return what `work` reads from the segments and the table of a measurement.

        It runs again if a segment was added meanwhile; its files stay until it ends.
        """
        with self.pinned():
            for _ in range(_MAX_REPEATS):
                segments = self.of(measurement)
                if measurement not in self._changing:
                    result = work(segments)
                    if measurement not in self._changing and self.of(measurement) is segments:
                        return result
                with self._change:
                    pass
            with self._change:
                return work(self.of(measurement))

    def commit(
        self,
        cursor: duckdb.DuckDBPyConnection,
        measurement: str,
        *,
        remove: Iterable[Segment] = (),
        add: Iterable[Segment] = (),
    ) -> None:
        """Replace some segments of a measurement, and commit the open transaction.

        Files that no segment has any longer are deleted once no reader uses them.
        """
        removed, added = list(remove), list(add)
        if removed:
            names = ", ".join("?" * len(removed))
            cursor.execute(
                f"DELETE FROM {MANIFEST_TABLE} WHERE name IN ({names})",  # noqa: S608 - ours
                [segment.name for segment in removed],
            )
        for segment in added:
            insert_segment(cursor, segment)
        with self._change:
            self._changing.add(measurement)
            try:
                cursor.commit()
                gone = {segment.name for segment in removed}
                remaining = [
                    segment for segment in self.of(measurement) if segment.name not in gone
                ]
                self._segments[measurement] = (*remaining, *added)
            finally:
                self._changing.discard(measurement)
        self._discard(segment_paths(removed) - segment_paths(added))

    def rewrite(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Write the rows of the table anew, to the first free blocks of the file."""
        cursor.begin()
        cursor.execute(f"CREATE TEMP TABLE kept AS FROM {MANIFEST_TABLE}")
        cursor.execute(f"DELETE FROM {MANIFEST_TABLE}")  # noqa: S608 - ours
        cursor.execute(f"INSERT INTO {MANIFEST_TABLE} FROM kept")
        cursor.execute("DROP TABLE kept")
        cursor.commit()

    def delete_garbage(self) -> None:
        """Delete the files that were discarded before every present reader began.

        Raises:
            StoreUnavailableError: they can't be deleted; the next call tries again.
        """
        with self._pin:
            oldest = min(self._pins.values(), default=self._number)
            unused = [entry for entry in self._garbage if entry[0] <= oldest]
            self._garbage = [entry for entry in self._garbage if entry[0] > oldest]
        try:
            self.files.delete(path for _, paths in unused for path in paths)
        except BaseException:
            with self._pin:
                self._garbage += unused
            raise

    def _sweep(self, paths: set[str], former: LocalFiles | None) -> None:
        """Delete the files of an interrupted change, after moving those in a former place."""
        listed = segment_paths(
            segment for segments in self._segments.values() for segment in segments
        )
        if former:
            old = former.list_paths()
            self._move(sorted(old & listed - paths), former)
            paths = paths | (old & listed)
            former.delete(old & listed)
        lost = sorted(listed - paths)
        if lost and len(lost) == len(listed):
            raise StoreUnavailableError(
                f"The time series file lists {len(lost)} files of samples, and none of them is in "
                f"{self.files.place}. Restore them from the same backup, or set the place where "
                "they are as `files` in TIMESERIES_URL."
            )
        if lost:
            # Perhaps the database is older than the files, and these are all there is.
            _log.error(
                "%d of %d files of samples are missing in %s, such as %s: queries that need them "
                "fail, and files that are not listed are not deleted. Restore the time series "
                "file and its files from the same backup",
                len(lost),
                len(listed),
                self.files.place,
                lost[0],
            )
        else:
            self.files.delete(sorted(paths - listed))

    def _move(self, paths: Sequence[str], former: LocalFiles) -> None:
        for number, path in enumerate(paths, 1):
            if number % 100 == 1:
                _log.info(
                    "moving files of samples to %s (%d of %d)", self.files.place, number, len(paths)
                )
            new = self.files.create(path)
            shutil.copyfile(former.address(path), new)
            self.files.publish(new, path)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Let no file be deleted during the block."""
        token = object()
        with self._pin:
            self._pins[token] = self._number
        try:
            yield
        finally:
            with self._pin:
                del self._pins[token]

    def _discard(self, paths: set[str]) -> None:
        if paths:
            with self._pin:
                self._number += 1
                self._garbage.append((self._number, sorted(paths)))
            try:
                self.delete_garbage()
            except (VedetteError, OSError) as error:
                _log.warning("files of samples are deleted later: %s", error)


def create_manifest(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the table if it is missing, and its newer columns."""
    cursor.execute(MANIFEST_DDL)
    cursor.execute(_COLUMNS_DDL)


def insert_segment(cursor: duckdb.DuckDBPyConnection, segment: Segment) -> None:
    """Add the row of a segment to the table."""
    row = _row(segment)
    cursor.execute(
        f"INSERT INTO {MANIFEST_TABLE} ({_COLUMNS}) "  # noqa: S608 - ours
        f"VALUES ({', '.join('?' * len(row))})",
        row,
    )


def read_segments(cursor: duckdb.DuckDBPyConnection) -> Iterator[Segment]:
    """Yield the segments of the manifest."""
    for row in cursor.execute(_LIST).fetchall():
        name, tenant, measurement, oldest, newest, first, last, rows = row[:8]
        tags, fields, types, rolled, details, *sizes = row[8:]
        yield Segment(
            name=name,
            tenant=tenant,
            measurement=measurement,
            oldest_ns=oldest,
            newest_ns=newest,
            first_appliance=first,
            last_appliance=last,
            rows=rows,
            table=_table(tuple(tags), tuple(fields), tuple(types)),
            rolled=_details(tuple(rolled), tuple(details or [Detail.ALL] * len(rolled))),
            sizes={
                resolution: size
                for resolution, size in zip(_SIZES, sizes, strict=True)
                if size is not None
            },
        )


def _owner(cursor: duckdb.DuckDBPyConnection) -> str:
    """Return the id of the database, by which it claims the place of its files."""
    cursor.execute(_OWNER_DDL)
    rows = cursor.execute("SELECT id FROM files_owner").fetchall()
    if not rows:
        rows = [(new_id(),)]
        cursor.execute("INSERT INTO files_owner VALUES (?)", list(rows[0]))
    return str(rows[0][0])


def segment_paths(segments: Iterable[Segment]) -> set[str]:
    """Return the paths of the files of some segments."""
    return {path for segment in segments for path in segment.paths.values()}


def _row(segment: Segment) -> Sequence[object]:
    return [
        segment.name,
        segment.tenant,
        segment.measurement,
        segment.oldest_ns,
        segment.newest_ns,
        segment.first_appliance,
        segment.last_appliance,
        segment.rows,
        sorted(segment.table.tags),
        list(segment.table.fields),
        [str(kind) for kind in segment.table.fields.values()],
        list(segment.rolled),
        [int(detail) for detail in segment.rolled.values()],
        *(segment.sizes.get(resolution) for resolution in _SIZES),
    ]


@lru_cache(maxsize=4_096)
def _table(tags: tuple[str, ...], fields: tuple[str, ...], types: tuple[str, ...]) -> Table:
    """Return a table; equal ones share their memory."""
    return Table(frozenset(tags), dict(zip(fields, map(FieldType, types), strict=True)))


@lru_cache(maxsize=4_096)
def _details(names: tuple[str, ...], details: tuple[int, ...]) -> Mapping[str, Detail]:
    return dict(zip(names, map(Detail, details), strict=True))


def _day_name(day: int) -> str:
    """Return a day as `2026-11-22`; days that the calendar of Python lacks by their number."""
    try:
        return str(date.fromordinal(_EPOCH + day))
    except (ValueError, OverflowError):
        return f"day{day}"
