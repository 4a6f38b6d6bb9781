"""One segment file of the buffer: appended to, read from, and what is damaged set aside.

Files are reached through the functions of `os` alone, so that a test can stop the process at each.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collector.buffering.frames import Found, Frame, decode_frame, scan
from collector.buffering.spans import Range, clipped, covers, merged

log = logging.getLogger(__name__)

SUFFIX = ".seg"
READ_BYTES = 1024 * 1024
MOST_SET_ASIDE = 8
GONE = frozenset({errno.EIO, errno.ENOENT})


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of a segment.

    Attributes:
        path: its file.
        number: its place in the order of age.
        size_bytes: up to where it holds frames.
        newest_ns: the time of its newest sample.
        acknowledged: ranges that need not be read any more.
        is_sealed: whether nothing is to be appended to it.
    """

    path: Path
    number: int
    size_bytes: int = 0
    newest_ns: int = 0
    acknowledged: list[Range] = field(default_factory=list)
    is_sealed: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether every byte is acknowledged."""
        return not self.size_bytes or self.acknowledged == [(0, self.size_bytes)]

    def acknowledge(self, start: int, end: int) -> None:
        """Note that a range need not be read any more."""
        self.acknowledged = merged(self.acknowledged, start, end)


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """A segment found at the start: its frames that wait, and the damage in it."""

    segment: Segment
    waiting: list[Found]
    damage: list[Found]


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment; names sort by age."""
    return folder / f"{number:012d}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """Return the segments that are there, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def open_segment(path: Path, acknowledged: list[Range]) -> OpenedSegment:
    """Return what a segment holds; what is damaged is set aside, and cut off where it is the end.

    Raises:
        OSError: it can't be read.
    """
    content = path.read_bytes()
    segment = Segment(path, int(path.stem), len(content), acknowledged=acknowledged)
    waiting: list[Found] = []
    damage: list[Found] = []
    for found in scan(content):
        if covers(segment.acknowledged, found.start, found.end):
            segment.newest_ns = max(segment.newest_ns, found.time_ns)
        elif found.is_damaged:
            damage += [found] if set_aside(segment, found) else []
            segment.acknowledge(found.start, found.end)
            if found.end == len(content):
                _cut(segment, found.start)
        else:
            segment.newest_ns = max(segment.newest_ns, found.time_ns)
            waiting.append(found)
    if any(last > segment.size_bytes for _, last in segment.acknowledged):
        segment.acknowledged = clipped(segment.acknowledged, segment.size_bytes)
        segment.is_sealed = True  # a new frame there would pass for an acknowledged one
    return OpenedSegment(segment, waiting, damage)


def read_span(
    segment: Segment, start: int, end: int, *, max_points: int, max_bytes: int
) -> tuple[list[tuple[Found, Frame]], Found | None]:
    """Return frames from `start` on, at least one; or the damage that is there instead.

    Raises:
        OSError: the file can't be read.
    """
    content = _read(segment.path, start, min(end, start + READ_BYTES))
    frames = _frames_in(content, start, max_points=max_points, max_bytes=max_bytes)
    if not frames and end - start > READ_BYTES:
        content = _read(segment.path, start, end)
        frames = _frames_in(content, start, max_points=max_points, max_bytes=max_bytes)
    if frames:
        return frames, None
    damage = next(scan(content), Found(0, end - start, 0, is_damaged=True))
    stop = end if damage.end == len(content) else start + damage.end
    return [], Found(start, stop, damage.points, is_damaged=True)


def set_aside(segment: Segment, damage: Found) -> bool:
    """Copy damaged bytes into a file of their own; False where that was done before."""
    aside = segment.path.with_suffix(f".damaged-{damage.start}")
    if aside.exists():
        return False
    log.warning(
        "%s: %d damaged bytes at %d set aside in %s",
        *(segment.path.name, damage.end - damage.start, damage.start, aside.name),
    )
    try:
        content = _read(segment.path, damage.start, damage.end)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        _thin_out(segment.path.parent)
    except OSError as error:
        log.warning("%s can't be kept: %s", aside, error)
    return True


def remove(path: Path) -> None:
    """Delete a file; one that can't be deleted is named and left."""
    try:
        os.unlink(path)  # noqa: PTH108 - see above
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s can't be removed: %s", path, error)


class SegmentWriter:
    """Appends whole frames to one segment and keeps its file open.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._descriptor = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not segment.size_bytes:
            try:
                _sync_folder(segment.path.parent)
            except OSError:
                self.close()
                raise

    def append(self, contents: Sequence[bytes]) -> None:
        """Write encoded frames; they outlive a power cut when this returns.

        Raises:
            OSError: they could not be written; the segment is as it was before, or sealed.
        """
        rest = memoryview(b"".join(contents))
        size = len(rest)
        try:
            while rest:  # a disk that fills up takes a part first, then refuses
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError:
            # What the file holds behind its last frame is unknown now.
            self._cut_off()
            raise
        self.segment.size_bytes += size

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _cut_off(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.segment.size_bytes)
        except OSError:
            self.segment.is_sealed = True


def _frames_in(
    content: bytes, start: int, *, max_points: int, max_bytes: int
) -> list[tuple[Found, Frame]]:
    frames: list[tuple[Found, Frame]] = []
    offset = points = size = 0
    while (decoded := decode_frame(content, offset)) is not None:
        frame, after = decoded
        points, size = points + frame.points, size + len(frame.payload)
        if frames and (points > max_points or size > max_bytes):
            break
        found = Found(start + offset, start + after, frame.points, frame.time_ns)
        frames.append((found, frame))
        offset = after
    return frames


def _read(path: Path, start: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)


def _cut(segment: Segment, size: int) -> None:
    try:
        os.truncate(segment.path, size)
        segment.size_bytes = size
        segment.acknowledged = clipped(segment.acknowledged, size)
    except OSError:
        segment.is_sealed = True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _thin_out(folder: Path) -> None:
    """Keep only the newest of what was set aside."""
    aside = sorted(folder.glob("*.damaged-*"), key=lambda path: path.stat().st_mtime_ns)
    for path in aside[:-MOST_SET_ASIDE]:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - see above
