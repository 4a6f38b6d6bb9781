"""A second reader of the buffer, with a position of its own: samples are on disk once for both.

It reads the frames that are on disk in the order in which they were written, whether or not the
portal has acknowledged them. Segments that it has not read yet stay until then, within the limits
of the buffer: those that only the follower needs are dropped first.
"""

import logging
from dataclasses import dataclass

from collector.buffering.cursor import Cursor
from collector.buffering.frames import Frame, scan
from collector.buffering.segment_files import SegmentFiles
from collector.buffering.segments import UNREADABLE, Segment, read_range

log = logging.getLogger(__name__)

Position = tuple[int, int]
"""The number of a segment, and the offset in it of the first byte that was not read."""


@dataclass(frozen=True, slots=True)
class FollowedFrames:
    """Frames that were read, and the position after them."""

    frames: tuple[Frame, ...]
    end: Position

    @property
    def points(self) -> int:
        """Number of points."""
        return sum(frame.points for frame in self.frames)


class BufferFollower:
    """Reads the segments of one buffer from its position on. Not thread-safe.

    Args:
        files: the segments.
        cursor: of the buffer; has the position.
    """

    def __init__(self, files: SegmentFiles, cursor: Cursor) -> None:
        self._files = files
        self._cursor = cursor
        self._position: Position = cursor.followed or (0, 0)
        self._move_to(self._position)

    @property
    def is_behind(self) -> bool:
        """Whether there are frames to read."""
        number, offset = self._position
        segment = self._files.first_from(number)
        return segment is not None and (
            segment.number > number
            or segment.size_bytes > offset
            or self._files.first_from(segment.number + 1) is not None
        )

    def read(self, *, max_points: int, max_bytes: int) -> FollowedFrames | None:
        """Return the next frames, at least one; None if there are none.

        Raises:
            OSError: the disk has an error that may be temporary.
        """
        while (segment := self._files.first_from(self._position[0])) is not None:
            number, offset = self._position
            start = offset if segment.number == number else 0
            if start >= segment.size_bytes:
                if self._files.first_from(segment.number + 1) is None:
                    return None
                self._move_to((segment.number + 1, 0))
                continue
            try:
                frames, damage = read_range(
                    segment, start, segment.size_bytes, max_points=max_points, max_bytes=max_bytes
                )
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                self._move_to((segment.number + 1, 0))
                continue
            if damage is None:
                end = (segment.number, frames[-1][0].end)
                return FollowedFrames(tuple(frame for _, frame in frames), end)
            self._move_to((segment.number, damage.end))
        return None

    def advance(self, followed: FollowedFrames) -> None:
        """Continue after frames that were delivered or given up."""
        if followed.end > self._position:
            self._move_to(followed.end)

    def note_drop(self, segment: Segment) -> None:
        """Count what was not read yet of a segment that is about to be dropped."""
        number, offset = self._position
        if segment.number < number:
            return
        start = offset if segment.number == number else 0
        try:
            content = segment.path.read_bytes()
        except OSError:
            return
        points = sum(
            extent.points
            for extent in scan(content, min(start, len(content)))
            if not extent.is_damaged
        )
        self._cursor.unfollowed_points += points
        if points:
            log.warning("dropped %d points that were not sent by remote_write", points)

    def _move_to(self, position: Position) -> None:
        """Move to a position; segments before it are deleted if the portal has them."""
        self._position = self._cursor.followed = position
        self._files.held_from = position[0]
        for segment in self._files.before(position[0]):
            self._files.delete_if_acknowledged(segment)
