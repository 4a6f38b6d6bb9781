"""Writes that wait on disk for the portal: what was appended survives a crash and a power failure.

Writes are the frames of segment files, as in the agent's buffer (`collector.buffering`); the
cursor stores which of them are delivered. Nothing is dropped: a full spool refuses new writes.
Memory does not grow with the spool: a reader goes through the files, oldest first, and passes over
what is delivered. Damaged data is set aside and counted; the rest survives.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import msgspec

from collector.buffering.cursor import CURSOR_NAME, read_cursor
from collector.buffering.frames import Extent, Frame, encode_frame
from collector.buffering.segment_files import SegmentFiles
from collector.buffering.segments import UNREADABLE, Segment, read_range, set_aside
from core.atomic_files import replace_file
from core.disk_space import disk_space
from core.quantities import format_size
from protocol.relays import RelayedWrite
from relay.errors import SpoolFullError

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 * 2**20
MIN_SEGMENTS = 8
# For the largest write.
ROOM_BYTES = 32 * 2**20
# What one call of `read` reads at most, though all of it may be of appliances that wait.
SCANNED_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class SpooledWrite:
    """A write, and where it is stored."""

    write: RelayedWrite
    segment: Segment
    extent: Extent


@dataclass(frozen=True, slots=True)
class SpoolLevel:
    """How full the spool is.

    Attributes:
        waiting_bytes: of writes that are not delivered.
        disk_bytes: of all files.
        oldest_ns: when the oldest waiting write was received; 0 if there is none.
        damaged_writes: that could not be read back, as far as known, ever.
        damaged_bytes: that could not be read back, ever.
    """

    waiting_bytes: int
    disk_bytes: int
    oldest_ns: int
    damaged_writes: int
    damaged_bytes: int


class Spool:
    """A queue of writes on disk. Thread-safe; one thread reads.

    Args:
        folder: for the segments; created if it is missing.
        max_bytes: size limit of all segments.
        min_free_bytes: what stays free of the disk.

    Attributes:
        problem: why nothing can be appended; "" while it can.
    """

    def __init__(self, folder: Path, *, max_bytes: int, min_free_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._lock = Lock()
        self._cursor = read_cursor(folder)
        self._cursor.followed = None
        self._files = SegmentFiles(
            folder, segment_bytes=min(SEGMENT_BYTES, max_bytes // MIN_SEGMENTS), cursor=self._cursor
        )
        # The number of a segment, and the offset of the first byte in it that was not read.
        self._position = (0, 0)
        self._waiting_bytes = 0
        self.problem = ""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for segment, extents in self._files.open_all(self._count_unreadable, only_newest=True):
            for extent in extents:
                if extent.is_damaged:
                    self._count_damaged(extent)
            self._waiting_bytes += _unread_bytes(segment)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of writes that are not delivered."""
        return self._waiting_bytes

    def append(self, writes: Iterable[RelayedWrite]) -> None:
        """Store writes: on return they survive a power failure.

        Raises:
            SpoolFullError: they don't fit, or the disk can't be written.
        """
        contents = [encode_frame(frame_of(write)) for write in writes]
        size = sum(map(len, contents))
        with self._lock:
            try:
                self._require_room(size)
                self._files.writable().append(contents)
            except OSError as error:
                self.problem = f"{self._folder} can't be written: {error.strerror}"
            except SpoolFullError as error:
                self.problem = error.message
            else:
                self.problem = ""
                self._waiting_bytes += size
                return
        raise SpoolFullError(f"{self.problem.rstrip('.')}. Send again later.")

    def read(
        self, *, max_writes: int, max_bytes: int, passed_over: Collection[str] = ()
    ) -> tuple[list[SpooledWrite], bool]:
        """Return the next waiting writes, and whether the reader has come to the end.

        Args:
            max_writes: how many.
            max_bytes: of their bodies; the first is returned whatever its size.
            passed_over: the appliances whose writes are left out.

        Raises:
            OSError: the disk has an error that may be temporary.
        """
        writes: list[SpooledWrite] = []
        size = scanned = 0
        with self._lock:
            while scanned < SCANNED_BYTES and len(writes) < max_writes and size < max_bytes:
                span = self._next_span()
                if span is None:
                    return writes, True
                segment, start, end = span
                frames = self._frames(
                    segment, start, end, max_points=max_writes - len(writes), max_bytes=max_bytes
                )
                for extent, frame in frames:
                    if writes and size + len(frame.payload) > max_bytes:
                        return writes, False
                    self._position = (segment.number, extent.end)
                    scanned += extent.end - extent.start
                    write = self._decoded(segment, extent, frame)
                    if write is not None and write.appliance_id not in passed_over:
                        writes.append(SpooledWrite(write, segment, extent))
                        size += len(frame.payload)
        return writes, False

    def rewind(self) -> None:
        """Begin with the oldest waiting write the next time."""
        with self._lock:
            self._position = (0, 0)

    def acknowledge(self, delivered: Sequence[SpooledWrite]) -> None:
        """Remove writes that were delivered."""
        with self._lock:
            for entry in delivered:
                self._acknowledge(entry.segment, entry.extent)
            for segment in {entry.segment for entry in delivered}:
                self._delete_if_delivered(segment)

    def level(self) -> SpoolLevel:
        """Return how full the spool is; reads the disk."""
        with self._lock:
            return SpoolLevel(
                waiting_bytes=self._waiting_bytes,
                disk_bytes=self._files.size_bytes,
                oldest_ns=self._oldest_ns(),
                damaged_writes=self._cursor.damaged_points,
                damaged_bytes=self._cursor.damaged_bytes,
            )

    def save(self) -> None:
        """Write the cursor: after a crash, what was delivered before is not sent twice."""
        with self._lock:
            self._cursor.acknowledged = self._files.acknowledged()
            content = msgspec.json.encode(self._cursor)
        try:
            replace_file(self._folder / CURSOR_NAME, content)
        except OSError as error:
            log.warning("can't write the cursor of the spool: %s", error)

    def check_room(self) -> None:
        """See whether writes could be appended now, and set `problem`."""
        with self._lock:
            try:
                self._require_room(min(ROOM_BYTES, self._max_bytes // 16))
            except (SpoolFullError, OSError) as error:
                self.problem = str(error)
            else:
                self.problem = ""

    def close(self) -> None:
        """Close the files."""
        self.save()
        with self._lock:
            self._files.close_writer()

    def _require_room(self, size: int) -> None:
        if self._files.size_bytes + size > self._max_bytes:
            raise SpoolFullError(
                f"The portal is away, and the relay's spool of {format_size(self._max_bytes)} is "
                "full."
            )
        if disk_space(self._folder).free_bytes - size < self._min_free_bytes:
            raise SpoolFullError(
                "The portal is away, and the disk of the relay has less than "
                f"{format_size(self._min_free_bytes)} left."
            )

    def _next_span(self) -> tuple[Segment, int, int] | None:
        """Return the next range that is not delivered, None at the end."""
        number, offset = self._position
        while (segment := self._files.first_from(number)) is not None:
            offset = offset if segment.number == number else 0
            start, end = _first_gap(segment, offset)
            if start < end:
                return segment, start, end
            self._position = (segment.number, segment.size_bytes)
            number, offset = segment.number + 1, 0
        return None

    def _frames(
        self, segment: Segment, start: int, end: int, *, max_points: int, max_bytes: int
    ) -> list[tuple[Extent, Frame]]:
        try:
            frames, damage = read_range(
                segment, start, end, max_points=max_points, max_bytes=max_bytes
            )
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            log.warning("can't read %s, leaving it out: %s", segment.path, error)
            self._waiting_bytes -= _unread_bytes(segment)
            self._count_damaged(Extent(start, end, 0, is_damaged=True))
            self._files.forget(segment)
            return []
        if damage is not None:
            self._set_aside(segment, damage)
        return frames

    def _decoded(self, segment: Segment, extent: Extent, frame: Frame) -> RelayedWrite | None:
        try:
            return msgspec.msgpack.decode(frame.payload, type=RelayedWrite)
        except msgspec.MsgspecError:
            self._set_aside(segment, extent)
            return None

    def _set_aside(self, segment: Segment, damage: Extent) -> None:
        """Copy a damaged range to a file of its own, and go on after it."""
        set_aside(segment, damage)
        self._count_damaged(damage)
        self._acknowledge(segment, damage)
        self._delete_if_delivered(segment)

    def _acknowledge(self, segment: Segment, extent: Extent) -> None:
        before = _unread_bytes(segment)
        segment.acknowledge(extent.start, extent.end)
        if segment in self._files:
            self._waiting_bytes -= before - _unread_bytes(segment)

    def _delete_if_delivered(self, segment: Segment) -> None:
        # The file that grows, too: the next write begins another.
        if segment.is_acknowledged:
            self._files.delete(segment)

    def _oldest_ns(self) -> int:
        position, self._position = self._position, (0, 0)
        try:
            span = self._next_span()
            if span is None:
                return 0
            frames, _ = read_range(*span, max_points=1, max_bytes=1)
        except OSError:
            return 0
        finally:
            self._position = position
        return frames[0][1].time_ns if frames else 0

    def _count_unreadable(self, path: Path) -> None:
        self._count_damaged(Extent(0, path.stat().st_size, 0, is_damaged=True))

    def _count_damaged(self, damage: Extent) -> None:
        self._cursor.damaged_points += damage.points
        self._cursor.damaged_bytes += damage.end - damage.start


def frame_of(write: RelayedWrite) -> Frame:
    """Return how a write is stored."""
    return Frame(msgspec.msgpack.encode(write), points=1, time_ns=write.received_at_ns)


def _unread_bytes(segment: Segment) -> int:
    return segment.size_bytes - sum(end - start for start, end in segment.acknowledged)


def _first_gap(segment: Segment, offset: int) -> tuple[int, int]:
    """Return the first range from an offset on that is not delivered; it may be empty."""
    for start, end in segment.acknowledged:
        if offset < start:
            return offset, start
        offset = max(offset, end)
    return offset, segment.size_bytes
