"""The values of many lines at once: the fields' part of line protocol's fast path."""

from collections.abc import Sequence
from functools import lru_cache
from math import isfinite
from typing import NamedTuple

import msgspec

from timeseries.lineprotocol_grammar import BOOLEANS, MAX_INT64, MAX_KEY_BYTES, MIN_INT64
from timeseries.points import FieldValue

NUMERIC = b"0123456789.-"
_NOT_IN_FLOATS = bytes(set(range(256)) - set(NUMERIC + b"\n,="))
_NOT_IN_MIXED = bytes(set(_NOT_IN_FLOATS) - set(b"i"))
_TO_JSON = bytes.maketrans(b"=,\ni", b",   ")
_KINDS: dict[str, type] = {"": float, "i": int, "t": bool}
# A character takes up to four bytes; half of a key may be its field's name.
MAX_CHARACTERS = MAX_KEY_BYTES // 8
_REMEMBERED_SKELETONS = 1024
_FLOATS = msgspec.json.Decoder(list[float])
_NUMBERS = msgspec.json.Decoder(list[float | int])

Columns = tuple[Sequence[FieldValue], ...]


class Shape(NamedTuple):
    """What a skeleton tells: names less their digits, and types.

    It `is_bare` where these are names still, and all values numbers.
    """

    names: tuple[str, ...]
    kinds: tuple[type, ...]
    is_bare: bool


@lru_cache(maxsize=_REMEMBERED_SKELETONS)
def shape_of(skeleton: bytes) -> Shape | None:
    """Return what a skeleton tells; None where it has strings or what is no value."""
    pairs = [pair.split("=") for pair in skeleton.decode().split(",")]
    if any(len(pair) != len(("name", "type")) or pair[1] not in _KINDS for pair in pairs):
        return None
    names = tuple(name for name, _ in pairs)
    kinds = tuple(_KINDS[kind] for _, kind in pairs)
    return Shape(names, kinds, are_names(names) and bool not in kinds)


def are_names(names: Sequence[str]) -> bool:
    """Return whether these can be names of one line: none empty, twice or too long."""
    fit = sum(map(len, names)) <= MAX_CHARACTERS
    return fit and "" not in names and len(set(names)) == len(names)


def decode_values(kinds: tuple[type, ...], fields: Sequence[str]) -> Columns | None:
    """Read numbers by taking away everything else; none may have an exponent.

    What stands between two values is left as a space: with the digit of a name beside it that is
    no JSON, and behind a comma it is a value that is missing or begins with its `i`.
    """
    has_integers = int in kinds
    text = "\n".join(fields).encode()
    numbers = text.translate(_TO_JSON, _NOT_IN_MIXED if has_integers else _NOT_IN_FLOATS)
    if b", " in numbers:
        return None
    if b"-" in numbers:
        # An integer zero has no sign, the float that is meant has.
        numbers = (numbers + b" ").replace(b"-0 ", b"-0.0 ")
    try:
        flat = (_NUMBERS if has_integers else _FLOATS).decode(b"[%b]" % numbers.lstrip(b" ,"))
        if len(flat) != len(kinds) * len(fields):
            return None
        columns = [flat[at :: len(kinds)] for at in range(len(kinds))]
        if not has_integers:
            return tuple(columns)
        return tuple(map(_of_kind, kinds, columns))
    except (msgspec.DecodeError, OverflowError, ValueError):
        return None


def _of_kind(kind: type, column: list[float | int]) -> Sequence[float | int]:
    if kind is float:
        return list(map(float, column))
    if float in set(map(type, column)) or not _fits(column):
        raise ValueError
    return column


def _fits(integers: Sequence[float | int]) -> bool:
    return min(integers) >= MIN_INT64 and max(integers) <= MAX_INT64


def cut_values(
    names: tuple[str, ...], kinds: tuple[type, ...], fields: Sequence[str]
) -> Columns | None:
    """Read values one by one, from lines cut at their commas and equals signs."""
    if not are_names(names):
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
            return integers if _fits(integers) else None
        floats = list(map(float, texts))
    except (KeyError, ValueError):
        return None
    return floats if isfinite(sum(floats)) else None
