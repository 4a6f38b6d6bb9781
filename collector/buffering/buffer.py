"""The buffer on disk between plugins and sender: nothing that was flushed is lost to a crash.

Frames are appended to segment files. Those younger than `LIVE_AGE` are *live* and are read first,
so that the portal sees the present at once after an outage; older ones are *backlog*, which is read
oldest first and at a limited rate, so that it does not drown the present. The *cursor* says what
the portal has acknowledged.

The buffer is bounded by size and age: the oldest segment is dropped, and its points are counted by
cause. While the disk takes no writes, frames are kept in memory, bounded too. What can't be read
back is set aside and counted, and the rest survives.
"""

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Condition, Lock

import msgspec

from collector.buffering.backlog import Backlog, Monotonic, Pace
from collector.buffering.cursor import read_cursor, write_cursor
from collector.buffering.frames import Found, Frame, encode_frame
from collector.buffering.live import Entry, LiveFrames
from collector.buffering.segment_files import SegmentFiles
from collector.buffering.segments import GONE, Segment, read_span, set_aside
from core.clock import Clock, to_ns

log = logging.getLogger(__name__)

LARGEST_SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENTS_IN_BOUND = 8
MEMORY_BOUND_BYTES = 4 * 1024 * 1024
BATCH_POINTS = 5000
BATCH_BYTES = 4 * 1024 * 1024
LIVE_AGE = timedelta(seconds=60)
BACKLOG_POINTS_PER_SECOND = 2000.0


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


