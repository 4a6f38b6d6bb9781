"""Frames: batches of line protocol as the buffer keeps them on disk, each with its checksum.

A frame is a header (magic, stored length, plain length, points, newest sample's time, CRC-32 of all
that and what is stored) and the payload, compressed where that makes it shorter. A *segment* is a
file of frames. Segments of earlier releases hold frames with the magic `VDF1`, which have one
length and are not compressed; they are read as well.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

MAGIC = b"VDF2"
PLAIN_MAGIC = b"VDF1"
LARGEST_PAYLOAD_BYTES = 64 * 1024 * 1024
COMPRESSION_LEVEL = 1
SHORTEST_LINE_BYTES = len("m v=1")
_MAGIC_STEM = b"VDF"
_HEADER = struct.Struct("<4sIIIQI")
_SUMMED = struct.Struct("<IIIQ")
_PLAIN_HEADER = struct.Struct("<4sIIQI")
_PLAIN_SUMMED = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of whole lines, without a newline at the end.

    Attributes:
        payload: the lines.
        points: how many lines there are.
        time_ns: the time of the newest.
    """

    payload: bytes
    points: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of a segment: one good frame, or damage in front of the next good one.

    Attributes:
        start: offset of its first byte.
        end: offset behind its last byte.
        points: how many points are in it; of damage as far as a header still says so.
        time_ns: the newest sample's time; 0 for damage.
        is_damaged: whether it holds no readable frame.
    """

    start: int
    end: int
    points: int
    time_ns: int = 0
    is_damaged: bool = False


@dataclass(frozen=True, slots=True)
class _Header:
    size: int
    stored: int
    plain: int
    points: int
    time_ns: int
    checksum: int
    summed: bytes


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    plain = len(frame.payload)
    stored = zlib.compress(frame.payload, COMPRESSION_LEVEL)
    if len(stored) >= plain:
        stored = frame.payload
    summed = _SUMMED.pack(len(stored), plain, frame.points, frame.time_ns)
    checksum = crc32(stored, crc32(summed))
    return _HEADER.pack(MAGIC, len(stored), plain, frame.points, frame.time_ns, checksum) + stored


def decode_frame(content: bytes | memoryview, offset: int = 0) -> tuple[Frame, int] | None:
    """Return the frame at `offset` and where it ends; None where it is cut short or damaged."""
    header = _header(content, offset)
    if header is None or not _is_sound(content, offset, header):
        return None
    start = offset + header.size
    stored = bytes(content[start : start + header.stored])
    payload = stored
    if header.stored != header.plain:
        try:
            payload = zlib.decompress(stored)
        except zlib.error:
            return None
        if len(payload) != header.plain:
            return None
    return Frame(payload, header.points, header.time_ns), start + header.stored


def scan(content: bytes, start: int = 0, end: int | None = None) -> Iterator[Found]:
    """Yield every good frame between two offsets, and the damage between them.

    A damaged frame costs only itself: the next one is found by its magic and its checksum.
    """
    stop = len(content) if end is None else end
    view, offset = memoryview(content)[:stop], start
    while offset < stop:
        header = _header(view, offset)
        if header is not None and _is_sound(view, offset, header):
            after = offset + header.size + header.stored
            yield Found(offset, after, header.points, header.time_ns)
        else:
            after = _next_sound(content, view, offset + 1)
            yield Found(offset, after, _points_lost(header, after - offset), is_damaged=True)
        offset = after


def _header(content: bytes | memoryview, offset: int) -> _Header | None:
    magic = bytes(content[offset : offset + len(MAGIC)])
    if magic == MAGIC and len(content) - offset >= _HEADER.size:
        _, stored, plain, points, time_ns, checksum = _HEADER.unpack_from(content, offset)
        summed = _SUMMED.pack(stored, plain, points, time_ns)
        size = _HEADER.size
    elif magic == PLAIN_MAGIC and len(content) - offset >= _PLAIN_HEADER.size:
        _, stored, points, time_ns, checksum = _PLAIN_HEADER.unpack_from(content, offset)
        plain, summed = stored, _PLAIN_SUMMED.pack(stored, points, time_ns)
        size = _PLAIN_HEADER.size
    else:
        return None
    if max(stored, plain) > LARGEST_PAYLOAD_BYTES:
        return None
    return _Header(size, stored, plain, points, time_ns, checksum, summed)


def _points_lost(header: _Header | None, size: int) -> int:
    """Return what the header of a damaged frame says, if it can be true."""
    if header is None or header.size + header.stored != size:
        return 0
    return header.points if header.points * SHORTEST_LINE_BYTES <= header.plain else 0


def _is_sound(content: bytes | memoryview, offset: int, header: _Header) -> bool:
    start = offset + header.size
    stored = content[start : start + header.stored]
    return len(stored) == header.stored and crc32(stored, crc32(header.summed)) == header.checksum


def _next_sound(content: bytes, view: memoryview, offset: int) -> int:
    """Return where the next good frame begins, or the end."""
    while (found := content.find(_MAGIC_STEM, offset, len(view))) >= 0:
        header = _header(view, found)
        if header is not None and _is_sound(view, found, header):
            return found
        offset = found + 1
    return len(view)
