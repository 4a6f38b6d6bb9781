"""The buffer on disk between plugins and sender: a crash loses nothing that was flushed.

Frames are appended to segment files. Those younger than `LIVE_AGE` are *live* and are sent first,
so that the portal shows current values right after an outage; older ones are the *backlog*, which
is sent oldest first and at a limited rate. The *cursor* stores what the portal has acknowledged,
and the position of a second reader (`collector.buffering.follower`), which may go elsewhere.

Size and age are limited: the oldest segment is dropped, and its points are counted by reason. While
the disk is not writable, frames are kept in memory, within a limit. Damaged data is set aside and
counted; the rest survives.
"""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Condition, Lock

import msgspec

from collector.buffering.cursor import CURSOR_NAME, Cursor, read_cursor
from collector.buffering.follower import FollowedFrames
from collector.buffering.frames import Frame, encode_frame
from collector.buffering.store import (
    BATCH_BYTES,
    MAX_MEMORY_BYTES,
    Batch,
    BufferStore,
)
from core.atomic_files import replace_file
from core.clock import Clock

__all__ = ["BACKLOG_POINTS_PER_SECOND", "BATCH_POINTS", "MAX_MEMORY_BYTES", "Batch", "DiskBuffer"]

log = logging.getLogger(__name__)

BATCH_POINTS = 5000
BACKLOG_POINTS_PER_SECOND = 2000.0


class RateLimit:
    """Limits points per second: each batch delays the next one by its size."""

    def __init__(self, points_per_second: float, monotonic: Callable[[], float]) -> None:
        self._points_per_second = points_per_second
        self._monotonic = monotonic
        self._free_at = 0.0

    @property
    def batch_points(self) -> int:
        """The largest batch: the points of one second."""
        return max(1, int(self._points_per_second))

    def consume(self, points: int) -> None:
        """Count points that were sent."""
        self._free_at = self._monotonic() + points / self._points_per_second

    def wait_seconds(self) -> float:
        """Return how long the next batch must wait; 0 if it can be sent now."""
        return max(0.0, self._free_at - self._monotonic())


