"""Influx line protocol: what agents, Telegraf and every Influx client push.

`parse` keeps the good lines and names each bad one. It takes the common shape (no quotes, escapes
or comments) by splitting each line flat, and hands every other line to the exact grammar; both
give the same points.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from core.errors import InvalidInputError
from timeseries.lineprotocol_grammar import (
    MAX_INT64,
    MAX_UINT64,
    MIN_INT64,
    LineFaultError,
    logical_lines,
    parse_line,
)
from timeseries.points import FieldValue, Point

NS_PER_UNIT = {
    "ns": 1,
    "n": 1,
    "us": 1_000,
    "u": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
}

_SHOWN_CHARACTERS = 300
_NUMERIC = "0123456789.-+eEi"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPECIAL_IN_MEASUREMENT = re.compile(r"[, ]")
_SPECIAL_IN_KEY = re.compile(r"[,= ]")
_SPECIAL_IN_STRING = re.compile(r'["\\]')
_REMEMBERED_NAMES = 4096
_PARTS_WITHOUT_TIME = 2
_PARTS_WITH_TIME = 3


@dataclass(frozen=True, slots=True)
class LineError:
    """A line that was refused.

    Attributes:
        line_number: 1-based number of its first physical line.
        reason: what is wrong with it.
        text: how the line begins.
    """

    line_number: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The good points in the order of their lines, and the bad lines."""

    points: list[Point]
    errors: list[LineError]


def parse(data: bytes, *, precision: str = "ns", default_time_ns: int) -> ParseResult:
    """Parse a body of line protocol.

    Args:
        data: UTF-8 text, one point a line.
        precision: the timestamps' unit: ns, us, ms, s, or v1's n, u, m, h.
        default_time_ns: the time of lines that carry none, in nanoseconds.

    Raises:
        InvalidInputError: the precision is unknown.

    Source: InfluxDB's line protocol reference and `models/points.go`.
    """
    multiplier = ns_per_unit(precision)
    text = data.decode(errors="surrogateescape")
    fast = _FlatParser(multiplier, default_time_ns)
    points: list[Point] = []
    errors: list[LineError] = []
    for number, line in logical_lines(text):
        point = fast.parse(line)
        if point is None:
            try:
                _check_utf8(line)
                point = parse_line(line, multiplier=multiplier, default_time_ns=default_time_ns)
            except LineFaultError as fault:
                errors.append(LineError(number, _shown(str(fault)), _shown(line)))
        if point is not None:
            points.append(point)
    return ParseResult(points, errors)


def encode(points: Iterable[Point]) -> bytes:
    """Return points as lines of line protocol with nanosecond timestamps.

    Raises:
        InvalidInputError: a point can't be written as a line: it has no field, an empty name or
            tag value, a name or tag value with a newline or a backslash at its end, a float that
            is NaN or infinite, or a number over 64 bits.
    """
    lines = []
    for point in points:
        try:
            lines.append(_encode_point(point).encode())
        except ValueError as fault:
            raise InvalidInputError(
                f"A point of {point.measurement!r} can't be written as line protocol: {fault}"
            ) from None
    return b"".join(lines)


def ns_per_unit(precision: str) -> int:
    """Return how many nanoseconds one unit of a precision has.

    Raises:
        InvalidInputError: the precision is unknown.
    """
    try:
        return NS_PER_UNIT[precision]
    except KeyError:
        known = ", ".join(NS_PER_UNIT)
        raise InvalidInputError(
            f"precision {precision!r} is unknown; use one of {known}.",
            errors={"precision": [f"must be one of {known}"]},
        ) from None


class _FlatParser:
    """Parses lines of the common shape; None means: ask the exact grammar.

    Behind each `=` a comma is put, then one split gives `name=`, value, `name=`, value ...; names
    keep their equals sign and are looked up in one go, which proves the line's structure. Series
    heads and field names repeat, so each is taken apart once per body.
    """

    def __init__(self, multiplier: int, default_time_ns: int) -> None:
        self._multiplier = multiplier
        self._default_time_ns = default_time_ns
        self._heads: dict[str, tuple[str, dict[str, str]] | None] = {}
        self._names: dict[tuple[str, ...], list[str] | None] = {}

    def parse(self, line: str) -> Point | None:
        parts = line.split(" ")
        if not _PARTS_WITHOUT_TIME <= len(parts) <= _PARTS_WITH_TIME or "\\" in line:
            return None
        head = self._heads.get(parts[0], ...)
        if head is ...:
            head = self._heads[parts[0]] = _flat_head(parts[0])
        time_ns = self._time(parts)
        if head is None or time_ns is None:
            return None
        flat = parts[1].replace("=", "=,").split(",")
        keys = tuple(flat[::2])
        names = self._names.get(keys, ...)
        if names is ...:
            names = self._names[keys] = _flat_names(keys)
        values = _flat_values(flat[1::2])
        if names is None or values is None or len(names) != len(values):
            return None
        return Point(head[0], head[1], dict(zip(names, values, strict=True)), time_ns)

    def _time(self, parts: list[str]) -> int | None:
        if len(parts) == _PARTS_WITHOUT_TIME:
            return self._default_time_ns
        text = parts[2]
        if not (text.isascii() and text.isdecimal()) or len(text) >= len(str(MAX_INT64)) + 1:
            return None
        time_ns = int(text) * self._multiplier
        return time_ns if time_ns <= MAX_INT64 else None


