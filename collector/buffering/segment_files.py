"""The segment files of one buffer."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from collector.buffering.cursor import Cursor
from collector.buffering.frames import Extent
from collector.buffering.segments import (
    Range,
    Segment,
    SegmentWriter,
    open_segment,
    remove,
    sealed_segment,
    segment_path,
    segment_paths,
)

log = logging.getLogger(__name__)


class SegmentFiles:
    """The segments in the order of their age. Not thread-safe.

    Args:
        folder: their folder.
        segment_bytes: the size after which a new one is started.
        cursor: has the next number, and the position of a second reader.

    Attributes:
        held_from: the number of the first segment that a second reader still needs; None if there
            is no such reader.
    """

    def __init__(self, folder: Path, *, segment_bytes: int, cursor: Cursor) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._cursor = cursor
        self._segments: dict[int, Segment] = {}
        self._writer: SegmentWriter | None = None
        self.held_from = None if cursor.followed is None else cursor.followed[0]

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment.number in self._segments

    @property
    def size_bytes(self) -> int:
        """Their size."""
        return sum(segment.size_bytes for segment in self._segments.values())

    @property
    def oldest(self) -> Segment:
        """The segment with the oldest samples."""
        return next(iter(self._segments.values()))

    @property
    def oldest_acknowledged(self) -> Segment | None:
        """The oldest segment that only a second reader needs, if there is one."""
        return next(
            (
                segment
                for segment in self._segments.values()
                if segment.is_acknowledged and not self._is_current(segment)
            ),
            None,
        )

    def first_from(self, number: int) -> Segment | None:
        """Return the first segment with a number of at least this."""
        return next((own for own in self._segments.values() if own.number >= number), None)

    def before(self, number: int) -> list[Segment]:
        """Return the segments with lower numbers."""
        return [segment for segment in self._segments.values() if segment.number < number]

    def free_bytes(self, segment: Segment) -> int:
        """Return how many bytes can be added to a segment."""
        return self._segment_bytes - segment.size_bytes

    def acknowledged(self) -> dict[int, list[Range]]:
        """Return the acknowledged ranges, for the cursor."""
        return {
            number: segment.acknowledged
            for number, segment in self._segments.items()
            if segment.acknowledged
        }

    def open_all(
        self, on_unreadable: Callable[[Path], None], *, only_newest: bool = False
    ) -> Iterator[tuple[Segment, list[Extent]]]:
        """Yield the segments of an earlier run as `open_segment`; delete those acknowledged.

        With `only_newest`, the others are not read and yield no frames: who reads them later meets
        their damage.
        """
        paths = segment_paths(self._folder)
        for path in paths:
            number = int(path.stem)
            self._cursor.next_segment = max(self._cursor.next_segment, number + 1)
            acknowledged = self._cursor.acknowledged.get(number, [])
            try:
                if only_newest and path != paths[-1]:
                    segment = sealed_segment(path, acknowledged)
                    extents: list[Extent] = []
                else:
                    segment, extents = open_segment(path, acknowledged)
            except OSError as error:
                log.warning("can't read %s, skipping it: %s", path, error)
                on_unreadable(path)
                continue
            if segment.is_acknowledged and not self._is_held(segment):
                remove(path)
            else:
                self._segments[number] = segment
            yield segment, extents

    def writable(self) -> SegmentWriter:
        """Return the writer of the current segment, or of a new one if that is full.

        Raises:
            OSError: no file can be opened.
        """
        if self._writer is not None:
            segment = self._writer.segment
            if segment in self and self._has_space(segment):
                return self._writer
            self.close_writer()
            self.delete_if_acknowledged(segment)
        last = next(reversed(self._segments.values()), None)
        if last is not None and self._has_space(last):
            self._writer = SegmentWriter(last)
            return self._writer
        number = self._cursor.next_segment
        self._folder.mkdir(parents=True, exist_ok=True)
        segment = Segment(segment_path(self._folder, number), number)
        self._writer = SegmentWriter(segment)
        self._cursor.next_segment = number + 1
        self._segments[number] = segment
        return self._writer

    def delete_if_acknowledged(self, segment: Segment) -> None:
        """Delete a segment that is completely acknowledged and will not grow."""
        if segment.is_acknowledged and not (self._is_current(segment) or self._is_held(segment)):
            self.delete(segment)

    def delete(self, segment: Segment) -> None:
        """Remove a segment and delete its file."""
        if segment in self:
            self.forget(segment)
            remove(segment.path)

    def forget(self, segment: Segment) -> None:
        """Remove a segment but keep its file."""
        if self._writer is not None and self._writer.segment is segment:
            self.close_writer()
        self._segments.pop(segment.number, None)

    def close_writer(self) -> None:
        """Close the current file; the next write opens one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _is_current(self, segment: Segment) -> bool:
        """Return whether a segment will grow."""
        is_in_use = self._writer is not None and self._writer.segment is segment
        return is_in_use and self._has_space(segment)

    def _is_held(self, segment: Segment) -> bool:
        return self.held_from is not None and segment.number >= self.held_from

    def _has_space(self, segment: Segment) -> bool:
        return not segment.is_sealed and segment.size_bytes < self._segment_bytes
