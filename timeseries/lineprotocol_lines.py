"""Bodies of line protocol cut into columns: heads, fields and times of the lines."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from timeseries.lineprotocol_grammar import MAX_TIME_NS, logical_lines

_ODD = re.compile('["\\\\\r\t\0#\ud800-\udfff]')
_ODD_ASCII = ('"', "\\", "\r", "\t", "\0", "#")
# Each escape with a character that stands in for it, so that lines can be cut at spaces.
_STAND_INS = (("\\ ", "\x01"), ("\\,", "\x02"), ("\\=", "\x03"))
_WITHOUT_TIME, _WITH_TIME = 2, 3
_TIME_DIGITS = len(str(MAX_TIME_NS))


class Lines(NamedTuple):
    """Lines cut at their two spaces, in columns.

    Attributes:
        heads: measurement and tags of each, behind a newline.
        fields: what stands between its spaces.
        times_ns: its time.
        positions: its line number less one.
        has_stand_ins: whether characters stand in the heads for what was escaped; see `as_meant`.
    """

    heads: Sequence[str]
    fields: Sequence[str]
    times_ns: Sequence[int]
    positions: Sequence[int]
    has_stand_ins: bool = False

    def some(self, rows: Iterable[int]) -> "Lines":
        """Return the lines of these rows."""
        chosen = list(rows)
        return Lines(
            [self.heads[row] for row in chosen],
            [self.fields[row] for row in chosen],
            [self.times_ns[row] for row in chosen],
            [self.positions[row] for row in chosen],
            self.has_stand_ins,
        )


def cut_lines(
    text: str, *, multiplier: int, default_time_ns: int
) -> tuple[Lines, Sequence[tuple[int, str]]]:
    """Return the lines of the common form, and the others with their line numbers.

    Args:
        text: bytes that are not UTF-8 are lone surrogates in it.
        multiplier: nanoseconds in one unit of the timestamps.
        default_time_ns: the time of lines that carry none.
    """
    if "\r" in text and '"' not in text and "\r\r" not in text:
        text = text.replace("\r\n", "\n")
    plain = _with_stand_ins(text) if "\\" in text else text
    if plain is not None and _is_common(plain):
        lines = _cut_uniform(plain, multiplier, default_time_ns)
        if lines is not None and plain is text:
            return lines, ()
        if lines is not None and not _holds_stand_in("".join(lines.fields)):
            return lines._replace(has_stand_ins=True), ()
    return _cut_one_by_one(text, multiplier, default_time_ns)


def as_meant(texts: Sequence[str]) -> Sequence[str]:
    """Return texts, none with a newline, with what was escaped in place of its stand-ins."""
    joined = "\n".join(texts)
    if not _holds_stand_in(joined):
        return texts
    for escape, stand_in in _STAND_INS:
        joined = joined.replace(stand_in, escape[1])
    return joined.split("\n")


def _holds_stand_in(text: str) -> bool:
    return any(stand_in in text for _, stand_in in _STAND_INS)


def _with_stand_ins(text: str) -> str | None:
    """Return the text with its escapes replaced; None where it holds such characters already."""
    if _holds_stand_in(text):
        return None
    for escape, stand_in in _STAND_INS:
        if "\\" in text:
            text = text.replace(escape, stand_in)
    return text


def _is_common(text: str) -> bool:
    return not any(character in text for character in _ODD_ASCII) and (
        text.isascii() or not _ODD.search(text)
    )


def _cut_uniform(text: str, multiplier: int, default_time_ns: int) -> Lines | None:
    """Cut lines that have all one space, or all two; None where any differs."""
    text = text.rstrip("\n")
    count = text.count("\n") + 1
    pieces = ("\n" + text.replace("\n", " \n")).split(" ")
    width = len(pieces) // count
    # A newline begins a piece, so heads that hold all of them are whole and stand where they must.
    heads = pieces[::width] if width else []
    if len(pieces) != width * count or "".join(heads).count("\n") != count:
        return None
    if width == _WITHOUT_TIME:
        return Lines(heads, pieces[1::2], [default_time_ns] * count, range(count))
    times_ns = _times(pieces[2::3], multiplier) if width == _WITH_TIME else None
    if times_ns is None:
        return None
    return Lines(heads, pieces[1::3], times_ns, range(count))


def _cut_one_by_one(
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
        if times_ns is None or _ODD.search(line):
            others.append((number, line))
        else:
            cut.append(("\n" + pieces[0], pieces[1], times_ns[0], number - 1))
    if cut:
        heads, fields, times, positions = zip(*cut, strict=True)
        lines = Lines(heads, fields, times, positions)
    return lines, others


def _times(texts: Sequence[str], multiplier: int) -> list[int] | None:
    count, first = len(texts), texts[0]
    if texts.count(first) == count:
        texts = (first,)
    joined = "".join(texts)
    if not (joined.isdecimal() and joined.isascii()) or len(max(texts, key=len)) > _TIME_DIGITS:
        return None
    try:
        times_ns = [int(text) * multiplier for text in texts]
    except ValueError:
        return None
    if max(times_ns) > MAX_TIME_NS:
        return None
    return times_ns if len(times_ns) == count else times_ns * count
