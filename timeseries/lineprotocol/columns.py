"""The fast path of line protocol: lines of one shape are parsed together, by column.

It parses lines of the common form and leaves all others to the exact grammar. These checks of all
lines of a shape at once prove that both give the same result:

- The *skeleton* of a line is its fields without the characters of numbers: `used=93i,free=.5` gives
  `used=i,free=`. It has every comma and equals sign, so lines of one skeleton have the same number
  of fields, and what follows an equals sign gives the type.
- Removing the letters instead of the numbers gives `=93,=.5`. A digit inside a name would be
  between a comma and an equals sign, where a list of numbers can't have it.
- The *head* of a line is its measurement and tags. Heads are joined by newlines and split at commas
  and equals signs: the pieces only align in columns if every head has the same number.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite
from operator import itemgetter
from typing import NamedTuple

import msgspec

from timeseries.lineprotocol.grammar import BOOLEANS, MAX_INT64, MAX_KEY_BYTES, MIN_INT64
from timeseries.points import Block, FieldValue

_TAG_VALUE = re.compile(r"=(?:[^,\n\\]|\\[^\n]?)*+")
_EXPONENT = re.compile(rb"=[eE]\+?")
_BOOLEAN = re.compile(rb"=(?:%b)(?=,|$)" % "|".join(BOOLEANS).encode())
# The escapes of characters at which heads are split have placeholders.
_PLACEHOLDERS = (("\\,", "\x02"), ("\\=", "\x03"))
_ESCAPES = (("\\ ", " "), ("\x02", ","), ("\x03", "="))
_GROUP_LINES = 64
NUMERIC = b"0123456789.-"
_NOT_IN_FLOATS = bytes(set(range(256)) - set(NUMERIC + b"\n,="))
_NOT_IN_MIXED = bytes(set(_NOT_IN_FLOATS) - set(b"i"))
_TO_JSON = bytes.maketrans(b"=,\ni", b",   ")
_CODES = {float: "d", int: "q"}
_KINDS: dict[str, type] = {"": float, "i": int, "t": bool}
# A character has up to four bytes; half of a key may be the name of its field.
MAX_CHARACTERS = MAX_KEY_BYTES // 8
_MAX_CACHED_SKELETONS = 1024
_FLOATS = msgspec.json.Decoder(list[float])
_NUMBERS = msgspec.json.Decoder(list[float | int])
Columns = tuple[Sequence[FieldValue], ...]


class Lines(NamedTuple):
    """Lines split at their last two spaces, in columns.

    Attributes:
        heads: measurement and tags; whatever is before the fields.
        fields: without spaces and backslashes.
        times_ns: the timestamps.
        positions: the line numbers from 0.
    """

    heads: Sequence[str]
    fields: Sequence[str]
    times_ns: Sequence[int]
    positions: Sequence[int]

    def select(self, rows: Sequence[int]) -> "Lines":
        """Return some of the lines, at least one."""
        if len(rows) == 1:
            (row,) = rows
            return Lines(
                self.heads[row : row + 1],
                self.fields[row : row + 1],
                self.times_ns[row : row + 1],
                self.positions[row : row + 1],
            )
        pick = itemgetter(*rows)
        return Lines(pick(self.heads), pick(self.fields), pick(self.times_ns), pick(self.positions))


class Shape(NamedTuple):
    """The names (without digits) and types of a skeleton.

    It `is_bare` if these are valid names and all values are numbers.
    """

    names: tuple[str, ...]
    kinds: tuple[type, ...]
    is_bare: bool


class _Series(NamedTuple):
    """The parsed heads, as in `Block`."""

    measurement: str
    tags: tuple[str, ...]
    tag_sets: Sequence[tuple[str, ...]]
    tag_set_of: Sequence[int]


_Read = tuple[Block | None, Sequence[int]]


def read_columns(lines: Lines) -> tuple[list[Block], Sequence[int]]:
    """Return blocks of points, and the positions of lines for the exact grammar."""
    blocks: list[Block] = []
    left: list[int] = []
    for skeleton, group, has_exponents in _by_skeleton(lines):
        # Shapes are cached, so their size is limited.
        shape = parse_skeleton(skeleton) if len(skeleton) <= MAX_CHARACTERS else None
        if shape is None:
            left.extend(group.positions)
            continue
        for block, rest in _read_group(shape, group, has_exponents=has_exponents):
            blocks.extend([block] if block else [])
            left.extend(rest)
    return blocks, left


def _by_skeleton(lines: Lines) -> Iterator[tuple[bytes, Lines, bool]]:
    """Yield each skeleton with its lines, and whether some numbers have an exponent."""
    if not lines.fields:
        return
    text = "\n".join(lines.fields).encode().translate(None, NUMERIC) + b"\n"
    first = text[: text.index(b"\n") + 1]
    are_alike = text == first * len(lines.fields)
    skeletons = [first[:-1]] if are_alike else text[:-1].split(b"\n")
    alike = {skeleton: _BOOLEAN.sub(b"=t", skeleton) for skeleton in set(skeletons)}
    plain = {skeleton: _EXPONENT.sub(b"=", same) for skeleton, same in alike.items()}
    scientific = {plain[skeleton] for skeleton, same in alike.items() if plain[skeleton] != same}
    if len(plain) == 1:
        yield plain[skeletons[0]], lines, bool(scientific)
        return
    groups: dict[bytes, list[int]] = {without: [] for without in plain.values()}
    row_lists = {skeleton: groups[without] for skeleton, without in plain.items()}
    for row, rows in enumerate(map(row_lists.__getitem__, skeletons)):
        rows.append(row)
    for without, rows in groups.items():
        yield without, lines.select(rows), without in scientific


def _read_group(shape: Shape, lines: Lines, *, has_exponents: bool) -> Iterator[_Read]:
    """Yield a block, or blocks of parts of the lines with the positions of the rest."""
    block = _block(shape, lines, has_exponents=has_exponents)
    if block is not None:
        yield block, ()
        return
    groups = _by_tags(lines)
    if len(groups) > 1:
        for group in groups:
            yield from _read_group(shape, group, has_exponents=has_exponents)
        return
    valid, left = _without_invalid(shape, lines, has_exponents=has_exponents)
    yield None, left
    if valid is not None:
        yield _block(shape, valid, has_exponents=has_exponents), ()


def _by_tags(lines: Lines) -> list[Lines]:
    """Return the lines by measurement and tag names."""
    groups: dict[str, list[int]] = {}
    for row, shape in enumerate(_TAG_VALUE.sub("=", "\n".join(lines.heads)).split("\n")):
        groups.setdefault(shape, []).append(row)
    return [lines.select(rows) for rows in groups.values()]


def _without_invalid(
    shape: Shape, lines: Lines, *, has_exponents: bool
) -> tuple[Lines | None, Sequence[int]]:
    """Return the lines in groups without an invalid line, and the positions of the others."""
    good: list[int] = []
    left: list[int] = []
    for start in range(0, len(lines.heads), _GROUP_LINES):
        rows = range(start, min(start + _GROUP_LINES, len(lines.heads)))
        group = lines.select(rows)
        if _block(shape, group, has_exponents=has_exponents):
            good.extend(rows)
        else:
            left.extend(group.positions)
    if not good or not left:
        return None, lines.positions
    return lines.select(good), left


def _block(shape: Shape, lines: Lines, *, has_exponents: bool) -> Block | None:
    series = _read_heads(lines.heads)
    if series is None:
        return None
    names, values = shape.names, None
    if shape.is_bare and not has_exponents:
        values = decode_values(shape.kinds, lines.fields)
    if values is None:
        names = tuple([pair.partition("=")[0] for pair in lines.fields[0].split(",")])
        values = split_values(names, shape.kinds, lines.fields)
    if values is None:
        return None
    return Block(*series, names, shape.kinds, values, lines.times_ns, lines.positions)


def _read_heads(heads: Sequence[str]) -> _Series | None:
    distinct = heads if len(heads) == 1 else list(dict.fromkeys(heads))
    count = len(distinct)
    text, has_escapes = ",\n" + ",\n".join(distinct) + ",", False
    if "\\" in text or " " in text:
        text, has_escapes = _with_placeholders(text), True
    measurement, *pairs = text[2 : text.find(",\n", 2)].removesuffix(",").split(",")
    names = tuple([pair.partition("=")[0] for pair in pairs])
    if not measurement or not are_valid_names(names) or max(map(len, heads)) > MAX_CHARACTERS:
        return None
    width = 1 + 2 * len(names)
    text = text.replace("=", "=,")
    pieces = text[1:-1].split(",")
    if len(pieces) != width * count or ",," in text or text.count("=") != len(names) * count:
        return None
    if pieces[::width].count("\n" + measurement) != count:
        return None
    for at, name in enumerate(names):
        if pieces[1 + 2 * at :: width].count(name + "=") != count:
            return None
    columns: list[Sequence[str]] = [pieces[2 + 2 * at :: width] for at in range(len(names))]
    if has_escapes:
        columns = [_restore_escapes(column) for column in columns]
        measurement, *meant = _restore_escapes([measurement, *names])
        names = tuple(meant)
    tag_sets = list(zip(*columns, strict=True)) if columns else [()]
    if count == len(heads):
        return _Series(measurement, names, tag_sets, range(count))
    index = dict(zip(distinct, range(count), strict=True))
    return _Series(measurement, names, tag_sets, list(map(index.__getitem__, heads)))


def _with_placeholders(text: str) -> str:
    """Return joined heads with placeholders for escapes; "" if a head is not of the common form."""
    is_common = (
        text.count(" ") == text.count("\\ ")
        and "\\,\n" not in text
        and not text.endswith("\\,")
        and not any(placeholder in text for _, placeholder in _PLACEHOLDERS)
    )
    if not is_common:
        return ""
    for escape, placeholder in _PLACEHOLDERS:
        text = text.replace(escape, placeholder)
    return text


@lru_cache(maxsize=_MAX_CACHED_SKELETONS)
def parse_skeleton(skeleton: bytes) -> Shape | None:
    """Return the shape of a skeleton; None if it has strings or invalid values."""
    pairs = [pair.split("=") for pair in skeleton.decode().split(",")]
    if any(len(pair) != len(("name", "type")) or pair[1] not in _KINDS for pair in pairs):
        return None
    names = tuple(name for name, _ in pairs)
    kinds = tuple(_KINDS[kind] for _, kind in pairs)
    return Shape(names, kinds, are_valid_names(names) and bool not in kinds)


def are_valid_names(names: Sequence[str]) -> bool:
    """Return whether these can be the names of one line: not empty, duplicate or too long."""
    fit = sum(map(len, names)) <= MAX_CHARACTERS
    return fit and "" not in names and len(set(names)) == len(names)


def decode_values(kinds: tuple[type, ...], fields: Sequence[str]) -> Columns | None:
    """Parse numbers without exponents by removing everything else and decoding the rest as JSON.

    The text between two values becomes a space: next to a digit of a name that is invalid JSON, and
    after a comma it means a missing value or one that starts with its `i`.
    """
    has_integers = int in kinds
    text = "\n".join(fields).encode()
    numbers = text.translate(_TO_JSON, _NOT_IN_MIXED if has_integers else _NOT_IN_FLOATS)
    if b", " in numbers:
        return None
    if b"-" in numbers:
        # JSON reads -0 as an integer, which has no sign; -0.0 keeps it.
        numbers = (numbers + b" ").replace(b"-0 ", b"-0.0 ")
    try:
        flat = (_NUMBERS if has_integers else _FLOATS).decode(b"[%b]" % numbers.lstrip(b" ,"))
        if len(flat) != len(kinds) * len(fields):
            return None
        # An array of integers refuses floats and what does not fit.
        return tuple([array(_CODES[kind], flat[at :: len(kinds)]) for at, kind in enumerate(kinds)])
    except (msgspec.DecodeError, OverflowError, TypeError):
        return None


def split_values(
    names: tuple[str, ...], kinds: tuple[type, ...], fields: Sequence[str]
) -> Columns | None:
    """Parse values from lines split at their commas and equals signs."""
    if not are_valid_names(names):
        return None
    pieces = ",".join(fields).replace("=", "=,").split(",")
    width = 2 * len(names)
    columns: list[Sequence[FieldValue]] = []
    for at, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if pieces[2 * at :: width].count(name + "=") != len(fields):
            return None
        column = _read_texts(kind, pieces[2 * at + 1 :: width])
        if column is None:
            return None
        columns.append(column)
    return tuple(columns)


def _read_texts(kind: type, texts: Sequence[str]) -> Sequence[FieldValue] | None:
    try:
        if kind is bool:
            return [BOOLEANS[text] for text in texts]
        if kind is int:
            integers = [int(text[:-1]) for text in texts]
            return integers if min(integers) >= MIN_INT64 and max(integers) <= MAX_INT64 else None
        floats = list(map(float, texts))
    except (KeyError, ValueError):
        return None
    return floats if isfinite(sum(floats)) else None


def _restore_escapes(texts: Sequence[str]) -> Sequence[str]:
    """Return texts without newlines with what their escapes mean."""
    joined = "\n".join(texts)
    present = [(escape, meant) for escape, meant in _ESCAPES if escape in joined]
    for escape, meant in present:
        joined = joined.replace(escape, meant)
    return joined.split("\n") if present else texts
