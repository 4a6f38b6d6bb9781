"""The buffer on disk between plugins and sender: nothing that was flushed is lost to a crash.

Frames are appended to segment files. Those younger than `LIVE_AGE` are *live* and are read first,
so that the portal sees the present at once after an outage; older ones are *backlog*, which is read
oldest first and at a limited rate, so that it does not drown the present. The *cursor* says what
the portal has acknowledged.

The buffer is bounded by size and age: the oldest segment is dropped, and its points are counted by
cause. While the disk takes no writes, frames are kept in memory, bounded too. What can't be read
back is set aside and counted, and the rest survives.
"""

import logging
import time
from datetime import timedelta
from pathlib import Path
from threading import Condition, Lock

import msgspec

from collector.buffering.backlog import Monotonic, Pace
from collector.buffering.contents import (
    BATCH_BYTES,
    LIVE_AGE,
    MEMORY_BOUND_BYTES,
    Batch,
    Bounds,
    Contents,
)
from collector.buffering.cursor import read_cursor, write_cursor
from collector.buffering.frames import Frame, encode_frame
from core.clock import Clock

__all__ = ["BACKLOG_POINTS_PER_SECOND", "BATCH_POINTS", "MEMORY_BOUND_BYTES", "Batch", "DiskBuffer"]

log = logging.getLogger(__name__)

BATCH_POINTS = 5000
BACKLOG_POINTS_PER_SECOND = 2000.0


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
        self._monotonic = monotonic
        self._changed = Condition()
        self._saving = Lock()
        self._is_stopping = False
        self._is_unsaved = False
        self._given_out_at: float | None = None
        self._pace = Pace(backlog_points_per_second, monotonic)
        self._cursor = read_cursor(folder)
        bounds = Bounds(max_bytes, timedelta(seconds=max_age_seconds))
        self._contents = Contents(folder, bounds, clock=clock, cursor=self._cursor)
        self._contents.open()
        self._save(only_if_unsaved=True)

    def append(self, frame: Frame) -> None:
        """Keep a frame: on disk when this returns, or in memory while the disk takes no writes."""
        content = encode_frame(frame)
        with self._changed:
            self._contents.add(frame, content)
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
                if self._contents.backlog:
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
            self._contents.drop_excess()
            self._age()
            batch = self._contents.read_live(max_points, max_bytes)
            if batch is None and not self._pace.wait_seconds():
                most_points = min(max_points, self._pace.batch_points)
                batch = self._contents.read_backlog(most_points, max_bytes)
            if batch is not None and batch.is_live:
                self._given_out_at = self._monotonic()
        self._save(only_if_unsaved=True)
        return batch

    def acknowledge(self, batch: Batch) -> None:
        """Let go of a batch that has arrived."""
        with self._changed:
            self._given_out_at = None
            self._contents.let_go(batch)
            if not batch.is_live:
                self._pace.took(batch.points)
        self._save()

    def close(self) -> None:
        """Close the files. What waits is on disk already; what it did not take gets a last try."""
        self.stop_waiting()
        with self._changed:
            self._contents.close()
        self._save(only_if_unsaved=True)

    @property
    def points(self) -> int:
        """How many points wait."""
        with self._changed:
            return self._contents.live.points + self._contents.backlog.points

    @property
    def backlog_points(self) -> int:
        """How many of them are old and wait for their turn."""
        with self._changed:
            return self._contents.backlog.points

    @property
    def size_bytes(self) -> int:
        """How much room the buffer takes."""
        with self._changed:
            return self._contents.size_bytes

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
        if self._contents.live:
            return True
        return bool(self._contents.backlog) and not self._pace.wait_seconds()

    def _age(self) -> None:
        """Let what is no longer fresh grow old, unless it is being sent right now."""
        is_given_out = (
            self._given_out_at is not None
            and self._monotonic() - self._given_out_at < LIVE_AGE.total_seconds()
        )
        if not is_given_out:
            self._contents.age()

    def _save(self, *, only_if_unsaved: bool = False) -> None:
        """Write the cursor, not holding up who appends meanwhile."""
        if only_if_unsaved and not (self._is_unsaved or self._contents.is_unsaved):
            return
        with self._saving:
            with self._changed:
                self._is_unsaved = False
                content = msgspec.json.encode(self._contents.settle())
            try:
                write_cursor(self._folder, content)
            except OSError as error:  # after a crash some samples are sent twice: harmless
                log.debug("the cursor can't be written: %s", error)
                self._is_unsaved = True