class DiskBuffer:
    """A queue of frames on disk with limits. Thread-safe; one thread reads.

    Args:
        folder: for the segments; created if it is missing.
        max_bytes: size limit of all segments.
        max_age_seconds: age limit of samples.
        clock: the time.
        backlog_points_per_second: how fast the backlog is sent.
        is_followed: whether a second reader reads everything by `follow`, in another thread.
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
        is_followed: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._monotonic = monotonic
        self._changed = Condition()
        self._save_lock = Lock()
        self._is_stopping = False
        self._is_unsaved = False
        self._is_sending_live = False
        self._rate_limit = RateLimit(backlog_points_per_second, monotonic)
        self._cursor = read_cursor(folder)
        self._cursor.followed = (self._cursor.followed or (0, 0)) if is_followed else None
        self._store = BufferStore(
            folder,
            max_bytes=max_bytes,
            max_age=timedelta(seconds=max_age_seconds),
            clock=clock,
            cursor=self._cursor,
        )
        self._store.open()
        self._save(only_if_unsaved=True)

    def append(self, frame: Frame) -> None:
        """Add a frame: it is on disk on return, or in memory while the disk is not writable."""
        content = encode_frame(frame)
        with self._changed:
            self._store.add(frame, content)
            self._move_old_to_backlog()
            self._changed.notify_all()
        self._save(only_if_unsaved=True)

    def wait_for_frames(self, timeout_seconds: float) -> bool:
        """Wait until there is something to send; return False after the timeout.

        Returns at once after `stop_waiting`.
        """
        deadline = self._monotonic() + timeout_seconds
        with self._changed:
            while not (self._is_ready() or self._is_stopping):
                left_seconds = deadline - self._monotonic()
                if left_seconds <= 0:
                    break
                if self._store.backlog:
                    left_seconds = min(left_seconds, self._rate_limit.wait_seconds())
                self._changed.wait(left_seconds)
            return self._is_ready()

    def stop_waiting(self) -> None:
        """Wake the waiting thread, because the agent is stopping."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def read(self, *, max_points: int = BATCH_POINTS, max_bytes: int = BATCH_BYTES) -> Batch | None:
        """Return live frames, else the oldest of the backlog if the rate allows; at least one.

        Returns None if there is nothing to send now.
        """
        with self._changed:
            self._is_sending_live = False
            self._store.drop_excess()
            self._move_old_to_backlog()
            batch = self._store.read_live(max_points, max_bytes)
            if batch is None and not self._rate_limit.wait_seconds():
                max_points = min(max_points, self._rate_limit.batch_points)
                batch = self._store.read_backlog(max_points, max_bytes)
            self._is_sending_live = batch is not None and batch.is_live
        self._save(only_if_unsaved=True)
        return batch

    def acknowledge(self, batch: Batch) -> None:
        """Remove a batch that was delivered."""
        with self._changed:
            self._is_sending_live = False
            self._store.acknowledge(batch)
            if not batch.is_live:
                self._rate_limit.consume(batch.points)
        self._save()

    def wait_to_follow(self, timeout_seconds: float) -> bool:
        """Wait until there are frames for the second reader; return False after the timeout.

        Returns at once after `stop_waiting`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_behind() or self._is_stopping, timeout_seconds)
            return self._is_behind()

    def follow(
        self, *, max_points: int = BATCH_POINTS, max_bytes: int = BATCH_BYTES
    ) -> FollowedFrames | None:
        """Return the next frames of the second reader, at least one; None if there are none.

        Raises:
            OSError: the disk has an error that may be temporary.
        """
        with self._changed:
            follower = self._store.follower
            if follower is None:
                return None
            return follower.read(max_points=max_points, max_bytes=max_bytes)

    def advance(self, followed: FollowedFrames) -> None:
        """Move the second reader after frames that were delivered or given up."""
        with self._changed:
            if self._store.follower is not None:
                self._store.follower.advance(followed)
        self._save()

    def close(self) -> None:
        """Close the files, after a last attempt to write what is only in memory."""
        self.stop_waiting()
        with self._changed:
            self._store.close()
        self._save(only_if_unsaved=True)

    @property
    def points(self) -> int:
        """Number of buffered points."""
        with self._changed:
            return self._store.live.points + self._store.backlog.points

    @property
    def backlog_points(self) -> int:
        """Number of points in the backlog."""
        with self._changed:
            return self._store.backlog.points

    @property
    def size_bytes(self) -> int:
        """Size of the buffer."""
        with self._changed:
            return self._store.size_bytes

    @property
    def losses(self) -> Cursor:
        """Counts of points that were dropped or damaged, ever."""
        return self._cursor

    def _is_behind(self) -> bool:
        return self._store.follower is not None and self._store.follower.is_behind

    def _is_ready(self) -> bool:
        if self._store.live:
            return True
        return bool(self._store.backlog) and not self._rate_limit.wait_seconds()

    def _move_old_to_backlog(self) -> None:
        """Move old frames to the backlog, unless live frames are being sent right now."""
        if not self._is_sending_live:
            self._store.move_old_to_backlog()

    def _save(self, *, only_if_unsaved: bool = False) -> None:
        """Write the cursor, without blocking `append` meanwhile."""
        if only_if_unsaved and not (self._is_unsaved or self._store.is_unsaved):
            return
        with self._save_lock:
            with self._changed:
                self._is_unsaved = False
                content = msgspec.json.encode(self._store.save_to_cursor())
            try:
                replace_file(self._folder / CURSOR_NAME, content)
            except OSError as error:  # harmless: after a crash some samples are sent twice
                log.debug("can't write the cursor: %s", error)
                self._is_unsaved = True
