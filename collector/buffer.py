"""The buffer on disk between plugins and sender: nothing that was flushed is lost to a crash.

Frames are appended to segment files and read back oldest first; the *cursor* says up to where the
portal has acknowledged. The buffer is bounded by size and age: the oldest segment is dropped and
its points are counted. While the disk takes no writes, frames are kept in memory, bounded too.
"""

import logging
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Lock

import msgspec

from collector.files import replace_file
from collector.frames import Frame
from collector.segments import (
    SUFFIX,
    Segment,
    SegmentWriter,
    open_segment,
    read_frames,
    segment_path,
)
from core.clock import Clock, to_ns

log = logging.getLogger(__name__)

LARGEST_SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENTS_IN_BOUND = 8
MEMORY_BOUND_BYTES = 4 * 1024 * 1024
BATCH_POINTS = 5000
BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """The oldest frames that are not acknowledged.

    `segment` and `end_offset` say where the cursor goes once they are; `segment` is None for
    frames that are in memory only.
    """

    frames: tuple[Frame, ...]
    segment: int | None
    end_offset: int = 0

    @property
    def points(self) -> int:
        """How many points it holds."""
        return sum(frame.points for frame in self.frames)


class _Cursor(msgspec.Struct):
    segment: int = 0
    offset: int = 0
    dropped_points: int = 0


class DiskBuffer:
    """A bounded queue of frames on disk. Safe to share by threads."""

    def __init__(
        self, folder: Path, *, max_bytes: int, max_age_seconds: float, clock: Clock
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age = timedelta(seconds=max_age_seconds)
        self._clock = clock
        self._segment_bytes = min(LARGEST_SEGMENT_BYTES, max_bytes // SEGMENTS_IN_BOUND)
        self._lock = Lock()
        self._in_memory: deque[Frame] = deque()
        self._is_disk_refusing = False
        folder.mkdir(parents=True, exist_ok=True)
        self._cursor = self._read_cursor()
        self._segments = self._open_segments()

    def append(self, frame: Frame) -> None:
        """Keep a frame: on disk when this returns, or in memory while the disk takes no writes."""
        with self._lock:
            self._in_memory.append(frame)
            self._drop_excess()
            try:
                self._write_from_memory()
            except OSError as error:
                if not self._is_disk_refusing:
                    log.warning("%s takes no writes, buffering in memory: %s", self._folder, error)
                self._is_disk_refusing = True
            else:
                if self._is_disk_refusing:
                    log.info("%s takes writes again", self._folder)
                self._is_disk_refusing = False

    def read(self, *, max_points: int = BATCH_POINTS, max_bytes: int = BATCH_BYTES) -> Batch | None:
        """Return the oldest frames, at least one; None when there is nothing to send."""
        with self._lock:
            self._drop_excess()
            for segment in self._segments:
                offset = self._cursor.offset if segment.number == self._cursor.segment else 0
                frames, end_offset = read_frames(
                    segment, offset=offset, max_points=max_points, max_bytes=max_bytes
                )
                if frames:
                    return Batch(tuple(frames), segment.number, end_offset)
            return Batch((self._in_memory[0],), None) if self._in_memory else None

    def acknowledge(self, batch: Batch) -> None:
        """Let go of a batch that has arrived."""
        with self._lock:
            if batch.segment is None:
                if self._in_memory and self._in_memory[0] is batch.frames[0]:
                    self._in_memory.popleft()
                return
            if batch.segment < self._cursor.segment:
                return  # dropped in the meantime
            self._cursor.segment, self._cursor.offset = batch.segment, batch.end_offset
            self._segments = [one for one in self._segments if not self._is_spent(one)]
            for segment in self._segments:
                if segment.number == batch.segment:
                    segment.unread_points = max(0, segment.unread_points - batch.points)
            self._write_cursor()

    @property
    def points(self) -> int:
        """How many points wait."""
        with self._lock:
            on_disk = sum(segment.unread_points for segment in self._segments)
            return on_disk + sum(frame.points for frame in self._in_memory)

    @property
    def size_bytes(self) -> int:
        """How much room the buffer takes."""
        with self._lock:
            on_disk = sum(segment.size_bytes for segment in self._segments)
            return on_disk + sum(frame.size_bytes for frame in self._in_memory)

    @property
    def dropped_points(self) -> int:
        """How many points were dropped to stay within the bounds, ever."""
        return self._cursor.dropped_points

    def _write_from_memory(self) -> None:
        while self._in_memory:
            with SegmentWriter(self._writable_segment()) as writer:
                while self._in_memory and writer.segment.size_bytes < self._segment_bytes:
                    writer.append(self._in_memory[0])
                    self._in_memory.popleft()
                writer.sync()

    def _writable_segment(self) -> Segment:
        if not self._segments or self._segments[-1].size_bytes >= self._segment_bytes:
            last = self._segments[-1].number if self._segments else self._cursor.segment
            number = last + 1
            self._segments.append(Segment(segment_path(self._folder, number), number))
        return self._segments[-1]

    def _drop_excess(self) -> None:
        """Drop the oldest segments, or frames in memory, that are over the bounds."""
        oldest_ns = to_ns(self._clock() - self._max_age)
        while self._segments and self._is_over(self._segments[0], oldest_ns):
            segment = self._segments.pop(0)
            segment.path.unlink(missing_ok=True)
            self._count_dropped(segment.unread_points, f"segment {segment.path.name}")
        while sum(frame.size_bytes for frame in self._in_memory) > MEMORY_BOUND_BYTES:
            self._count_dropped(self._in_memory.popleft().points, "memory")

    def _is_over(self, oldest: Segment, oldest_ns: int) -> bool:
        size = sum(segment.size_bytes for segment in self._segments)
        is_too_old = 0 < oldest.newest_ns < oldest_ns
        return (size > self._max_bytes and len(self._segments) > 1) or is_too_old

    def _count_dropped(self, points: int, where: str) -> None:
        if points:
            self._cursor.dropped_points += points
            log.warning("buffer over its bound: dropped %d points of %s", points, where)
            self._write_cursor()

    def _is_spent(self, segment: Segment) -> bool:
        """Delete a segment that is acknowledged whole; return whether it was one."""
        is_behind = segment.number < self._cursor.segment
        is_read = (
            segment.number == self._cursor.segment
            and self._cursor.offset >= segment.size_bytes
            and segment.size_bytes >= self._segment_bytes
        )
        if is_behind or is_read:
            segment.path.unlink(missing_ok=True)
        return is_behind or is_read

    def _read_cursor(self) -> _Cursor:
        try:
            return msgspec.json.decode(self._cursor_path.read_bytes(), type=_Cursor)
        except FileNotFoundError:
            return _Cursor()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s can't be read, sending all again: %s", self._cursor_path, error)
            return _Cursor()

    def _write_cursor(self) -> None:
        try:
            replace_file(self._cursor_path, msgspec.json.encode(self._cursor))
        except OSError as error:  # after a crash some samples are sent twice, which is harmless
            log.debug("%s can't be written: %s", self._cursor_path, error)

    def _open_segments(self) -> list[Segment]:
        segments = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            is_at_cursor = int(path.stem) == self._cursor.segment
            segment = open_segment(path, read_offset=self._cursor.offset if is_at_cursor else 0)
            if is_at_cursor:  # what was cut off can't be read, and new frames take its place
                self._cursor.offset = min(self._cursor.offset, segment.size_bytes)
            if not self._is_spent(segment):
                segments.append(segment)
        return segments

    @property
    def _cursor_path(self) -> Path:
        return self._folder / "cursor.json"
