"""The segments of one buffer: which there are, and the one that is written to."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from collector.buffering.cursor import Cursor
from collector.buffering.segments import (
    OpenedSegment,
    Segment,
    SegmentWriter,
    open_segment,
    remove,
    segment_path,
    segment_paths,
)
from collector.buffering.spans import Range

log = logging.getLogger(__name__)


class SegmentFiles:
    """The segments in the order of their age. Not safe to share by threads.

    Args:
        folder: where they lie.
        segment_bytes: at what size a new one is begun.
        cursor: gives their numbers.
    """

    def __init__(self, folder: Path, *, segment_bytes: int, cursor: Cursor) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._cursor = cursor
        self._segments: dict[int, Segment] = {}
        self._writer: SegmentWriter | None = None

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment.number in self._segments

    @property
    def size_bytes(self) -> int:
        """How much room they take."""
        return sum(segment.size_bytes for segment in self._segments.values())

    @property
    def oldest(self) -> Segment:
        """The one with the oldest samples."""
        return next(iter(self._segments.values()))

    def room_in(self, segment: Segment) -> int:
        """Return how many bytes a segment may still grow by."""
        return self._segment_bytes - segment.size_bytes

    def acknowledged(self) -> dict[int, list[Range]]:
        """Return what need not be read any more, for the cursor."""
        return {
            number: segment.acknowledged
            for number, segment in self._segments.items()
            if segment.acknowledged
        }

    def find(self, on_unreadable: Callable[[Path], None]) -> Iterator[OpenedSegment]:
        """Open and yield what an earlier run left; segments with nothing to read are deleted."""
        for path in segment_paths(self._folder):
            number = int(path.stem)
            self._cursor.next_segment = max(self._cursor.next_segment, number + 1)
            if number < self._cursor.first_segment:
                remove(path)
                continue
            try:
                opened = open_segment(path, self._cursor.acknowledged.get(number, []))
            except OSError as error:
                log.warning("%s can't be read and is left alone: %s", path, error)
                on_unreadable(path)
                continue
            if opened.segment.is_spent:
                remove(path)
            else:
                self._segments[number] = opened.segment
            yield opened

    def writable(self) -> SegmentWriter:
        """Return the writer of the segment in use, or of a new one when that is full.

        Raises:
            OSError: there is no file to write to.
        """
        if self._writer is not None:
            segment = self._writer.segment
            if segment in self and self._takes_more(segment):
                return self._writer
            self.close_writer()
            self.delete_if_spent(segment)
        last = next(reversed(self._segments.values()), None)
        if last is not None and self._takes_more(last):
            self._writer = SegmentWriter(last)
            return self._writer
        number = self._cursor.next_segment
        self._folder.mkdir(parents=True, exist_ok=True)
        segment = Segment(segment_path(self._folder, number), number)
        self._writer = SegmentWriter(segment)
        self._cursor.next_segment = number + 1
        self._segments[number] = segment
        return self._writer

    def delete_if_spent(self, segment: Segment) -> None:
        """Delete a segment that is acknowledged whole and will not grow."""
        is_in_use = self._writer is not None and self._writer.segment is segment
        if segment.is_spent and not (is_in_use and self._takes_more(segment)):
            self.delete(segment)

    def delete(self, segment: Segment) -> None:
        """Forget a segment and delete its file."""
        if segment in self:
            self.forget(segment)
            remove(segment.path)

    def forget(self, segment: Segment) -> None:
        """Forget a segment and leave its file alone."""
        if self._writer is not None and self._writer.segment is segment:
            self.close_writer()
        self._segments.pop(segment.number, None)

    def close_writer(self) -> None:
        """Close the file that is written to; the next write opens one again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _takes_more(self, segment: Segment) -> bool:
        return not segment.is_sealed and segment.size_bytes < self._segment_bytes
