"""Influx line protocol: what agents, Telegraf and every Influx client push.

`parse` keeps the good lines and names each bad one. Lines of the common form are read column by
column (`lineprotocol_columns`), every other one by the exact grammar (`lineprotocol_grammar`); both
give the same points. `encode` and `encode_batch` are in `lineprotocol_encode`.
"""

import re
from dataclasses import dataclass

from core.errors import InvalidInputError
from timeseries.batch import Batch
from timeseries.lineprotocol_columns import read_columns
from timeseries.lineprotocol_encode import encode, encode_batch
from timeseries.lineprotocol_grammar import LineFaultError, parse_line
from timeseries.lineprotocol_lines import cut_lines
from timeseries.points import Point

__all__ = [
    "NS_PER_UNIT", "LineError", "ParseResult", "encode", "encode_batch", "ns_per_unit", "parse",
]  # fmt: skip

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
_SURROGATE = re.compile("[\ud800-\udfff]")


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
    """The good points and the bad lines.

    Attributes:
        batch: the good points; the position of each is its line's number less one.
        errors: the bad lines in their order.
    """

    batch: Batch
    errors: list[LineError]

    @property
    def points(self) -> list[Point]:
        """The good points one by one, in the order of their lines."""
        return self.batch.points()


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
    lines, others = cut_lines(text, multiplier=multiplier, default_time_ns=default_time_ns)
    blocks, left = read_columns(lines)
    if left:
        physical = text.split("\n")
        others = sorted([*others, *((position + 1, physical[position]) for position in left)])
    placed: list[tuple[int, Point]] = []
    errors: list[LineError] = []
    for number, line in others:
        try:
            _check_utf8(line)
            point = parse_line(line, multiplier=multiplier, default_time_ns=default_time_ns)
        except LineFaultError as fault:
            errors.append(LineError(number, _shown(str(fault)), _shown(line.removesuffix("\r"))))
        else:
            placed.extend([(number - 1, point)] if point else [])
    if placed:
        blocks += Batch.of_placed(placed).blocks
    if len(blocks) > 1:
        blocks.sort(key=lambda block: block.positions[0])
    return ParseResult(Batch(tuple(blocks)), errors)


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


def _check_utf8(line: str) -> None:
    if _SURROGATE.search(line):
        raise LineFaultError("it is not valid UTF-8")


def _shown(line: str) -> str:
    cut = line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "..."
    return _SURROGATE.sub("\ufffd", cut)
