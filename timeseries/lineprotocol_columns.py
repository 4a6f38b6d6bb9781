"""The fast path of line protocol: lines of one shape are read together, column by column.

It takes lines of the common form and leaves every other one to the exact grammar. What it takes
means the same there, which it proves for all lines of a shape at once:

- A line's *skeleton* is its fields without what numbers are made of: `used=93i,free=.5` gives
  `used=i,free=`. It holds every comma and equals sign, so lines of one skeleton have as many
  fields, and what follows an equals sign in it tells the type.
- Taking away the letters in place of the numbers leaves `=93,=.5`. A digit inside a name would
  stand between a comma and an equals sign, where a list of numbers can't have it.
- A *head* is a line's measurement and tags. Heads are cut at commas and equals signs; each begins
  with a newline, so that the pieces line up in columns only where every head has as many.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from timeseries.batch import Block
from timeseries.lineprotocol_grammar import BOOLEANS
from timeseries.lineprotocol_lines import Lines, as_meant
from timeseries.lineprotocol_values import (
    MAX_CHARACTERS,
    NUMERIC,
    Shape,
    are_names,
    cut_values,
    decode_values,
    shape_of,
)

_TAG_VALUE = re.compile(r"=[^,\n]*")
_EXPONENT = re.compile(rb"=[eE]\+?")
_BOOLEAN = re.compile(rb"=(?:%b)(?=,|$)" % "|".join(BOOLEANS).encode())
_TRIED_TOGETHER = 64


class _Series(NamedTuple):
    """What heads say, as in `Block`."""

    measurement: str
    tags: tuple[str, ...]
    tag_sets: Sequence[tuple[str, ...]]
    tag_set_of: Sequence[int]


_Read = tuple[Block | None, Sequence[int]]


def read_columns(lines: Lines) -> tuple[list[Block], Sequence[int]]:
    """Return blocks of the lines' points, and the positions of lines left to the exact grammar."""
    blocks: list[Block] = []
    left: list[int] = []
    for skeleton, group, has_exponents in _by_skeleton(lines):
        # Shapes are remembered, so none may be long.
        shape = shape_of(skeleton) if len(skeleton) <= MAX_CHARACTERS else None
        if shape is None:
            left.extend(group.positions)
            continue
        for block, rest in _read_group(shape, group, has_exponents=has_exponents):
            blocks.extend([block] if block else [])
            left.extend(rest)
    return blocks, left


def _by_skeleton(lines: Lines) -> Iterator[tuple[bytes, Lines, bool]]:
    """Yield each skeleton with its lines, and whether numbers with an exponent are among them."""
    if not lines.fields:
        return
    text = "\n".join(lines.fields).encode().translate(None, NUMERIC) + b"\n"
    first = text[: text.index(b"\n") + 1]
    are_alike = text == first * len(lines.fields)
    skeletons = [first[:-1]] if are_alike else text[:-1].split(b"\n")
    alike = {one: _BOOLEAN.sub(b"=t", one) for one in set(skeletons)}
    plain = {one: _EXPONENT.sub(b"=", same) for one, same in alike.items()}
    scientific = {plain[one] for one, same in alike.items() if plain[one] != same}
    if len(plain) == 1:
        yield plain[skeletons[0]], lines, bool(scientific)
        return
    groups: dict[bytes, list[int]] = {}
    for row, skeleton in enumerate(skeletons):
        groups.setdefault(plain[skeleton], []).append(row)
    for without, rows in groups.items():
        yield without, lines.some(rows), without in scientific


def _read_group(shape: Shape, lines: Lines, *, has_exponents: bool) -> Iterator[_Read]:
    """Yield a block, or blocks of parts of the lines and the positions of those in none."""
    block = _block(shape, lines, has_exponents=has_exponents)
    if block is not None:
        yield block, ()
        return
    groups = _by_tags(lines)
    if len(groups) > 1:
        for group in groups:
            yield from _read_group(shape, group, has_exponents=has_exponents)
        return
    whole, left = _without_bad(shape, lines, has_exponents=has_exponents)
    yield None, left
    if whole is not None:
        yield _block(shape, whole, has_exponents=has_exponents), ()


def _by_tags(lines: Lines) -> list[Lines]:
    """Return the lines by their measurement and tags' names."""
    groups: dict[str, list[int]] = {}
    for row, shape in enumerate(_TAG_VALUE.sub("=", "".join(lines.heads)).split("\n")[1:]):
        groups.setdefault(shape, []).append(row)
    return [lines.some(rows) for rows in groups.values()]


def _without_bad(
    shape: Shape, lines: Lines, *, has_exponents: bool
) -> tuple[Lines | None, Sequence[int]]:
    """Return the lines whose neighbours are good too, if they are, and the others' positions."""
    good: list[int] = []
    left: list[int] = []
    for start in range(0, len(lines.heads), _TRIED_TOGETHER):
        rows = range(start, min(start + _TRIED_TOGETHER, len(lines.heads)))
        few = lines.some(rows)
        if _block(shape, few, has_exponents=has_exponents):
            good.extend(rows)
        else:
            left.extend(few.positions)
    if not good or not left:
        return None, lines.positions
    return lines.some(good), left


def _block(shape: Shape, lines: Lines, *, has_exponents: bool) -> Block | None:
    series = _read_heads(lines.heads, has_stand_ins=lines.has_stand_ins)
    if series is None:
        return None
    names, values = shape.names, None
    if shape.is_bare and not has_exponents:
        values = decode_values(shape.kinds, lines.fields)
    if values is None:
        names = tuple([pair.partition("=")[0] for pair in lines.fields[0].split(",")])
        values = cut_values(names, shape.kinds, lines.fields)
    if values is None:
        return None
    return Block(*series, names, shape.kinds, values, lines.times_ns, lines.positions)


def _read_heads(heads: Sequence[str], *, has_stand_ins: bool) -> _Series | None:
    measurement, *pairs = heads[0].split(",")
    names = tuple([pair.partition("=")[0] for pair in pairs])
    if measurement == "\n" or not are_names(names) or max(map(len, heads)) > MAX_CHARACTERS:
        return None
    distinct = heads if len(heads) == 1 else list(dict.fromkeys(heads))
    count, width = len(distinct), 1 + 2 * len(names)
    text = "".join(distinct).replace("=", "=,").replace("\n", ",\n") + ","
    pieces = text[1:-1].split(",")
    if len(pieces) != width * count or ",," in text or text.count("=") != len(names) * count:
        return None
    if pieces[::width].count(measurement) != count:
        return None
    for at, name in enumerate(names):
        if pieces[1 + 2 * at :: width].count(name + "=") != count:
            return None
    columns: list[Sequence[str]] = [pieces[2 + 2 * at :: width] for at in range(len(names))]
    if has_stand_ins:
        columns = [as_meant(column) for column in columns]
        measurement, *meant = as_meant([measurement.removeprefix("\n"), *names])
        measurement, names = f"\n{measurement}", tuple(meant)
    tag_sets = list(zip(*columns, strict=True)) if columns else [()]
    if count == len(heads):
        return _Series(measurement[1:], names, tag_sets, range(count))
    index = dict(zip(distinct, range(count), strict=True))
    return _Series(measurement[1:], names, tag_sets, [index[head] for head in heads])
