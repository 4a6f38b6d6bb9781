"""Scalars in TensorBoard's event files, read as they grow.

Source: `tensorflow/core/lib/io/record_writer.h` for the records, `event.proto` and `summary.proto`
for what is in them. A record has its length and the masked CRC-32C of both; only records as small
as scalars are decoded.
"""

import math
import os
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from collector.results.folders import Folder
from collector.results.metrics import MetricSource
from collector.results.scanning import Scan, opened
from timeseries.points import Point

MAX_EVENT_FILES = 100
# Of a file in one step; the next one continues.
READ_BYTES = 1024**2
# Of all files of an attempt: checksums in Python take a second for some megabytes.
STEP_BYTES = 4 * READ_BYTES
MAX_SCALAR_RECORD_BYTES = 64 * 1024
_HEAD, _FOOT = 12, 4
_DAMAGED = -1
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
_FORMATS = {_FLOAT: "<f", _DOUBLE: "<d", _INT32: "<i", _INT64: "<q"}
_DELIMITED, _SIZES = 2, {1: 8, 5: 4}
# The year 2100, in seconds: nanoseconds still fit into 64 bits.
_MAX_TIME = 4.1e9


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of data as records have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventFiles:
    """The event files of an attempt. For one thread; offsets are in the folder's state."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._source = MetricSource(folder.state.job_id, folder.attempt_id)

    def new_points(self, content: Scan) -> list[Point]:
        """Return the scalars that were written since the last call."""
        state = self._folder.state
        event_files = sorted(
            path for path in content.files if "tfevents" in path.rpartition("/")[2]
        )
        points: list[Point] = []
        offsets, left_bytes = dict(state.event_offsets), STEP_BYTES
        for path in event_files[:MAX_EVENT_FILES]:
            size, offset = content.files[path].size_bytes, offsets.get(path, 0)
            if offset in {_DAMAGED, size} or left_bytes <= 0:
                continue
            begin = min(offset, size)
            root, relative = self._folder.place(path)
            try:
                with opened(root, relative) as descriptor:
                    scalars, offsets[path] = read_scalars(descriptor, begin, size)
            except OSError:
                continue
            left_bytes -= max(0, offsets[path] - begin)
            run = str(PurePosixPath(relative).parent)
            prefix = "" if run == "." else f"{run}/"
            made = [
                self._source.point(
                    f"{prefix}{scalar.tag}", scalar.value, scalar.step, scalar.time_ns
                )
                for scalar in scalars
            ]
            points += [point for point in made if point is not None]
        state.event_offsets = offsets
        return points


class Scalar(NamedTuple):
    """A value of an event file."""

    tag: str
    value: float
    step: int
    time_ns: int


def read_scalars(descriptor: int, offset: int, size_bytes: int) -> tuple[list[Scalar], int]:
    """Return the scalars of complete records, and where to read on; -1 after damage.

    Args:
        descriptor: of the open file.
        offset: where a record begins.
        size_bytes: of the file; what is written meanwhile is for the next time.
    """
    scalars: list[Scalar] = []
    end = min(size_bytes, offset + READ_BYTES)
    while offset < end:
        head = os.pread(descriptor, _HEAD, offset)
        if len(head) < _HEAD:
            break
        length, crc = struct.unpack("<QI", head)
        if crc != masked_crc(head[:8]):
            return scalars, _DAMAGED
        next_offset = offset + _HEAD + length + _FOOT
        if next_offset > size_bytes:
            break
        if length <= MAX_SCALAR_RECORD_BYTES:
            record = os.pread(descriptor, length + _FOOT, offset + _HEAD)
            data, foot = record[:length], record[length:]
            if len(foot) < _FOOT or struct.unpack("<I", foot)[0] != masked_crc(data):
                return scalars, _DAMAGED
            try:
                scalars += _event(data)
            except (ValueError, IndexError, struct.error):
                return scalars, _DAMAGED
        offset = next_offset
    return scalars, offset


def _event(data: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an `Event`: wall_time = 1, step = 2, summary = 5."""
    wall_time, step, summary = 0.0, 0, b""
    for field, value in _fields(data):
        if field == 1:
            (wall_time,) = struct.unpack("<d", _bytes(value))
        elif field == 2:  # noqa: PLR2004 - numbers of fields
            step = _integer(value)
        elif field == 5:  # noqa: PLR2004
            summary = _bytes(value)
    if not math.isfinite(wall_time) or not 0 < wall_time < _MAX_TIME:
        return
    for field, value in _fields(summary):
        if field == 1:
            tag, number = _summary_value(_bytes(value))
            if tag and number is not None:
                yield Scalar(tag, number, step, int(wall_time * 1e9))


def _summary_value(data: bytes) -> tuple[str, float | None]:
    """Return tag = 1 and number of a `Summary.Value`: simple_value = 2, or tensor = 8."""
    tag, number = "", None
    for field, value in _fields(data):
        if field == 1:
            tag = _bytes(value).decode(errors="replace")
        elif field == 2:  # noqa: PLR2004
            (number,) = struct.unpack("<f", _bytes(value))
        elif field == 8:  # noqa: PLR2004
            number = _tensor(_bytes(value))
    return tag, number


def _tensor(data: bytes) -> float | None:
    """Return the only number of a `TensorProto`: dtype = 1, content = 4, or a list by its type."""
    kind, content = 0, b""
    for field, value in _fields(data):
        if field == 1:
            kind = _integer(value)
        elif field in {4, 5, 6}:  # content, float_val, double_val
            content = _bytes(value)
        elif field in {7, 10}:  # int_val, int64_val; a list of numbers is packed
            number, end = (value, 0) if isinstance(value, int) else _varint(value, 0)
            is_only = isinstance(value, int) or end == len(value)
            return float(_integer(number)) if is_only else None
    form = _FORMATS.get(kind)
    if form is None or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message of Protocol Buffers: varints, and bytes of all else."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield field, value
            continue
        if kind == _DELIMITED:
            size, at = _varint(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field is longer than its message")
        yield field, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
            return value, at
    raise ValueError("a number is too long")


def _integer(value: int | bytes) -> int:
    """Return a varint as the signed number of 64 bits that it is."""
    if not isinstance(value, int):
        raise ValueError("a number was expected")  # noqa: TRY004 - of the file, not of the code
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("bytes were expected")  # noqa: TRY004 - of the file, not of the code
    return value
