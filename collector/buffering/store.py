"""The content of the buffer: live queue, backlog, segments and loss counts. Not thread-safe."""

import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from collector.buffering.cursor import Cursor
from collector.buffering.follower import BufferFollower
from collector.buffering.frames import Extent, Frame
from collector.buffering.queues import BacklogQueue, LiveQueue, QueuedFrame
from collector.buffering.segment_files import SegmentFiles
from collector.buffering.segments import UNREADABLE, Segment, read_range, set_aside
from core.clock import Clock, to_ns

log = logging.getLogger(__name__)

MAX_SEGMENT_BYTES = 4 * 1024 * 1024
MIN_SEGMENTS = 8
MAX_MEMORY_BYTES = 4 * 1024 * 1024
BATCH_BYTES = 4 * 1024 * 1024
LIVE_AGE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames to send, and where they are stored."""

    frames: tuple[Frame, ...]
    entries: tuple[QueuedFrame, ...]
    is_live: bool

    @property
    def points(self) -> int:
        """Number of points."""
        return sum(frame.points for frame in self.frames)


class BufferStore:
    """Frames on disk, or in memory while the disk is not writable.

    Args:
        folder: for the segments; created if it is missing.
        max_bytes: size limit of all segments.
        max_age: age limit of samples. The oldest ones over a limit are dropped.
        clock: the time.
        cursor: state of an earlier run, which is continued.

    Attributes:
        is_unsaved: whether the cursor's file does not contain all losses yet.
        follower: the second reader, if the cursor has a position for it.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int, max_age: timedelta, clock: Clock, cursor: Cursor
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._clock = clock
        self._cursor = cursor
        self._is_disk_failing = False
        self._files = SegmentFiles(
            folder,
            segment_bytes=min(MAX_SEGMENT_BYTES, max_bytes // MIN_SEGMENTS),
            cursor=cursor,
        )
        self.is_unsaved = False
        self.live = LiveQueue()
        self.backlog = BacklogQueue()
        self.follower: BufferFollower | None = None

    @property
    def size_bytes(self) -> int:
        """Size on disk and in memory."""
        return self._files.size_bytes + self.live.memory_bytes

    def open(self) -> None:
        """Read what an earlier run left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._disk_failed(error)
        for segment, extents in self._files.open_all(self._count_unreadable):
            for extent in extents:
                if extent.is_damaged:
                    self._count_damaged(extent.points, extent.end - extent.start)
                else:
                    self.live.add_from_disk(segment, extent)
            self.move_old_to_backlog()
        if self._cursor.followed is not None:
            self.follower = BufferFollower(self._files, self._cursor)

    def add(self, frame: Frame, content: bytes) -> None:
        """Add a frame and write it to disk, if that is possible.

        Args:
            frame: the frame.
            content: its encoded bytes.
        """
        self.live.add(frame, content)
        self.drop_excess()
        self.write_pending()

    def write_pending(self) -> None:
        """Write the frames to disk that are only in memory, if that is possible."""
        try:
            while self.live.unwritten:
                writer = self._files.writable()
                entries = self.live.next_to_write(self._files.free_bytes(writer.segment))
                start = writer.segment.size_bytes
                writer.append([entry.content for entry in entries])
                self.live.mark_written(entries, writer.segment, start)
        except OSError as error:
            self._disk_failed(error)
        else:
            if self._is_disk_failing:
                log.info("%s is writable again", self._folder)
            self._is_disk_failing = False

    def move_old_to_backlog(self) -> None:
        """Move frames that are no longer live to the backlog."""
        oldest_live_ns = to_ns(self._clock() - LIVE_AGE)
        for segment, extent in self.live.pop_older(oldest_live_ns):
            self.backlog.add(segment, extent)

    def read_live(self, max_points: int, max_bytes: int) -> Batch | None:
        """Return the oldest live frames, at least one; None if there are none."""
        frames: list[Frame] = []
        entries: list[QueuedFrame] = []
        points = size = 0
        for entry in self.live.oldest_first():
            if entry.segment is not None and entry.segment not in self._files:
                continue  # dropped during this loop
            frame = entry.frame or self._read_entry(entry)
            if frame is None:
                continue
            points, size = points + frame.points, size + len(frame.payload)
            if frames and (points > max_points or size > max_bytes):
                break
            frames.append(frame)
            entries.append(entry)
        return Batch(tuple(frames), tuple(entries), is_live=True) if frames else None

    def read_backlog(self, max_points: int, max_bytes: int) -> Batch | None:
        """Return the oldest frames of the backlog, at least one; None if there are none."""
        while self.backlog:
            oldest = self.backlog.oldest
            segment = oldest.segment
            try:
                frames, damage = read_range(
                    segment, oldest.start, oldest.end, max_points=max_points, max_bytes=max_bytes
                )
            except OSError as error:
                self._drop_unreadable(segment, error)
                continue
            if damage is None:
                return Batch(
                    tuple(frame for _, frame in frames),
                    tuple(QueuedFrame.on_disk(segment, extent) for extent, _ in frames),
                    is_live=False,
                )
            lost = self.backlog.remove_first(segment, replace(damage, points=0))
            self._skip_damage(segment, damage, points=lost or 0)
        return None

    def acknowledge(self, batch: Batch) -> None:
        """Remove a delivered batch."""
        for entry in batch.entries:
            self._acknowledge_entry(entry, is_live=batch.is_live)
        for segment in {entry.segment for entry in batch.entries}:
            if segment is not None:
                self._files.delete_if_acknowledged(segment)

    def drop_excess(self) -> None:
        """Drop the oldest segments, or frames in memory, that exceed the limits."""
        oldest_ns = to_ns(self._clock() - self._max_age)
        while self._files:
            segment = self._files.oldest
            is_too_old = 0 < segment.newest_ns < oldest_ns
            is_too_large = len(self._files) > 1 and self._files.size_bytes > self._max_bytes
            if not (is_too_old or is_too_large):
                break
            if not is_too_old:
                # What the portal needs stays longer than what only the follower does.
                segment = self._files.oldest_acknowledged or segment
            if self.follower is not None:
                self.follower.note_drop(segment)
            points = self.backlog.drop_segment(segment) + self.live.drop_segment(segment)
            self._files.delete(segment)
            where = f"segment {segment.path.name}"
            self._count_dropped(points, where, by_age=is_too_old)
        while self.live.memory_bytes > MAX_MEMORY_BYTES:
            self._count_dropped(self.live.drop_unwritten(), "memory", by_age=False)

    def save_to_cursor(self) -> Cursor:
        """Return the updated cursor, to be written."""
        self.is_unsaved = False
        self._cursor.acknowledged = self._files.acknowledged()
        return self._cursor

    def close(self) -> None:
        """Close the files, after a last attempt to write what is only in memory."""
        self.write_pending()
        self._files.close_writer()

    def _read_entry(self, entry: QueuedFrame) -> Frame | None:
        """Return a live frame from disk; drop it and return None if it can't be read."""
        segment = entry.segment
        if segment is None:
            return entry.decode()
        try:
            frames, damage = read_range(
                segment, entry.start, entry.end, max_points=entry.points, max_bytes=BATCH_BYTES
            )
        except OSError as error:
            self._drop_unreadable(segment, error)
            return None
        if damage is None:
            return frames[0][1]
        self.live.remove(entry)
        self._skip_damage(segment, entry.extent, points=entry.points)
        return None

    def _acknowledge_entry(self, entry: QueuedFrame, *, is_live: bool) -> None:
        """Acknowledge an entry, unless it was dropped in the meantime."""
        segment = entry.segment
        if is_live:
            is_queued = self.live.remove(entry)
        else:
            lost = None if segment is None else self.backlog.remove_first(segment, entry.extent)
            is_queued = lost is not None
            self._cursor.damaged_points += lost or 0
        if segment is not None and is_queued:
            segment.acknowledge(entry.start, entry.end)

    def _disk_failed(self, error: OSError) -> None:
        if not self._is_disk_failing:
            log.warning("%s is not writable, buffering in memory: %s", self._folder, error)
        self._is_disk_failing = True

    def _skip_damage(self, segment: Segment, damage: Extent, *, points: int) -> None:
        """Set a damaged range aside and continue after it."""
        set_aside(segment, damage)
        segment.acknowledge(damage.start, damage.end)
        self._count_damaged(points, damage.end - damage.start)
        self._files.delete_if_acknowledged(segment)

    def _drop_unreadable(self, segment: Segment, error: OSError) -> None:
        """Drop a segment whose file is missing or broken; other errors may be temporary."""
        if error.errno not in UNREADABLE:
            raise error
        log.warning("can't read %s, dropping it: %s", segment.path, error)
        points = self.backlog.drop_segment(segment) + self.live.drop_segment(segment)
        self._count_damaged(points, segment.size_bytes)
        self._files.forget(segment)

    def _count_unreadable(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._count_damaged(0, path.stat().st_size)

    def _count_dropped(self, points: int, where: str, *, by_age: bool) -> None:
        if not points:
            return
        reason = "too old" if by_age else "the buffer is full"
        log.warning("dropped %d points of %s: %s", points, where, reason)
        self._cursor.dropped_points += points
        if by_age:
            self._cursor.dropped_by_age_points += points
        else:
            self._cursor.dropped_by_size_points += points
        self.is_unsaved = True

    def _count_damaged(self, points: int, size_bytes: int) -> None:
        """Count what can't be read back; `points` as far as known."""
        self._cursor.damaged_points += points
        self._cursor.damaged_bytes += size_bytes
        self.is_unsaved = True
