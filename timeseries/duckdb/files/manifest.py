"""The manifest of an embedded store: which files of samples count.

It is the table of segments in the database: a file without its row does not count, and is deleted
at the next start. Files are in a folder or in a bucket; see `files`.

A sample is either in the measurement's table (*hot*) or in one segment, because the transaction
that adds a segment also deletes the rows, or what was staged, that it was made of. Readers use the
segments from memory and the table from the database: `Manifest.read` repeats a read if these two
have changed in between.

Other programs read lists of the files, beside the files of the open layout. A list is replaced as a
whole after the commit that changes it, and before files that it had are deleted. So who reads a
list can read its files, for `GRACE_SECONDS` at least.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import duckdb

from core.errors import VedetteError
from core.ids import new_id
from timeseries.duckdb.files.files import Files, LocalFiles
from timeseries.duckdb.files.layout import (
    COLUMNS_LIST,
    FILES_LIST,
    VERSION,
    is_open_path,
    partition_of,
)
from timeseries.duckdb.files.segments import (
    MANIFEST_TABLE,
    Segment,
    create_manifest,
    insert_segment,
    read_segments,
    segment_paths,
)
from timeseries.duckdb.schema import Table, united
from timeseries.store import Resolution, StoreUnavailableError
from timeseries.validation import FieldType

GRACE_SECONDS = 900.0
"""How long files that were replaced can still be read: queries of other programs take minutes."""
ColumnsOf = Callable[[Sequence[Segment], Resolution], Mapping[str, str]]
"""The quoted columns of some segments' files of a resolution, with their SQL types."""
SegmentsOf = Callable[[str], Iterable[Segment]]
_log = logging.getLogger(__name__)
_OWNER_DDL = "CREATE TABLE IF NOT EXISTS files_owner (id VARCHAR NOT NULL)"
_MAX_REPEATS = 3
_HAS_MANIFEST = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
_Result = TypeVar("_Result")