class DiskBuffer:
    """A bounded queue of frames on disk. Safe to share by threads; one of them reads.

    Args:
        folder: where the segments lie; made when it is missing.
        max_bytes: bound of all segments together.
        max_age_seconds: bound of a sample's age.
        clock: the time, against which samples age.
        backlog_points_per_second: how fast old samples are given out.
        monotonic: measures that rate.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_age_seconds: float,
        clock: Clock,
        backlog_points_per_second: float = BACKLOG_POINTS_PER_SECOND,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age = timedelta(seconds=max_age_seconds)
        self._clock = clock
        self._monotonic = monotonic
        self._changed = Condition()
        self._saving = Lock()
        self._is_stopping = False
        self._is_disk_refusing = False
        self._is_unsaved = False
        self._given_out_at: float | None = None
        self._live = LiveFrames()
        self._backlog = Backlog()
        self._pace = Pace(backlog_points_per_second, monotonic)
        self._cursor = read_cursor(folder)
        self._files = SegmentFiles(
            folder,
            segment_bytes=min(LARGEST_SEGMENT_BYTES, max_bytes // SEGMENTS_IN_BOUND),
            cursor=self._cursor,
        )
        self._open()

    def append(self, frame: Frame) -> None:
        """Keep a frame: on disk when this returns, or in memory while the disk takes no writes."""
        content = encode_frame(frame)
        with self._changed:
            self._live.add(frame, content)
            self._drop_excess()
            self._write_from_memory()
            self._age()
            self._changed.notify()
        self._save(only_if_unsaved=True)

    def wait_for_frames(self, timeout_seconds: float) -> bool:
        """Wait until there is something to send; False when there is not.

        Returns at once after `stop_waiting`.
        """
        give_up_at = self._monotonic() + timeout_seconds
        with self._changed:
            while not (self._is_ready() or self._is_stopping):
                left_seconds = give_up_at - self._monotonic()
                if left_seconds <= 0:
                    break
                if self._backlog:
                    left_seconds = min(left_seconds, self._pace.wait_seconds())
                self._changed.wait(left_seconds)
            return self._is_ready()

    def stop_waiting(self) -> None:
        """Wake who waits for frames, now and from now on: the agent is about to end."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def read(self, *, max_points: int = BATCH_POINTS, max_bytes: int = BATCH_BYTES) -> Batch | None:
        """Return live frames, else the oldest of the backlog if its rate allows; at least one.

        None when there is nothing to send now.
        """
        with self._changed:
            self._given_out_at = None
            self._drop_excess()
            self._age()
            batch = self._read_live(max_points, max_bytes)
            if batch is None and not self._pace.wait_seconds():
                batch = self._read_backlog(min(max_points, self._pace.batch_points), max_bytes)
            if batch is not None and batch.is_live:
                self._given_out_at = self._monotonic()
        self._save(only_if_unsaved=True)
        return batch

    def acknowledge(self, batch: Batch) -> None:
        """Let go of a batch that has arrived."""
        with self._changed:
            self._given_out_at = None
            for entry in batch.entries:
                self._let_go(entry, is_live=batch.is_live)
            for segment in {entry.segment for entry in batch.entries}:
                if segment is not None:
                    self._files.delete_if_spent(segment)
            if not batch.is_live:
                self._pace.took(batch.points)
        self._save()

    def close(self) -> None:
        """Close the files. What waits is on disk already; what it did not take gets a last try."""
        self.stop_waiting()
        with self._changed:
            self._write_from_memory()
            self._files.close_writer()
        self._save(only_if_unsaved=True)

    @property
    def points(self) -> int:
        """How many points wait."""
        with self._changed:
            return self._live.points + self._backlog.points

    @property
    def backlog_points(self) -> int:
        """How many of them are old and wait for their turn."""
        with self._changed:
            return self._backlog.points

    @property
    def size_bytes(self) -> int:
        """How much room the buffer takes."""
        with self._changed:
            return self._files.size_bytes + self._live.memory_bytes

    @property
    def dropped_points(self) -> int:
        """How many points were dropped to stay within the bounds, ever."""
        return self._cursor.dropped_points

    @property
    def dropped_by_age_points(self) -> int:
        """How many of them were too old."""
        return self._cursor.dropped_by_age_points

    @property
    def dropped_by_size_points(self) -> int:
        """How many of them had no room."""
        return self._cursor.dropped_by_size_points

    @property
    def damaged_bytes(self) -> int:
        """How many bytes could not be read back, ever."""
        return self._cursor.damaged_bytes

    @property
    def damaged_points(self) -> int:
        """How many points could not be read back, ever, as far as that is known."""
        return self._cursor.damaged_points

    def _is_ready(self) -> bool:
        return bool(self._live) or (bool(self._backlog) and not self._pace.wait_seconds())

    def _write_from_memory(self) -> None:
        try:
            while self._live.unwritten:
                writer = self._files.writable()
                entries = self._live.next_to_write(self._files.room_in(writer.segment))
                start = writer.segment.size_bytes
                writer.append([entry.content for entry in entries])
                self._live.written(entries, writer.segment, start)
        except OSError as error:
            self._disk_refuses(error)
        else:
            if self._is_disk_refusing:
                log.info("%s takes writes again", self._folder)
            self._is_disk_refusing = False

    def _disk_refuses(self, error: OSError) -> None:
        if not self._is_disk_refusing:
            log.warning("%s takes no writes, buffering in memory: %s", self._folder, error)
        self._is_disk_refusing = True

    def _age(self) -> None:
        """Move what is no longer fresh to the backlog, unless it is being sent right now."""
        is_given_out = (
            self._given_out_at is not None
            and self._monotonic() - self._given_out_at < LIVE_AGE.total_seconds()
        )
        if not is_given_out:
            fresh_ns = to_ns(self._clock() - LIVE_AGE)
            for segment, found in self._live.take_older(fresh_ns):
                self._backlog.add(segment, found)

    def _read_live(self, max_points: int, max_bytes: int) -> Batch | None:
        frames: list[Frame] = []
        entries: list[Entry] = []
        points = size = 0
        for entry in self._live.oldest_first():
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
        self._live.let_go(entry)
        self._damaged(segment, entry.found, points=entry.points)
        return None

    def _read_backlog(self, max_points: int, max_bytes: int) -> Batch | None:
        while self._backlog:
            span = self._backlog.oldest
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
            lost = self._backlog.settle(segment, replace(damage, points=0))
            self._damaged(segment, damage, points=lost or 0)
        return None

    def _let_go(self, entry: Entry, *, is_live: bool) -> None:
        """Note that an entry has arrived; nothing happens to one that was dropped meanwhile."""
        segment = entry.segment
        if is_live:
            is_known = self._live.let_go(entry)
        else:
            late = None if segment is None else self._backlog.settle(segment, entry.found)
            is_known = late is not None
            self._cursor.damaged_points += late or 0
        if segment is not None and is_known:
            segment.acknowledge(entry.start, entry.end)

    def _drop_excess(self) -> None:
        """Drop the oldest segments, or frames in memory, that are over the bounds."""
        oldest_ns = to_ns(self._clock() - self._max_age)
        while self._files:
            segment = self._files.oldest
            is_too_old = 0 < segment.newest_ns < oldest_ns
            is_too_much = len(self._files) > 1 and self._files.size_bytes > self._max_bytes
            if not (is_too_old or is_too_much):
                break
            points = self._backlog.give_up(segment) + self._live.give_up(segment)
            self._files.delete(segment)
            self._count_dropped(points, f"segment {segment.path.name}", by_age=is_too_old)
        while self._live.memory_bytes > MEMORY_BOUND_BYTES:
            self._count_dropped(self._live.drop_unwritten(), "memory", by_age=False)

    def _count_dropped(self, points: int, where: str, *, by_age: bool) -> None:
        if not points:
            return
        cause = "too old" if by_age else "over its bound"
        log.warning("buffer %s: dropped %d points of %s", cause, points, where)
        self._cursor.dropped_points += points
        if by_age:
            self._cursor.dropped_by_age_points += points
        else:
            self._cursor.dropped_by_size_points += points
        self._is_unsaved = True

    def _damaged(self, segment: Segment, damage: Found, *, points: int) -> None:
        """Set a damaged stretch aside and go on behind it."""
        set_aside(segment, damage)
        segment.acknowledge(damage.start, damage.end)
        self._count_damaged(points=points, size_bytes=damage.end - damage.start)
        self._files.delete_if_spent(segment)

    def _unreadable(self, segment: Segment, error: OSError) -> None:
        """Give up a segment whose file is gone or broken; another fault may pass."""
        if error.errno not in GONE:
            raise error
        log.warning("%s can't be read and is given up: %s", segment.path, error)
        points = self._backlog.give_up(segment) + self._live.give_up(segment)
        self._count_damaged(points=points, size_bytes=segment.size_bytes)
        self._files.forget(segment)

    def _count_damaged(self, *, points: int, size_bytes: int) -> None:
        self._cursor.damaged_points += points
        self._cursor.damaged_bytes += size_bytes
        self._is_unsaved = True

    def _open(self) -> None:
        """Find what an earlier run left."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._disk_refuses(error)
        for opened in self._files.find(self._left_alone):
            for found in opened.damage:
                self._count_damaged(points=found.points, size_bytes=found.end - found.start)
            for found in opened.waiting:
                self._live.add_found(opened.segment, found)
            self._age()
        self._save(only_if_unsaved=True)

    def _left_alone(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self._count_damaged(points=0, size_bytes=path.stat().st_size)

    def _save(self, *, only_if_unsaved: bool = False) -> None:
        """Write the cursor, not holding up who appends meanwhile."""
        if only_if_unsaved and not self._is_unsaved:
            return
        with self._saving:
            with self._changed:
                self._is_unsaved = False
                self._cursor.acknowledged = self._files.acknowledged()
                content = msgspec.json.encode(self._cursor)
            try:
                write_cursor(self._folder, content)
            except OSError as error:  # after a crash some samples are sent twice: harmless
                log.debug("the cursor can't be written: %s", error)
                self._is_unsaved = True
