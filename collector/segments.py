"""One segment file of the buffer: appended to, read from, and repaired when it was cut short."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from collector.frames import Frame, encode_frame, read_frame, scan_frames

log = logging.getLogger(__name__)

SUFFIX = ".seg"


@dataclass(slots=True)
class Segment:
    """What is known of a segment: its size, and the points that are not acknowledged yet."""

    path: Path
    number: int
    size_bytes: int = 0
    unread_points: int = 0
    newest_ns: int = 0


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment; names sort by age."""
    return folder / f"{number:012d}{SUFFIX}"


def open_segment(path: Path, *, read_offset: int) -> Segment:
    """Return what a segment holds, after setting a damaged tail aside.

    Args:
        path: the file, named by its number.
        read_offset: up to where its frames are acknowledged.
    """
    segment = Segment(path, int(path.stem))
    for info in scan_frames(path):
        segment.size_bytes = info.end_offset
        segment.newest_ns = max(segment.newest_ns, info.time_ns)
        if info.end_offset > read_offset:
            segment.unread_points += info.points
    if path.stat().st_size > segment.size_bytes:
        _set_tail_aside(segment)
    return segment


def read_frames(
    segment: Segment, *, offset: int, max_points: int, max_bytes: int
) -> tuple[list[Frame], int]:
    """Return frames from `offset`, at least one where there is one, and the offset after them."""
    frames: list[Frame] = []
    points = size = 0
    with segment.path.open("rb") as file:
        file.seek(offset)
        while offset < segment.size_bytes:
            frame = read_frame(file)
            if frame is None:
                break
            points, size = points + frame.points, size + len(frame.payload)
            if frames and (points > max_points or size > max_bytes):
                break
            frames.append(frame)
            offset = file.tell()
    return frames, offset


class SegmentWriter:
    """Appends whole frames to one segment; a write that fails leaves none of its frame behind."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._descriptor = os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def append(self, frame: Frame) -> None:
        """Write a frame.

        Raises:
            OSError: it could not be written whole; the segment is as it was before.
        """
        content = memoryview(encode_frame(frame))
        try:
            while content:  # a disk that fills up takes a part first, then refuses
                content = content[os.write(self._descriptor, content) :]
        except OSError:
            os.ftruncate(self._descriptor, self.segment.size_bytes)
            raise
        self.segment.size_bytes += frame.size_bytes
        self.segment.unread_points += frame.points
        self.segment.newest_ns = max(self.segment.newest_ns, frame.time_ns)

    def sync(self) -> None:
        """Make what was appended outlive a power cut."""
        os.fsync(self._descriptor)


def _set_tail_aside(segment: Segment) -> None:
    """Move what follows the last good frame into a file of its own."""
    aside = segment.path.with_suffix(f".damaged-{segment.size_bytes}")
    with segment.path.open("rb") as file:
        file.seek(segment.size_bytes)
        tail = file.read()
    log.warning("%s: %d damaged bytes set aside in %s", segment.path.name, len(tail), aside.name)
    aside.write_bytes(tail)
    os.truncate(segment.path, segment.size_bytes)
