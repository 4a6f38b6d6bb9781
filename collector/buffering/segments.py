"""Segment files of the buffer: append, read, and set damaged ranges aside.

Ranges of acknowledged bytes are half open, sorted, and never touch one another. Files are accessed
through functions of `os` only, so that a test can kill the process at each call.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collector.buffering.frames import Extent, Frame, decode_frame, scan
from core.atomic_files import sync_folder

log = logging.getLogger(__name__)

SUFFIX = ".seg"
READ_BYTES = 1024 * 1024
MAX_SET_ASIDE = 8
UNREADABLE = frozenset({errno.EIO, errno.ENOENT})

Range = tuple[int, int]


@dataclass(slots=True, eq=False)
class Segment:
    """The state of a segment.

    Attributes:
        path: its file.
        number: its number, in the order of age.
        size_bytes: the end of its last frame.
        newest_ns: the time of its newest sample.
        acknowledged: ranges that need not be sent any more.
        is_sealed: whether nothing may be appended.
    """

    path: Path
    number: int
    size_bytes: int = 0
    newest_ns: int = 0
    acknowledged: list[Range] = field(default_factory=list)
    is_sealed: bool = False

    @property
    def is_acknowledged(self) -> bool:
        """Return whether every byte is acknowledged."""
        return not self.size_bytes or self.acknowledged == [(0, self.size_bytes)]

    def acknowledge(self, start: int, end: int) -> None:
        """Record that a range need not be sent any more."""
        self.acknowledged = add_range(self.acknowledged, start, end)


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment; names sort by age."""
    return folder / f"{number:012d}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """Return the existing segments, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def open_segment(path: Path, acknowledged: list[Range]) -> tuple[Segment, list[Extent]]:
    """Read a segment; set damage aside, and truncate it at the end of the file.

    Returns:
        The segment; the frames to send, and the damage that was set aside now.

    Raises:
        OSError: it can't be read.
    """
    content = path.read_bytes()
    segment = Segment(path, int(path.stem), len(content), acknowledged=acknowledged)
    extents: list[Extent] = []
    for extent in scan(content):
        segment.newest_ns = max(segment.newest_ns, extent.time_ns)
        if any(start <= extent.start and extent.end <= end for start, end in segment.acknowledged):
            continue
        if extent.is_damaged:
            extents += [extent] if set_aside(segment, extent) else []
            segment.acknowledge(extent.start, extent.end)
            if extent.end == len(content):
                _truncate(segment, extent.start)
        else:
            extents.append(extent)
    if any(last > segment.size_bytes for _, last in segment.acknowledged):
        segment.acknowledged = clip_ranges(segment.acknowledged, segment.size_bytes)
        segment.is_sealed = True  # a new frame there would count as acknowledged
    return segment, extents


def sealed_segment(path: Path, acknowledged: list[Range]) -> Segment:
    """Return a segment that only its reader will read, and that does not grow.

    Raises:
        OSError: the file is missing.
    """
    size = path.stat().st_size
    ranges = clip_ranges(acknowledged, size)
    return Segment(path, int(path.stem), size, acknowledged=ranges, is_sealed=True)


def read_range(
    segment: Segment, start: int, end: int, *, max_points: int, max_bytes: int
) -> tuple[list[tuple[Extent, Frame]], Extent | None]:
    """Return frames from `start` on, at least one; or the damage at `start`.

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
    damage = next(scan(content), Extent(0, end - start, 0, is_damaged=True))
    stop = end if damage.end == len(content) else start + damage.end
    return [], Extent(start, stop, damage.points, is_damaged=True)


def set_aside(segment: Segment, damage: Extent) -> bool:
    """Copy damaged bytes to a separate file; return False if that was done before."""
    aside = segment.path.with_suffix(f".damaged-{damage.start}")
    if aside.exists():
        return False
    log.warning(
        "%s: %d damaged bytes at offset %d, copied to %s",
        *(segment.path.name, damage.end - damage.start, damage.start, aside.name),
    )
    try:
        content = _read(segment.path, damage.start, damage.end)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        copies = sorted(aside.parent.glob("*.damaged-*"), key=lambda path: path.stat().st_mtime_ns)
        for path in copies[:-MAX_SET_ASIDE]:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - see above
    except OSError as error:
        log.warning("can't write %s: %s", aside, error)
    return True


def remove(path: Path) -> None:
    """Delete a file; log a warning if that fails."""
    try:
        os.unlink(path)  # noqa: PTH108 - see above
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("can't delete %s: %s", path, error)


class SegmentWriter:
    """Appends whole frames to one segment, whose file stays open.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._descriptor = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not segment.size_bytes:
            try:
                sync_folder(segment.path.parent)
            except OSError:
                self.close()
                raise

    def append(self, contents: Sequence[bytes]) -> None:
        """Write encoded frames; on return they survive a power failure.

        Raises:
            OSError: they can't be written; the segment is unchanged, or sealed.
        """
        unwritten = memoryview(b"".join(contents))
        size = len(unwritten)
        try:
            while unwritten:  # a full disk accepts a part first
                unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            os.fsync(self._descriptor)
        except OSError:
            # The content after the last frame is undefined now.
            try:
                os.ftruncate(self._descriptor, self.segment.size_bytes)
            except OSError:
                self.segment.is_sealed = True
            raise
        self.segment.size_bytes += size

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def add_range(ranges: list[Range], start: int, end: int) -> list[Range]:
    """Return the ranges with `start` to `end` added."""
    if start >= end:
        return ranges
    if ranges and ranges[-1][0] <= start <= ranges[-1][1]:  # the usual case
        return [*ranges[:-1], (ranges[-1][0], max(end, ranges[-1][1]))]
    separate = [span for span in ranges if span[1] < start or span[0] > end]
    touching = [span for span in ranges if not (span[1] < start or span[0] > end)]
    first = min([start, *(span[0] for span in touching)])
    last = max([end, *(span[1] for span in touching)])
    return sorted([*separate, (first, last)])


def clip_ranges(ranges: list[Range], size: int) -> list[Range]:
    """Return the parts of the ranges below `size`."""
    return [(first, min(last, size)) for first, last in ranges if first < size]


def _frames_in(
    content: bytes, start: int, *, max_points: int, max_bytes: int
) -> list[tuple[Extent, Frame]]:
    frames: list[tuple[Extent, Frame]] = []
    offset = points = size = 0
    while (decoded := decode_frame(content, offset)) is not None:
        frame, after = decoded
        points, size = points + frame.points, size + len(frame.payload)
        if frames and (points > max_points or size > max_bytes):
            break
        extent = Extent(start + offset, start + after, frame.points, frame.time_ns)
        frames.append((extent, frame))
        offset = after
    return frames


def _read(path: Path, start: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)


def _truncate(segment: Segment, size: int) -> None:
    try:
        os.truncate(segment.path, size)
        segment.size_bytes = size
        segment.acknowledged = clip_ranges(segment.acknowledged, size)
    except OSError:
        segment.is_sealed = True