class Manifest:
    """The segments of every measurement as of the last commit.

    Args:
        cursor: reads the table, which it creates if missing.
        files: its files.
        former: the folder beside the database, if that is not their place: other databases may
            have theirs there, too, and files that are still in the folder are moved.
        columns_of: the columns of segments' files, which the lists of the open layout have.

    Attributes:
        lists: the lists of files for other programs.

    Raises:
        StoreUnavailableError: the files are not those of the database.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        files: Files,
        *,
        former: Path | None = None,
        columns_of: ColumnsOf = lambda _segments, _resolution: {},
    ) -> None:
        self.files = files
        self.lists = Lists(files, self.of, columns_of)
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self._changing: set[str] = set()
        # Held while a change is committed.
        self._change = threading.Lock()
        # The thread of a reader that holds it, if any.
        self._reader: int | None = None
        self._pins: dict[object, int] = {}
        self._pin = threading.Lock()
        self._number = 0
        # With what was the number of the newest reader, and when.
        self._garbage: list[tuple[int, float, list[str]]] = []
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
            self.lists.changed([segment])
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

    def read(
        self,
        measurement: str,
        work: Callable[[tuple[Segment, ...]], _Result],
        *,
        prepare: Callable[[], object] = lambda: None,
    ) -> _Result:
        """Return what `work` reads from the segments and the table of a measurement.

        It runs again if a segment was added meanwhile; its files stay until it ends. After some
        times, commits wait for it: then it must not wait for a thread that commits, and what needs
        that is done by `prepare` before.
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
            prepare()
            with self._change:
                self._reader = threading.get_ident()
                try:
                    return work(self.of(measurement))
                finally:
                    self._reader = None

    @property
    def delays_commits(self) -> bool:
        """Whether commits wait for what this thread reads now."""
        return self._reader == threading.get_ident()

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
        self.lists.changed([*removed, *added])
        self._discard(segment_paths(removed) - segment_paths(added))

    def rewrite(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Write the rows of the table anew, to the first free blocks of the file."""
        cursor.begin()
        cursor.execute(f"CREATE TEMP TABLE kept AS FROM {MANIFEST_TABLE}")
        cursor.execute(f"DELETE FROM {MANIFEST_TABLE}")  # noqa: S608 - ours
        cursor.execute(f"INSERT INTO {MANIFEST_TABLE} FROM kept")
        cursor.execute("DROP TABLE kept")
        cursor.commit()

    def delete_garbage(self, *, at_once: bool = False) -> None:
        """Delete the files that were discarded before every present reader began.

        Args:
            at_once: don't wait until other programs have read files of the open layout.

        Raises:
            StoreUnavailableError: they can't be deleted; the next call tries again.
        """
        self.lists.write()
        waits = self.files.is_open and not at_once
        until = time.monotonic() - (GRACE_SECONDS if waits else 0.0)
        with self._pin:
            oldest = min(self._pins.values(), default=self._number)
            unused = [entry for entry in self._garbage if entry[0] <= oldest and entry[1] <= until]
            self._garbage = [entry for entry in self._garbage if entry not in unused]
        try:
            self.files.delete(path for *_, paths in unused for path in paths)
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
            strays = paths - listed
            if self.files.is_open:
                # Lists may have them, and are written first.
                self.lists.may_be_wrong(
                    {partition_of(path) for path in strays if is_open_path(path)}
                )
                self._garbage.append((0, time.monotonic(), sorted(strays)))
            else:
                self.files.delete(sorted(strays))

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
                self._garbage.append((self._number, time.monotonic(), sorted(paths)))
            try:
                self.delete_garbage()
            except (VedetteError, OSError) as error:
                _log.warning("files of samples are deleted later: %s", error)


def _owner(cursor: duckdb.DuckDBPyConnection) -> str:
    """Return the id of the database, by which it claims the place of its files."""
    cursor.execute(_OWNER_DDL)
    rows = cursor.execute("SELECT id FROM files_owner").fetchall()
    if not rows:
        rows = [(new_id(),)]
        cursor.execute("INSERT INTO files_owner VALUES (?)", list(rows[0]))
    return str(rows[0][0])


class Lists:
    """The lists of the measurements whose segments have changed since they were written.

    Args:
        files: where they are.
        segments_of: the segments of a measurement.
        columns_of: the columns of segments.
    """

    def __init__(self, files: Files, segments_of: SegmentsOf, columns_of: ColumnsOf) -> None:
        self._files = files
        self._segments_of = segments_of
        self._columns_of = columns_of
        self._changed: dict[str, str] = {}
        self._columns: dict[str, bytes] = {}
        self._writing = threading.Lock()

    def changed(self, segments: Iterable[Segment]) -> None:
        """Note that segments were added or removed."""
        self._changed |= {
            segment.partition: segment.measurement for segment in segments if segment.is_open
        }

    def may_be_wrong(self, partitions: Iterable[str]) -> None:
        """Note that the lists of partitions, perhaps without segments, must be written anew."""
        for partition in partitions:
            self._changed.setdefault(partition, "")

    def write(self) -> None:
        """Write the lists that have changed; delete those without files.

        Raises:
            StoreUnavailableError: they can't be written; the next call tries again.
        """
        with self._writing:
            while self._changed:
                partition, measurement = self._changed.popitem()
                try:
                    self._write(partition, measurement)
                except BaseException:
                    self._changed.setdefault(partition, measurement)
                    raise

    def _write(self, partition: str, measurement: str) -> None:
        segments = [
            segment
            for segment in self._segments_of(measurement)
            if segment.is_open and segment.partition == partition
        ]
        if not segments:
            self._columns.pop(partition, None)
            self._files.delete([f"{partition}/{name}" for name in (FILES_LIST, COLUMNS_LIST)])
            return
        columns = _lines(self._column_entries(segments))
        if self._columns.get(partition) != columns:
            self._files.replace(f"{partition}/{COLUMNS_LIST}", columns)
            self._columns[partition] = columns
        self._files.replace(f"{partition}/{FILES_LIST}", _lines(_file_entries(segments)))

    def _column_entries(self, segments: Sequence[Segment]) -> Iterator[Mapping[str, object]]:
        for resolution in Resolution:
            listed = [segment for segment in segments if resolution in segment.sizes]
            columns = self._columns_of(listed, resolution) if listed else {}
            for name, sql_type in columns.items():
                column = name[1:-1].replace('""', '"')
                yield {"resolution": str(resolution), "column": column, "type": sql_type}


def _file_entries(segments: Iterable[Segment]) -> Iterator[Mapping[str, object]]:
    for segment in sorted(segments, key=lambda segment: (segment.oldest_ns, segment.name)):
        for resolution, path in segment.paths.items():
            yield {
                "version": VERSION,
                "path": path,
                "file": path.rpartition("/")[2],
                "resolution": str(resolution),
                "day": path.split("/")[3].removeprefix("day="),
                "oldest_ns": segment.oldest_ns,
                "newest_ns": segment.newest_ns,
                "first_appliance": segment.first_appliance,
                "last_appliance": segment.last_appliance,
                "samples": segment.rows,
                "bytes": segment.sizes[resolution],
            }


def _lines(entries: Iterable[Mapping[str, object]]) -> bytes:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries).encode()
