r"""The exact grammar of one line of Influx line protocol.

    measurement[,tag=value ...] field=value[,field=value ...] [timestamp]

A *logical line* is the text of one point: usually one physical line, or several if a quoted string
has newlines. In names and tags a backslash escapes only the comma, space or equals sign after it,
and is a plain character elsewhere; in strings it escapes `"` and itself. *Blanks* are spaces, tabs
and NULs. docs/decisions/0006-line-protocol.md lists the differences from InfluxDB.
"""

import math
import re
from collections.abc import Iterable, Iterator

from timeseries.points import FieldValue, Point

MIN_INT64 = -(2**63)
MAX_INT64 = 2**63 - 1
MAX_UINT64 = 2**64 - 1
# InfluxDB reserves the int64 at both ends, and DuckDB the largest.
MIN_TIME_NS = MIN_INT64 + 2
MAX_TIME_NS = MAX_INT64 - 1
MAX_KEY_BYTES = 65_535

BOOLEANS: dict[str, bool] = dict.fromkeys(("t", "T", "true", "True", "TRUE"), True) | dict.fromkeys(
    ("f", "F", "false", "False", "FALSE"), False
)

# Possessive quantifiers (`++`) do not backtrack, so no line makes a match quadratic.
_MEASUREMENT = re.compile(r"(?:[^, \\\n]++|\\[, ]?)++")
_KEY = re.compile(r"(?:[^,= \\\n]++|\\[,= ]?)++")
_STRING = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_BARE_VALUE = re.compile(r"[^, ]*")
_FLOAT = re.compile(r"-?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_INTEGER = re.compile(r"-?[0-9]+i")
_UNSIGNED = re.compile(r"[0-9]+u")
_TIMESTAMP = re.compile(r"(-?[0-9]+) *")
_NOT_A_NUMBER = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)

_MAX_DIGITS = 100
_BLANKS = " \t\0"
_HEAD = re.compile(r"[ \t\0]*+(?:[^ \\\n]++|\\ ?)*+")
_STRING_START = re.compile(r'(?<!\\)="')
_ESCAPED = re.compile(r"\\([,= ])")
_ESCAPED_IN_STRING = re.compile(r'\\(["\\])')
_ENDS_VALUE = frozenset(", ")


