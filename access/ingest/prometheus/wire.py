"""The wire format of protocol buffers, as far as remote_write needs it.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from struct import Struct

from access.errors import BadRequestError

# Senders split at some MiB. Reading a message of nothing but empty fields takes 0.2 s a MiB.
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
DOUBLE = Struct("<d")
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_CONTINUES = 0x80
_MAX_VARINT_BYTES = 10
_SIGN, _MODULUS = 1 << 63, 1 << 64

Value = int | bytes
"""A varint, or the bytes of any other type."""


class WireError(BadRequestError):
    """The body is no message of this type."""

    default_code = "bad_protobuf"


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    # Most numbers have one byte or two.
    if at + 1 < len(body) and body[at + 1] < _CONTINUES <= body[at]:
        return body[at] & ~_CONTINUES | body[at + 1] << 7, at + 2
    number = shift = 0
    for position in range(at, min(at + _MAX_VARINT_BYTES, len(body))):
        byte = body[position]
        number |= (byte & ~_CONTINUES) << shift
        if byte < _CONTINUES:
            return number % _MODULUS, position + 1
        shift += 7
    raise WireError(f"The protobuf message has an invalid number at byte {at}.")


def varint(number: int) -> bytes:
    """Return the bytes of a number that is not negative."""
    octets = bytearray()
    while number >= _CONTINUES:
        octets.append(number & (_CONTINUES - 1) | _CONTINUES)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def signed(number: int) -> int:
    """Return an `int64` of the number that it is sent as."""
    return number - _MODULUS if number >= _SIGN else number


def read_fields(body: bytes, at: int, stop: int) -> Iterator[tuple[int, int, Value]]:
    """Yield number, wire type and value of each field between two positions."""
    while at < stop:
        start = at
        key, at = body[at], at + 1
        if key >= _CONTINUES:
            key, at = read_varint(body, start)
        kind = key & 7
        value: Value
        if kind == VARINT:
            value, at = read_varint(body, at)
        else:
            if kind == BYTES:
                size = body[at] if at < stop else _CONTINUES
                size, at = (size, at + 1) if size < _CONTINUES else read_varint(body, at)
            elif kind in {FIXED64, FIXED32}:
                size = 8 if kind == FIXED64 else 4
            else:
                raise WireError(f"The protobuf message has an unknown field type at byte {start}.")
            value, at = body[at : at + size], at + size
        if at > stop:
            raise WireError(f"The protobuf message is truncated in the field at byte {start}.")
        yield key >> 3, kind, value


def skip_field(body: bytes, at: int) -> int:
    """Return the position behind a field that isn't read."""
    key, behind = read_varint(body, at)
    kind = key & 7
    if kind == VARINT:
        return read_varint(body, behind)[1]
    if kind == BYTES:
        size, behind = read_varint(body, behind)
    elif kind in {FIXED64, FIXED32}:
        size = 8 if kind == FIXED64 else 4
    else:
        raise WireError(f"The protobuf message has an unknown field type at byte {at}.")
    if behind + size > len(body):
        raise WireError("The protobuf message is truncated.")
    return behind + size


def leading_messages(body: bytes, key: int) -> tuple[list[bytes], int]:
    """Return the values of the fields with a key that a message begins with, and where they end.

    A field that is truncated is none of them.
    """
    messages: list[bytes] = []
    at, stop = 0, len(body)
    add = messages.append
    # Calling `read_varint` for each takes longer than all else.
    while at + 2 < stop and body[at] == key:
        size, start = body[at + 1], at + 2
        if size >= _CONTINUES:
            size, start = size - _CONTINUES + (body[at + 2] << 7), at + 3
            if body[at + 2] >= _CONTINUES:
                size, start = read_varint(body, at + 1)
        end = start + size
        if end > stop:
            break
        add(body[start:end])
        at = end
    return messages, at


def read_packed(packed: bytes) -> list[int]:
    """Return a packed list of numbers."""
    if packed.isascii():
        return list(packed)
    numbers, at = [], 0
    while at < len(packed):
        number, at = read_varint(packed, at)
        numbers.append(number)
    return numbers


def double_of(value: Value) -> float:
    """Return a `double` of its bytes."""
    if isinstance(value, int) or len(value) != DOUBLE.size:
        raise WireError("The protobuf message has a value that is not a double.")
    number: float = DOUBLE.unpack(value)[0]
    return number


def text_of(value: Value) -> str:
    """Return a string of its bytes."""
    if isinstance(value, int):
        raise WireError("The protobuf message has a number where a string should be.")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise WireError("The protobuf message has a string that is not UTF-8.") from error
