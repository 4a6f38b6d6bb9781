"""Segments: settled samples of one tenant and measurement in Parquet files, and their manifest.

A *segment* has up to three files with one name, in `<tenant>/<measurement>/<day>/` of the store's
folder: `.raw.parquet` with the samples, sorted by series and then time, and the roll-ups of exactly
these samples, `.5m.parquet` and `.1h.parquet`. Files never change. The *manifest* is the table of
segments in the database: a file without its row does not count, and is deleted at the next start.

A sample is either in the measurement's table (*hot*) or in one segment, because the transaction
that adds a segment also deletes the rows it was made of. Readers use the segments from memory and
the table from the database: `Manifest.read` repeats a read if these two have changed in between.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import duckdb

from timeseries.duckdb.schema import Span, Table, encoded
from timeseries.store import DAY_NS, Resolution, StoreUnavailableError
from timeseries.validation import FieldType

MANIFEST_TABLE = "segments"
_SIZES = {
    Resolution.RAW: "raw_bytes",
    Resolution.FIVE_MINUTES: "five_minute_bytes",
    Resolution.HOUR: "hour_bytes",
}
MANIFEST_DDL = (
    f"CREATE TABLE IF NOT EXISTS {MANIFEST_TABLE} (name VARCHAR NOT NULL, tenant VARCHAR NOT NULL, "
    "measurement VARCHAR NOT NULL, oldest BIGINT NOT NULL, newest BIGINT NOT NULL, "
    "first_appliance VARCHAR NOT NULL, last_appliance VARCHAR NOT NULL, rows BIGINT NOT NULL, "
    "tags VARCHAR[] NOT NULL, fields VARCHAR[] NOT NULL, types VARCHAR[] NOT NULL, "
    "rolled VARCHAR[] NOT NULL, raw_bytes BIGINT, five_minute_bytes BIGINT, hour_bytes BIGINT)"
)
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
        rolled: the fields in its roll-ups.
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
    rolled: frozenset[str]
    sizes: Mapping[Resolution, int]

    @property
    def fields(self) -> Mapping[str, FieldType]:
        """The fields that it still has values of."""
        return self.stored(Resolution.RAW if Resolution.RAW in self.sizes else None).fields

    def stored(self, resolution: Resolution | None) -> Table:
        """Return the tags of one of its files, and the fields that it has values of."""
        if resolution is Resolution.RAW:
            return self.table
        some = {name: kind for name, kind in self.table.fields.items() if name in self.rolled}
        return Table(self.table.tags, some)

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

    def without(self, resolution: Resolution) -> "Segment":
        """Return it after retention has deleted one of its files."""
        return replace(self, sizes={r: size for r, size in self.sizes.items() if r != resolution})


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
        folder: the folder of the files.

    Raises:
        StoreUnavailableError: the folder has files, and the database is new.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.folder = folder
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self._changing: set[str] = set()
        # Held while a change is committed.
        self._change = threading.Lock()
        self._pins: dict[object, int] = {}
        self._pin = threading.Lock()
        self._number = 0
        self._garbage: list[tuple[int, list[Path]]] = []
        is_new = not cursor.execute(_HAS_MANIFEST, [MANIFEST_TABLE]).fetchall()
        if is_new and any(folder.glob("*/*/*/*.parquet")):
            raise StoreUnavailableError(
                f"The folder {folder} has files of samples, and the time series file beside it is "
                "new and lists none of them. Restore the file from the same backup, or move the "
                "folder away to begin anew."
            )
        cursor.execute(MANIFEST_DDL)
        for one in read_segments(cursor):
            known = self._segments.get(one.measurement, ())
            self._segments[one.measurement] = (*known, one)

    def of(self, measurement: str) -> tuple[Segment, ...]:
        """Return the segments of a measurement."""
        return self._segments.get(measurement, ())

    @property
    def measurements(self) -> list[str]:
        """The measurements that have segments."""
        return [name for name, segments in list(self._segments.items()) if segments]

    def read(self, measurement: str, work: Callable[[tuple[Segment, ...]], _Result]) -> _Result:
        """Return what `work` reads from the segments and the table of a measurement.

        It runs again if a segment was added meanwhile; its files stay until it ends.
        """
        with self._pinned():
            for _ in range(_MAX_REPEATS):
                segments = self.of(measurement)
                if measurement not in self._changing:
                    found = work(segments)
                    if measurement not in self._changing and self.of(measurement) is segments:
                        return found
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
                [one.name for one in removed],
            )
        for one in added:
            cursor.execute(
                f"INSERT INTO {MANIFEST_TABLE} VALUES ({', '.join('?' * 15)})",  # noqa: S608 - ours
                _row(one),
            )
        with self._change:
            self._changing.add(measurement)
            try:
                cursor.commit()
                gone = {one.name for one in removed}
                rest = [one for one in self.of(measurement) if one.name not in gone]
                self._segments[measurement] = (*rest, *added)
            finally:
                self._changing.discard(measurement)
        files = {path for one in removed for path in one.paths.values()}
        self._discard(files - {path for one in added for path in one.paths.values()})

    def sweep(self) -> None:
        """Delete the files of an interrupted change; at the start, before any other use."""
        known = {
            path
            for segments in self._segments.values()
            for one in segments
            for path in one.paths.values()
        }
        for path in sorted(self.folder.glob("*/*/*/*.parquet*")):
            if path.relative_to(self.folder).as_posix() not in known:
                path.unlink()

    def create(self, path: str) -> Path:
        """Create an empty file, and its folders, under a temporary name; return that."""
        file = self.folder / f"{path}.new"
        with self._pin:  # nothing deletes its folder before the file is in it
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return file

    @contextmanager
    def _pinned(self) -> Iterator[None]:
        token = object()
        with self._pin:
            self._pins[token] = self._number
        try:
            yield
        finally:
            with self._pin:
                del self._pins[token]
            if self._garbage:
                self._delete_garbage()

    def _discard(self, paths: Iterable[str]) -> None:
        some = [self.folder / path for path in paths]
        if some:
            with self._pin:
                self._number += 1
                self._garbage.append((self._number, some))
            self._delete_garbage()

    def _delete_garbage(self) -> None:
        """Delete the files that were discarded before every present reader began."""
        with self._pin:
            oldest = min(self._pins.values(), default=self._number)
            unused = [paths for number, paths in self._garbage if number <= oldest]
            self._garbage = [one for one in self._garbage if one[0] > oldest]
            for path in (path for paths in unused for path in paths):
                path.unlink(missing_ok=True)
                with suppress(OSError):  # not empty
                    for folder in list(path.parents)[:3]:
                        folder.rmdir()


def read_segments(cursor: duckdb.DuckDBPyConnection) -> Iterator[Segment]:
    """Yield the segments of the manifest."""
    for row in cursor.execute(f"FROM {MANIFEST_TABLE}").fetchall():
        name, tenant, measurement, oldest, newest, first, last, rows = row[:8]
        tags, fields, types, rolled, *sizes = row[8:]
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
            rolled=_names(tuple(rolled)),
            sizes={
                resolution: size
                for resolution, size in zip(_SIZES, sizes, strict=True)
                if size is not None
            },
        )


def sync_folder(folder: Path) -> None:
    """Make what was renamed into or created in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _row(one: Segment) -> Sequence[object]:
    return [
        one.name,
        one.tenant,
        one.measurement,
        one.oldest_ns,
        one.newest_ns,
        one.first_appliance,
        one.last_appliance,
        one.rows,
        sorted(one.table.tags),
        list(one.table.fields),
        [str(kind) for kind in one.table.fields.values()],
        sorted(one.rolled),
        *(one.sizes.get(resolution) for resolution in _SIZES),
    ]


@lru_cache(maxsize=4_096)
def _table(tags: tuple[str, ...], fields: tuple[str, ...], types: tuple[str, ...]) -> Table:
    """Return a table; equal ones share their memory."""
    return Table(frozenset(tags), dict(zip(fields, map(FieldType, types), strict=True)))


@lru_cache(maxsize=4_096)
def _names(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def _day_name(day: int) -> str:
    """Return a day as `2026-11-22`; days that the calendar of Python lacks by their number."""
    try:
        return str(date.fromordinal(_EPOCH + day))
    except (ValueError, OverflowError):
        return f"day{day}"
