"""Frames: batches of line protocol in the buffer's segments, each with a checksum.

A frame is a header (magic, stored length, uncompressed length, points, time of the newest sample,
CRC-32 of these and the payload) and the payload, compressed if that makes it shorter. A *segment*
is a file of frames.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

MAGIC = b"VDF2"
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
COMPRESSION_LEVEL = 1
MIN_LINE_BYTES = len("m v=1")
_HEADER = struct.Struct("<4sIIIQI")
_CHECKED = struct.Struct("<IIIQ")


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of whole lines, without a newline at the end.

    Attributes:
        payload: the lines.
        points: their number.
        time_ns: the time of the newest.
    """

    payload: bytes
    points: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of a segment: one valid frame, or damage before the next valid one.

    Attributes:
        start: offset of its first byte.
        end: offset after its last byte.
        points: their number; of damage as far as a header has it.
        time_ns: the newest sample's time; 0 for damage.
        is_damaged: whether it contains no valid frame.
    """

    start: int
    end: int
    points: int
    time_ns: int = 0
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class _Header:
    stored_size: int
    size: int
    points: int
    time_ns: int
    checksum: int

    @property
    def checked(self) -> bytes:
        return _CHECKED.pack(self.stored_size, self.size, self.points, self.time_ns)


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    size = len(frame.payload)
    stored = zlib.compress(frame.payload, COMPRESSION_LEVEL)
    if len(stored) >= size:
        stored = frame.payload
    checked = _CHECKED.pack(len(stored), size, frame.points, frame.time_ns)
    checksum = crc32(stored, crc32(checked))
    return _HEADER.pack(MAGIC, len(stored), size, frame.points, frame.time_ns, checksum) + stored


def decode_frame(content: bytes | memoryview, offset: int = 0) -> tuple[Frame, int] | None:
    """Return the frame at `offset` and its end; None if it is truncated or damaged."""
    header = _header(content, offset)
    if header is None or not _is_valid(content, offset, header):
        return None
    start = offset + _HEADER.size
    stored = bytes(content[start : start + header.stored_size])
    payload = stored
    if header.stored_size != header.size:
        try:
            payload = zlib.decompress(stored)
        except zlib.error:
            return None
        if len(payload) != header.size:
            return None
    return Frame(payload, header.points, header.time_ns), start + header.stored_size


def scan(content: bytes, start: int = 0, end: int | None = None) -> Iterator[Extent]:
    """Yield the valid frames between two offsets, and the damage between them.

    Damage is limited to one frame: the next is found by its magic and checksum.
    """
    stop = len(content) if end is None else end
    view, offset = memoryview(content)[:stop], start
    while offset < stop:
        header = _header(view, offset)
        if header is not None and _is_valid(view, offset, header):
            after = offset + _HEADER.size + header.stored_size
            yield Extent(offset, after, header.points, header.time_ns)
        else:
            after = _next_valid(content, view, offset + 1)
            yield Extent(offset, after, _points_lost(header, after - offset), is_damaged=True)
        offset = after


def _header(content: bytes | memoryview, offset: int) -> _Header | None:
    if len(content) - offset < _HEADER.size:
        return None
    magic, *values = _HEADER.unpack_from(content, offset)
    header = _Header(*values)
    if magic != MAGIC or max(header.stored_size, header.size) > MAX_PAYLOAD_BYTES:
        return None
    return header


def _points_lost(header: _Header | None, size: int) -> int:
    """Return the points by the header of a damaged frame, if they are plausible."""
    if header is None or _HEADER.size + header.stored_size != size:
        return 0
    return header.points if header.points * MIN_LINE_BYTES <= header.size else 0


def _is_valid(content: bytes | memoryview, offset: int, header: _Header) -> bool:
    start = offset + _HEADER.size
    stored = content[start : start + header.stored_size]
    is_complete = len(stored) == header.stored_size
    return is_complete and crc32(stored, crc32(header.checked)) == header.checksum


def _next_valid(content: bytes, view: memoryview, offset: int) -> int:
    """Return where the next valid frame begins, or the end."""
    while (start := content.find(MAGIC, offset, len(view))) >= 0:
        header = _header(view, start)
        if header is not None and _is_valid(view, start, header):
            return start
        offset = start + 1
    return len(view)
