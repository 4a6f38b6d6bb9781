"""The live frames: young ones that wait, with their lines in memory while there is room."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collector.buffering.frames import Found, Frame, decode_frame
from collector.buffering.segments import Segment

CACHE_BYTES = 512 * 1024


@dataclass(slots=True, eq=False)
class Entry:
    """One frame that waits.

    Attributes:
        points: how many points it holds.
        time_ns: the time of its newest sample.
        segment: where it lies on disk; None while it is in memory only.
        start: its offset in there.
        end: the offset behind it.
        frame: the frame itself while it is cached.
        content: its bytes for the disk while it is in memory only.
    """

    points: int
    time_ns: int
    segment: Segment | None = None
    start: int = 0
    end: int = 0
    frame: Frame | None = None
    content: bytes = b""

    @classmethod
    def of(cls, segment: Segment, found: Found) -> "Entry":
        """Return the entry of a frame that was found in a segment."""
        return cls(found.points, found.time_ns, segment, found.start, found.end)

    @property
    def found(self) -> Found:
        """Where it lies in its segment."""
        return Found(self.start, self.end, self.points, self.time_ns)

    def unwritten_frame(self) -> Frame | None:
        """Return the frame of an entry that is in memory only."""
        decoded = decode_frame(self.content)
        return None if decoded is None else decoded[0]


class LiveFrames:
    """Entries in the order of their arrival: those on disk, then those in memory only.

    Not safe to share by threads: the buffer guards it.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._cached: deque[Entry] = deque()
        self._cached_bytes = 0
        self.unwritten: deque[Entry] = deque()
        self.memory_bytes = 0
        self.points = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def oldest_first(self) -> Iterator[Entry]:
        """Yield the entries of this moment."""
        return iter(list(self._entries))

    def add(self, frame: Frame, content: bytes) -> None:
        """Take a frame that is in memory only."""
        entry = Entry(frame.points, frame.time_ns, frame=frame, content=content)
        self._entries.append(entry)
        self.unwritten.append(entry)
        self.memory_bytes += len(content)
        self.points += entry.points
        self._cached.append(entry)
        self._cached_bytes += len(frame.payload)
        while self._cached_bytes > CACHE_BYTES:
            self._uncache(self._cached[0])

    def add_found(self, segment: Segment, found: Found) -> None:
        """Take a frame that lies on disk."""
        self._entries.append(Entry.of(segment, found))
        self.points += found.points

    def next_to_write(self, room_bytes: int) -> list[Entry]:
        """Return the entries to write next: what there is room for, at least one."""
        entries: list[Entry] = []
        for entry in self.unwritten:
            room_bytes -= len(entry.content)
            if entries and room_bytes < 0:
                break
            entries.append(entry)
        return entries

    def written(self, entries: Sequence[Entry], segment: Segment, start: int) -> None:
        """Note where entries that were in memory only lie now."""
        for entry in entries:
            self.unwritten.popleft()
            self.memory_bytes -= len(entry.content)
            entry.segment, entry.start = segment, start
            start = entry.end = start + len(entry.content)
            entry.content = b""
            segment.newest_ns = max(segment.newest_ns, entry.time_ns)

    def let_go(self, entry: Entry) -> bool:
        """Remove an entry; False when it is not there any more."""
        if self._entries and self._entries[0] is entry:
            self._entries.popleft()
        else:
            kept = [one for one in self._entries if one is not entry]
            if len(kept) == len(self._entries):
                return False
            self._entries = deque(kept)
        self._gone(entry)
        return True

    def take_older(self, time_ns: int) -> Iterator[tuple[Segment, Found]]:
        """Remove and yield the oldest entries on disk, up to the first that is young."""
        while self._entries:
            entry = self._entries[0]
            if entry.segment is None or entry.time_ns >= time_ns:
                return
            self._entries.popleft()
            self._gone(entry)
            yield entry.segment, entry.found

    def give_up(self, segment: Segment) -> int:
        """Remove all entries of a segment and return how many points that were."""
        lost = [entry for entry in self._entries if entry.segment is segment]
        self._entries = deque(entry for entry in self._entries if entry.segment is not segment)
        for entry in lost:
            self._gone(entry)
        return sum(entry.points for entry in lost)

    def drop_unwritten(self) -> int:
        """Remove the oldest entry that is in memory only and return its points."""
        entry = self.unwritten[0]
        self.let_go(entry)
        return entry.points

    def _gone(self, entry: Entry) -> None:
        self.points -= entry.points
        self._uncache(entry)
        if entry.segment is None:
            self.unwritten.remove(entry)
            self.memory_bytes -= len(entry.content)

    def _uncache(self, entry: Entry) -> None:
        if entry.frame is None:
            return
        self._cached_bytes -= len(entry.frame.payload)
        entry.frame = None
        while self._cached and self._cached[0].frame is None:
            self._cached.popleft()
