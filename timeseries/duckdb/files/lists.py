"""Lists of the files that count, beside the files of the open layout, for other programs.

A list is replaced as a whole after the commit that changes it, and before files that it had are
deleted. So who reads a list can read its files, for `GRACE_SECONDS` at least.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from timeseries.duckdb.files.files import Files
from timeseries.duckdb.files.layout import COLUMNS_LIST, FILES_LIST, VERSION
from timeseries.duckdb.files.segments import Segment
from timeseries.store import Resolution

GRACE_SECONDS = 900.0
"""How long files that were replaced can still be read: queries of other programs take minutes."""
ColumnsOf = Callable[[Sequence[Segment], Resolution], Mapping[str, str]]
"""The quoted columns of some segments' files of a resolution, with their SQL types."""
SegmentsOf = Callable[[str], Iterable[Segment]]


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
