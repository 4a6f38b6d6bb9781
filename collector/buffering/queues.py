"""The two queues of the buffer: live frames, and the backlog of old ones.

Neither is thread-safe: the buffer locks them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collector.buffering.frames import Extent, Frame, decode_frame
from collector.buffering.segments import Segment

CACHE_BYTES = 512 * 1024


@dataclass(slots=True, eq=False)
class QueuedFrame:
    """One frame in the live queue.

    Attributes:
        points: number of points.
        time_ns: the time of the newest sample.
        segment: where it is on disk; None while it is only in memory.
        start: its offset in the segment.
        end: the offset after it.
        frame: the frame itself while it is cached.
        content: its encoded bytes while it is only in memory.
    """

    points: int
    time_ns: int
    segment: Segment | None = None
    start: int = 0
    end: int = 0
    frame: Frame | None = None
    content: bytes = b""

    @classmethod
    def on_disk(cls, segment: Segment, extent: Extent) -> "QueuedFrame":
        """Return the entry for a frame in a segment."""
        return cls(extent.points, extent.time_ns, segment, extent.start, extent.end)

    @property
    def extent(self) -> Extent:
        """The position of the frame in its segment."""
        return Extent(self.start, self.end, self.points, self.time_ns)

    def decode(self) -> Frame | None:
        """Return the frame of an entry that is only in memory."""
        decoded = decode_frame(self.content)
        return None if decoded is None else decoded[0]


class LiveQueue:
    """Recent frames in the order of their arrival: those on disk, then those only in memory."""

    def __init__(self) -> None:
        self._entries: deque[QueuedFrame] = deque()
        self._cached: deque[QueuedFrame] = deque()
        self._cached_bytes = 0
        self.unwritten: deque[QueuedFrame] = deque()
        self.memory_bytes = 0
        self.points = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def oldest_first(self) -> Iterator[QueuedFrame]:
        """Iterate over a copy of the entries."""
        return iter(list(self._entries))

    def add(self, frame: Frame, content: bytes) -> None:
        """Add a frame that is only in memory."""
        entry = QueuedFrame(frame.points, frame.time_ns, frame=frame, content=content)
        self._entries.append(entry)
        self.unwritten.append(entry)
        self.memory_bytes += len(content)
        self.points += entry.points
        self._cached.append(entry)
        self._cached_bytes += len(frame.payload)
        while self._cached_bytes > CACHE_BYTES:
            self._uncache(self._cached[0])

    def add_from_disk(self, segment: Segment, extent: Extent) -> None:
        """Add a frame that is on disk."""
        self._entries.append(QueuedFrame.on_disk(segment, extent))
        self.points += extent.points

    def next_to_write(self, max_bytes: int) -> list[QueuedFrame]:
        """Return the entries to write next, at least one."""
        entries: list[QueuedFrame] = []
        for entry in self.unwritten:
            max_bytes -= len(entry.content)
            if entries and max_bytes < 0:
                break
            entries.append(entry)
        return entries

    def mark_written(self, entries: Sequence[QueuedFrame], segment: Segment, start: int) -> None:
        """Record where entries were written."""
        for entry in entries:
            self.unwritten.popleft()
            self.memory_bytes -= len(entry.content)
            entry.segment, entry.start = segment, start
            start = entry.end = start + len(entry.content)
            entry.content = b""
            segment.newest_ns = max(segment.newest_ns, entry.time_ns)

    def remove(self, entry: QueuedFrame) -> bool:
        """Remove an entry; return False if it was removed before."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()
        else:
            remaining = [queued for queued in self._entries if queued is not entry]
            if len(remaining) == len(self._entries):
                return False
            self._entries = deque(remaining)
        self._removed(entry)
        return True

    def pop_older(self, time_ns: int) -> Iterator[tuple[Segment, Extent]]:
        """Remove and yield the oldest entries on disk, up to the first that is recent."""
        while self._entries:
            entry = self._entries[0]
            if entry.segment is None or entry.time_ns >= time_ns:
                return
            self._entries.popleft()
            self._removed(entry)
            yield entry.segment, entry.extent

    def drop_segment(self, segment: Segment) -> int:
        """Remove all entries of a segment; return their points."""
        dropped = [entry for entry in self._entries if entry.segment is segment]
        self._entries = deque(entry for entry in self._entries if entry.segment is not segment)
        for entry in dropped:
            self._removed(entry)
        return sum(entry.points for entry in dropped)

    def drop_unwritten(self) -> int:
        """Remove the oldest entry that is only in memory; return its points."""
        entry = self.unwritten[0]
        self.remove(entry)
        return entry.points

    def _removed(self, entry: QueuedFrame) -> None:
        self.points -= entry.points
        self._uncache(entry)
        if entry.segment is None:
            self.unwritten.remove(entry)
            self.memory_bytes -= len(entry.content)

    def _uncache(self, entry: QueuedFrame) -> None:
        if entry.frame is None:
            return
        self._cached_bytes -= len(entry.frame.payload)
        entry.frame = None
        while self._cached and self._cached[0].frame is None:
            self._cached.popleft()


@dataclass(slots=True)
class BacklogRange:
    """A range of a segment: consecutive frames, and the number of their points."""

    segment: Segment
    start: int
    end: int
    points: int


class BacklogQueue:
    """Ranges of segments that were not sent in time, oldest first."""

    def __init__(self) -> None:
        self._ranges: deque[BacklogRange] = deque()
        self.points = 0

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def oldest(self) -> BacklogRange:
        """The range to read next."""
        return self._ranges[0]

    def add(self, segment: Segment, extent: Extent) -> None:
        """Append a frame."""
        self.points += extent.points
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last.segment is segment and last.end == extent.start:
            last.end = extent.end
            last.points += extent.points
        else:
            self._ranges.append(BacklogRange(segment, extent.start, extent.end, extent.points))

    def remove_first(self, segment: Segment, extent: Extent) -> int | None:
        """Remove the first frame.

        Returns:
            The points lost to damage, which are known only at the end of a range; None if `extent`
            is not the first frame any more.
        """
        first = self._ranges[0] if self._ranges else None
        if first is None or first.segment is not segment or first.start != extent.start:
            return None
        first.start = extent.end
        removed = min(first.points, extent.points)
        first.points -= removed
        self.points -= removed
        if first.start < first.end:
            return 0
        self._ranges.popleft()
        self.points -= first.points
        return first.points

    def drop_segment(self, segment: Segment) -> int:
        """Remove all ranges of a segment; return their points."""
        dropped = sum(queued.points for queued in self._ranges if queued.segment is segment)
        self._ranges = deque(queued for queued in self._ranges if queued.segment is not segment)
        self.points -= dropped
        return dropped
