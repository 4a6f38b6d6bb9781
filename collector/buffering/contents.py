"""What the buffer holds: live frames, the backlog, the segments, and the account of what was lost.

Nothing here knows of threads, of waiting or of rates; the buffer guards it and does that.
"""

import contextlib
import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from collector.buffering.backlog import Backlog
from collector.buffering.cursor import Cursor
from collector.buffering.frames import Found, Frame
from collector.buffering.live import Entry, LiveFrames
from collector.buffering.losses import Losses
from collector.buffering.segment_files import SegmentFiles
from collector.buffering.segments import GONE, Segment, read_span, set_aside
from core.clock import Clock, to_ns

log = logging.getLogger(__name__)

LARGEST_SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENTS_IN_BOUND = 8
MEMORY_BOUND_BYTES = 4 * 1024 * 1024
BATCH_BYTES = 4 * 1024 * 1024
LIVE_AGE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames that are to be sent, and where they lie."""

    frames: tuple[Frame, ...]
    entries: tuple[Entry, ...]
    is_live: bool

    @property
    def points(self) -> int:
        """How many points it holds."""
        return sum(frame.points for frame in self.frames)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be held: all segments together, and the age of a sample."""

    max_bytes: int
    max_age: timedelta


class Contents:
    """Frames on disk, or in memory while the disk takes no writes. Not safe to share by threads.

    Args:
        folder: where the segments lie; made when it is missing.
        bounds: what is over them is dropped, the oldest first.
        clock: the time, against which samples age.
        cursor: what an earlier run knew; the account goes on in it.
    """

    def __init__(self, folder: Path, bounds: Bounds, *, clock: Clock, cursor: Cursor) -> None:
        self._folder = folder
        self._bounds = bounds
        self._clock = clock
        self._cursor = cursor
        self._is_disk_refusing = False
        self._files = SegmentFiles(
            folder,
            segment_bytes=min(LARGEST_SEGMENT_BYTES, bounds.max_bytes // SEGMENTS_IN_BOUND),
            cursor=cursor,
        )
        self._losses = Losses(cursor)
        self.live = LiveFrames()
        self.backlog = Backlog()

    @property
    def is_unsaved(self) -> bool:
        """Whether something was lost that the cursor's file does not say yet."""
        return self._losses.is_unsaved

    @property
    def size_bytes(self) -> int:
        """How much room all takes."""
        return self._files.size_bytes + self.live.memory_bytes

    def open(self) -> None:
        """Find what an earlier run left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._disk_refuses(error)
        for opened in self._files.find(self._left_alone):
            for found in opened.damage:
                self._losses.damaged(points=found.points, size_bytes=found.end - found.start)
            for found in opened.waiting:
                self.live.add_found(opened.segment, found)
            self.age()

    def add(self, frame: Frame, content: bytes) -> None:
        """Take a frame: it is on disk when this returns, unless the disk takes no writes.

        Args:
            frame: what is to be kept.
            content: its bytes for the disk.
        """
        self.live.add(frame, content)
        self.drop_excess()
        self.write_from_memory()

    def write_from_memory(self) -> None:
        """Put on disk what is in memory only; what that does not take waits there."""
        try:
            while self.live.unwritten:
                writer = self._files.writable()
                entries = self.live.next_to_write(self._files.room_in(writer.segment))
                start = writer.segment.size_bytes
                writer.append([entry.content for entry in entries])
                self.live.written(entries, writer.segment, start)
        except OSError as error:
            self._disk_refuses(error)
        else:
            if self._is_disk_refusing:
                log.info("%s takes writes again", self._folder)
            self._is_disk_refusing = False

    def age(self) -> None:
        """Move what is no longer fresh to the backlog."""
        fresh_ns = to_ns(self._clock() - LIVE_AGE)
        for segment, found in self.live.take_older(fresh_ns):
            self.backlog.add(segment, found)

    def read_live(self, max_points: int, max_bytes: int) -> Batch | None:
        """Return the oldest of the live frames, at least one; None when there is none."""
        frames: list[Frame] = []
        entries: list[Entry] = []
        points = size = 0
        for entry in self.live.oldest_first():
            if entry.segment is not None and entry.segment not in self._files:
                continue  # given up since this began
            frame = entry.frame or self._reread(entry)
            if frame is None:
                continue
            points, size = points + frame.points, size + len(frame.payload)
            if frames and (points > max_points or size > max_bytes):
                break
            frames.append(frame)
            entries.append(entry)
        return Batch(tuple(frames), tuple(entries), is_live=True) if frames else None

    def read_backlog(self, max_points: int, max_bytes: int) -> Batch | None:
        """Return the oldest of the backlog, at least one frame; None when there is none."""
        while self.backlog:
            span = self.backlog.oldest
            segment = span.segment
            try:
                frames, damage = read_span(
                    segment, span.start, span.end, max_points=max_points, max_bytes=max_bytes
                )
            except OSError as error:
                self._unreadable(segment, error)
                continue
            if damage is None:
                return Batch(
                    tuple(frame for _, frame in frames),
                    tuple(Entry.of(segment, found) for found, _ in frames),
                    is_live=False,
                )
            lost = self.backlog.settle(segment, replace(damage, points=0))
            self._damaged(segment, damage, points=lost or 0)
        return None

    def let_go(self, batch: Batch) -> None:
        """Let go of a batch that has arrived."""
        for entry in batch.entries:
            self._let_go(entry, is_live=batch.is_live)
        for segment in {entry.segment for entry in batch.entries}:
            if segment is not None:
                self._files.delete_if_spent(segment)

    def drop_excess(self) -> None:
        """Drop the oldest segments, or frames in memory, that are over the bounds."""
        oldest_ns = to_ns(self._clock() - self._bounds.max_age)
        while self._files:
            segment = self._files.oldest
            is_too_old = 0 < segment.newest_ns < oldest_ns
            is_too_much = len(self._files) > 1 and self._files.size_bytes > self._bounds.max_bytes
            if not (is_too_old or is_too_much):
                break
            points = self.backlog.give_up(segment) + self.live.give_up(segment)
            self._files.delete(segment)
            self._losses.dropped(points, f"segment {segment.path.name}", by_age=is_too_old)
        while self.live.memory_bytes > MEMORY_BOUND_BYTES:
            self._losses.dropped(self.live.drop_unwritten(), "memory", by_age=False)

    def settle(self) -> Cursor:
        """Return the cursor as it is to be kept."""
        self._losses.is_unsaved = False
        self._cursor.acknowledged = self._files.acknowledged()
        return self._cursor

    def close(self) -> None:
        """Close the files; what they did not take gets a last try."""
        self.write_from_memory()
        self._files.close_writer()

    def _reread(self, entry: Entry) -> Frame | None:
        """Return a live frame from disk; None, and let it go, when it can't be read."""
        segment = entry.segment
        if segment is None:
            return entry.unwritten_frame()
        try:
            frames, damage = read_span(
                segment, entry.start, entry.end, max_points=entry.points, max_bytes=BATCH_BYTES
            )
        except OSError as error:
            self._unreadable(segment, error)
            return None
        if damage is None:
            return frames[0][1]
        self.live.let_go(entry)
        self._damaged(segment, entry.found, points=entry.points)
        return None

    def _let_go(self, entry: Entry, *, is_live: bool) -> None:
        """Note that an entry has arrived; nothing happens to one that was dropped meanwhile."""
        segment = entry.segment
        if is_live:
            is_known = self.live.let_go(entry)
        else:
            late = None if segment is None else self.backlog.settle(segment, entry.found)
            is_known = late is not None
            self._cursor.damaged_points += late or 0
        if segment is not None and is_known:
            segment.acknowledge(entry.start, entry.end)

    def _disk_refuses(self, error: OSError) -> None:
        if not self._is_disk_refusing:
            log.warning("%s takes no writes, buffering in memory: %s", self._folder, error)
        self._is_disk_refusing = True

    def _damaged(self, segment: Segment, damage: Found, *, points: int) -> None:
        """Set a damaged stretch aside and go on behind it."""
        set_aside(segment, damage)
        segment.acknowledge(damage.start, damage.end)
        self._losses.damaged(points=points, size_bytes=damage.end - damage.start)
        self._files.delete_if_spent(segment)

    def _unreadable(self, segment: Segment, error: OSError) -> None:
        """Give up a segment whose file is gone or broken; another fault may pass."""
        if error.errno not in GONE:
            raise error
        log.warning("%s can't be read and is given up: %s", segment.path, error)
        points = self.backlog.give_up(segment) + self.live.give_up(segment)
        self._losses.damaged(points=points, size_bytes=segment.size_bytes)
        self._files.forget(segment)

    def _left_alone(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._losses.damaged(points=0, size_bytes=path.stat().st_size)