class InvalidLineError(Exception):
    """A line does not match the grammar; the message has the reason."""


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the 1-based number of its first physical line."""
    number, start, size = 1, 0, len(text)
    while start < size:
        newline = text.find("\n", start)
        end = size if newline < 0 else newline
        line = text[start:end]
        if '"' in line and not line.lstrip(_BLANKS).startswith("#"):
            end = _end_of_quoted_line(text, start)
            line = text[start:end]
            yield number, line
            number += line.count("\n")
        else:
            yield number, line
        number += 1
        start = end + 1


def parse_line(line: str, *, multiplier: int, default_time_ns: int) -> Point | None:
    """Parse one logical line; None for a blank line or a comment.

    Args:
        line: the line without its final newline.
        multiplier: nanoseconds in one unit of the timestamp.
        default_time_ns: the time of a line without one.

    Raises:
        InvalidLineError: the line is bad.
    """
    line = line.removesuffix("\r").lstrip(_BLANKS)
    if not line or line.startswith("#"):
        return None
    measurement, position = _parse_measurement(line)
    tags, position = _parse_tags(line, position)
    head = line[:position]
    fields, position = _parse_fields(line, _skip_blanks(line, position))
    if len(line) > MAX_KEY_BYTES // 4:
        _check_key(head, fields)
    position = _skip_blanks(line, position)
    time_ns = default_time_ns
    if position < len(line):
        time_ns = _parse_time(line[position:], multiplier)
    return Point(measurement, tags, fields, time_ns)


def parse_bare_value(text: str) -> FieldValue:
    """Parse an unquoted field value: float, `1i`, `1u` or a boolean.

    Raises:
        InvalidLineError: it is none of them, or out of range.
    """
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise InvalidLineError(f"{text} is out of the range of a 64 bit float")
        return number
    if _INTEGER.fullmatch(text):
        return _to_int(text[:-1], 1, MIN_INT64, MAX_INT64)
    if _UNSIGNED.fullmatch(text):
        return _to_int(text[:-1], 1, 0, MAX_UINT64)
    if text in BOOLEANS:
        return BOOLEANS[text]
    if not text:
        raise InvalidLineError("it has no value")
    if _NOT_A_NUMBER.fullmatch(text):
        raise InvalidLineError(f"{text} can't be stored; leave the field out instead")
    raise InvalidLineError(
        f"{text} is not a float, integer (1i), unsigned (1u), boolean or quoted string"
    )


def _end_of_quoted_line(text: str, start: int) -> int:
    """Return the end of the line at `start`, which includes newlines in closed strings."""
    head = _HEAD.match(text, start)
    position = head.end() if head else start
    while True:
        newline = text.find("\n", position)
        end = len(text) if newline < 0 else newline
        opening = _STRING_START.search(text, position, end)
        string = _STRING.match(text, opening.end() - 1) if opening else None
        if string is None:
            return end
        position = string.end()


def _parse_measurement(line: str) -> tuple[str, int]:
    match = _MEASUREMENT.match(line)
    if match is None:
        raise InvalidLineError("the measurement is missing")
    return _ESCAPED.sub(r"\1", match[0]), match.end()


def _parse_tags(line: str, position: int) -> tuple[dict[str, str], int]:
    tags: dict[str, str] = {}
    while line.startswith(",", position):
        name, position = _parse_key(line, position + 1, kind="tag")
        value = _KEY.match(line, position)
        if value is None:
            raise InvalidLineError(f"tag {name!r} has no value")
        if line.startswith("=", value.end()):
            raise InvalidLineError(f"the value of tag {name!r} has an equals sign; write \\=")
        if name in tags:
            raise InvalidLineError(f"tag {name!r} is given twice")
        tags[name] = _ESCAPED.sub(r"\1", value[0])
        position = value.end()
    return tags, position


def _parse_fields(line: str, position: int) -> tuple[dict[str, FieldValue], int]:
    if position >= len(line):
        raise InvalidLineError("there are no fields")
    fields: dict[str, FieldValue] = {}
    while True:
        name, position = _parse_key(line, position, kind="field")
        fields[name], position = _parse_field_value(line, position, name)
        if not line.startswith(",", position):
            return fields, position
        position += 1


def _parse_key(line: str, position: int, *, kind: str) -> tuple[str, int]:
    """Parse a key and the equals sign after it."""
    match = _KEY.match(line, position)
    if match is None:
        raise InvalidLineError(f"a {kind} has no name (character {position + 1})")
    name = _ESCAPED.sub(r"\1", match[0])
    if not line.startswith("=", match.end()):
        raise InvalidLineError(f"{kind} {name!r} has no value: an equals sign is missing")
    return name, match.end() + 1


def _parse_field_value(line: str, position: int, name: str) -> tuple[FieldValue, int]:
    if line.startswith('"', position):
        string = _STRING.match(line, position)
        if string is None:
            raise InvalidLineError(f"field {name!r}: the string is not closed")
        if line[string.end() : string.end() + 1] not in _ENDS_VALUE | {""}:
            raise InvalidLineError(f"field {name!r}: unexpected text after the closing quote")
        return _ESCAPED_IN_STRING.sub(r"\1", string[1]), string.end()
    match = _BARE_VALUE.match(line, position)
    text = match[0] if match else ""
    try:
        return parse_bare_value(text), position + len(text)
    except InvalidLineError as error:
        raise InvalidLineError(f"field {name!r}: {error}") from None


def _parse_time(text: str, multiplier: int) -> int:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise InvalidLineError(f"the timestamp {text!r} is not an integer")
    return _to_int(match[1], multiplier, MIN_TIME_NS, MAX_TIME_NS)


def _check_key(head: str, fields: Iterable[str]) -> None:
    longest = max(len(name.encode(errors="replace")) for name in fields)
    if len(head.encode(errors="replace")) + longest > MAX_KEY_BYTES:
        raise InvalidLineError(f"series and field take more than {MAX_KEY_BYTES} bytes")


def _skip_blanks(line: str, position: int) -> int:
    while position < len(line) and line[position] in _BLANKS:
        position += 1
    return position


def _to_int(digits: str, multiplier: int, low: int, high: int) -> int:
    # Python refuses to parse thousands of digits; 64 bits need far fewer.
    number = int(digits) * multiplier if len(digits) <= _MAX_DIGITS else high + 1
    if not low <= number <= high:
        raise InvalidLineError(f"{digits[:_MAX_DIGITS]} is out of the range of 64 bits")
    return number
