"""Frames: batches of line protocol as the buffer keeps them on disk, each with its checksum.

A frame is a header (magic, payload length, points, newest sample's time, CRC-32 of all that and the
payload) and the payload. A *segment* is a file of frames.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

MAGIC = b"VDF1"
_HEADER = struct.Struct("<4sIIQI")
_SUMMED = struct.Struct("<IIQ")
LARGEST_PAYLOAD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch of whole lines, without a newline at the end."""

    payload: bytes
    points: int
    time_ns: int

    @property
    def size_bytes(self) -> int:
        """Its size on disk."""
        return _HEADER.size + len(self.payload)


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """Where a frame ends, and what is in it."""

    end_offset: int
    points: int
    time_ns: int


def encode_frame(frame: Frame) -> bytes:
    """Return the bytes of a frame."""
    summed = _SUMMED.pack(len(frame.payload), frame.points, frame.time_ns)
    checksum = crc32(frame.payload, crc32(summed))
    header = _HEADER.pack(MAGIC, len(frame.payload), frame.points, frame.time_ns, checksum)
    return header + frame.payload


def read_frame(file: BinaryIO) -> Frame | None:
    """Return the frame at the file's position; None where it is cut short or damaged."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, length, points, time_ns, checksum = _HEADER.unpack(header)
    if magic != MAGIC or length > LARGEST_PAYLOAD_BYTES:
        return None
    payload = file.read(length)
    summed = _SUMMED.pack(length, points, time_ns)
    if len(payload) < length or crc32(payload, crc32(summed)) != checksum:
        return None
    return Frame(payload, points, time_ns)


def scan_frames(path: Path) -> Iterator[FrameInfo]:
    """Yield the frames of a segment up to the first that is damaged."""
    with path.open("rb") as file:
        while (frame := read_frame(file)) is not None:
            yield FrameInfo(file.tell(), frame.points, frame.time_ns)