def _flat_head(head: str) -> tuple[str, dict[str, str]] | None:
    measurement, *pairs = head.split(",")
    tags: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value or "=" in value or name in tags:
            return None
        tags[name] = value
    if not measurement or measurement.startswith("#") or _has_odd_characters(head):
        return None
    return measurement, tags


def _flat_names(keys: tuple[str, ...]) -> list[str] | None:
    names = [key[:-1] for key in keys]
    whole = all(key.endswith("=") for key in keys) and all(names)
    return names if whole and not _has_odd_characters("".join(names)) else None


def _flat_values(texts: list[str]) -> list[float | int] | None:
    joined = "".join(texts)
    # All characters are numeric where stripping them leaves nothing: no nan, inf, 1_0 or string.
    if joined.strip(_NUMERIC):
        return None
    try:
        values: list[float | int]
        if "i" in joined:
            values = [int(text[:-1]) if text[-1:] == "i" else float(text) for text in texts]
        else:
            values = list(map(float, texts))
    except ValueError:
        return None
    in_range = values and max(values) <= MAX_INT64 and min(values) >= MIN_INT64
    return values if in_range else None


def _has_odd_characters(text: str) -> bool:
    return '"' in text or "\r" in text or _SURROGATE.search(text) is not None


def _check_utf8(line: str) -> None:
    if _SURROGATE.search(line):
        raise LineFaultError("it is not valid UTF-8")


def _shown(line: str) -> str:
    cut = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
    return _SURROGATE.sub("\ufffd", cut)


def _encode_point(point: Point) -> str:
    if not point.fields:
        raise ValueError("it has no fields")
    head = _measurement(point.measurement) + "".join(
        [_tag(name, value) for name, value in point.tags.items()]
    )
    fields = ",".join(
        [
            # The type that most values have is looked at first.
            f"{_key(name)}={value!r}"
            if type(value) is float and isfinite(value)
            else f"{_key(name)}={_encode_value(name, value)}"
            for name, value in point.fields.items()
        ]
    )
    return f"{head} {fields} {_in_int64(point.time_ns, 'the time')}\n"


# Series and fields repeat with every reading, so their escaped names are remembered.
@lru_cache(maxsize=_REMEMBERED_NAMES)
def _measurement(name: str) -> str:
    if name.startswith(("#", "\r")):
        raise ValueError("the measurement begins like a comment or a line end")
    return _escape(name, _SPECIAL_IN_MEASUREMENT, "the measurement")


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _tag(name: str, value: str) -> str:
    key = _escape(name, _SPECIAL_IN_KEY, "a tag's name")
    return f",{key}={_escape(value, _SPECIAL_IN_KEY, f'tag {name!r}')}"


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _key(name: str) -> str:
    return _escape(name, _SPECIAL_IN_KEY, "a field name")


def _escape(text: str, special: re.Pattern[str], what: str) -> str:
    if not text:
        raise ValueError(f"{what} is empty")
    if "\n" in text or text.endswith("\\"):
        raise ValueError(f"{what} {text!r} holds a newline or ends with a backslash")
    return special.sub(r"\\\g<0>", text)


def _encode_value(name: str, value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + _SPECIAL_IN_STRING.sub(r"\\\g<0>", value) + '"'
    if isinstance(value, int):
        if MAX_INT64 < value <= MAX_UINT64:
            return f"{value}u"
        return f"{_in_int64(value, f'field {name!r}')}i"
    if not isfinite(value):
        raise ValueError(f"field {name!r} is {value}; leave the field out instead")
    return repr(float(value))


def _in_int64(number: int, what: str) -> int:
    if not MIN_INT64 <= number <= MAX_INT64:
        raise ValueError(f"{what} {number} is out of the range of 64 bits")
    return number
