"""Parsing Influx line protocol, which agents, Telegraf and every Influx client send.

`parse` returns the points of valid lines and an error for each invalid one. Lines of the common
form are parsed by column (`lineprotocol_columns`), all others by the exact grammar
(`lineprotocol_grammar`); both give the same points.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import InvalidInputError
from timeseries.lineprotocol.columns import Lines, read_columns
from timeseries.lineprotocol.grammar import MAX_TIME_NS, InvalidLineError, logical_lines, parse_line
from timeseries.points import Batch, Point

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

_MAX_SHOWN_CHARACTERS = 300
_ODD = re.compile('["\r\t\0#\ud800-\udfff]')
_ODD_ASCII = ('"', "\r", "\t", "\0", "#")
_WITHOUT_TIME, _WITH_TIME = 2, 3
_TIME_DIGITS = len(str(MAX_TIME_NS))
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LineError:
    """An invalid line: the 1-based number of its first physical line, the reason, and its start."""

    line_number: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class ParseResult:
    """The valid points, whose positions are line numbers from 0, and the invalid lines in order."""

    batch: Batch
    errors: list[LineError]

    @property
    def points(self) -> list[Point]:
        """The valid points in order of their lines."""
        return self.batch.points()


def parse(data: bytes, *, precision: str = "ns", default_time_ns: int) -> ParseResult:
    """Parse a body of line protocol.

    Args:
        data: UTF-8 text, one point per line.
        precision: the unit of timestamps: ns, us, ms, s, or n, u, m, h as in the v1 API.
        default_time_ns: the time of lines without one, in nanoseconds; it is truncated to the unit.

    Raises:
        InvalidInputError: the precision is unknown.

    Source: the line protocol reference and `models/points.go` of InfluxDB.
    """
    multiplier = ns_per_unit(precision)
    default_time_ns -= default_time_ns % multiplier
    text = data.decode(errors="surrogateescape")
    lines, others = split_lines(text, multiplier=multiplier, default_time_ns=default_time_ns)
    blocks, left = read_columns(lines)
    if left:
        physical = text.split("\n")
        others = sorted([*others, *((position + 1, physical[position]) for position in left)])
    positioned: list[tuple[int, Point]] = []
    errors: list[LineError] = []
    for number, line in others:
        try:
            _check_utf8(line)
            point = parse_line(line, multiplier=multiplier, default_time_ns=default_time_ns)
        except InvalidLineError as error:
            errors.append(LineError(number, _shown(str(error)), _shown(line.removesuffix("\r"))))
        else:
            positioned.extend([(number - 1, point)] if point else [])
    if positioned:
        blocks += Batch.from_positioned(positioned).blocks
    if len(blocks) > 1:
        blocks.sort(key=lambda block: block.positions[0])
    return ParseResult(Batch(tuple(blocks)), errors)


def ns_per_unit(precision: str) -> int:
    """Return the nanoseconds in one unit of a precision.

    Raises:
        InvalidInputError: the precision is unknown.
    """
    try:
        return NS_PER_UNIT[precision]
    except KeyError:
        units = ", ".join(NS_PER_UNIT)
        raise InvalidInputError(
            f"Unknown precision {precision!r}. Use one of {units}.",
            errors={"precision": [f"must be one of {units}"]},
        ) from None


def _check_utf8(line: str) -> None:
    if _SURROGATE.search(line):
        raise InvalidLineError("it is not valid UTF-8")


def _shown(line: str) -> str:
    cut = line if len(line) <= _MAX_SHOWN_CHARACTERS else line[:_MAX_SHOWN_CHARACTERS] + "..."
    return _SURROGATE.sub("\ufffd", cut)


def split_lines(
    text: str, *, multiplier: int, default_time_ns: int
) -> tuple[Lines, Sequence[tuple[int, str]]]:
    """Return the lines of the common form, and the others with their line numbers.

    Bytes that are not UTF-8 are lone surrogates in `text`.
    """
    if "\r" in text and '"' not in text and "\r\r" not in text:
        text = text.replace("\r\n", "\n")
    lines = _split_uniform(text, multiplier, default_time_ns) if _is_common_form(text) else None
    if lines is not None:
        return lines, ()
    return _split_each(text, multiplier, default_time_ns)


def _is_common_form(text: str) -> bool:
    return not any(character in text for character in _ODD_ASCII) and (
        text.isascii() or not _ODD.search(text)
    )


def _split_uniform(text: str, multiplier: int, default_time_ns: int) -> Lines | None:
    """Split lines that all have a time, or all none; None if they don't.

    They are cut at their last spaces: those before are in the head, which is checked later.
    """
    lines = text.rstrip("\n").split("\n")
    has_times = lines[0].rpartition(" ")[2].isdecimal()
    width = _WITH_TIME if has_times else _WITHOUT_TIME
    pieces = [line.rsplit(" ", width - 1) for line in lines]
    if set(map(len, pieces)) != {width}:
        return None
    heads, fields, *times = zip(*pieces, strict=True)
    if "\\" in text and "\\" in "".join(fields):
        return None
    times_ns = _times(times[0], multiplier) if has_times else [default_time_ns] * len(lines)
    return None if times_ns is None else Lines(heads, fields, times_ns, range(len(lines)))


def _split_each(
    text: str, multiplier: int, default_time_ns: int
) -> tuple[Lines, list[tuple[int, str]]]:
    lines = Lines([], [], [], [])
    others: list[tuple[int, str]] = []
    cut: list[tuple[str, str, int, int]] = []
    for number, line in logical_lines(text):
        pieces = line.split(" ")
        times_ns = None
        if len(pieces) == _WITHOUT_TIME and pieces[1]:
            times_ns = [default_time_ns]
        elif len(pieces) == _WITH_TIME:
            times_ns = _times(pieces[2:], multiplier)
        if times_ns is None or "\\" in line or _ODD.search(line):
            others.append((number, line))
        else:
            cut.append((pieces[0], pieces[1], times_ns[0], number - 1))
    if cut:
        heads, fields, times, positions = zip(*cut, strict=True)
        lines = Lines(heads, fields, times, positions)
    return lines, others


def _times(texts: Sequence[str], multiplier: int) -> list[int] | None:
    # The lines of an appliance have the same time, and those of a post are of few appliances.
    distinct = dict.fromkeys(texts)
    joined = "".join(distinct)
    if not (joined.isdecimal() and joined.isascii()) or len(max(distinct, key=len)) > _TIME_DIGITS:
        return None
    if not all(distinct):
        return None
    times_ns = {text: int(text) * multiplier for text in distinct}
    if max(times_ns.values()) > MAX_TIME_NS:
        return None
    return [times_ns[text] for text in texts]
