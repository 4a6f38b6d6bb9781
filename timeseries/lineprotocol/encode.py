"""Encoding points as line protocol: one by one for agents, by column for forwarding."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import cast

import msgspec

from core.errors import InvalidInputError
from timeseries.lineprotocol.grammar import (
    MAX_INT64,
    MAX_TIME_NS,
    MAX_UINT64,
    MIN_INT64,
    MIN_TIME_NS,
)
from timeseries.points import Batch, Block, FieldValue, Point

# Only an equals sign after a backslash needs an escape.
_SPECIAL_IN_MEASUREMENT = re.compile(r"[, ]|(?<=\\)=")
_SPECIAL_IN_KEY = re.compile(r"[,= ]")
_SPECIAL_IN_STRING = re.compile(r'["\\]')
_ODD_IN_TAGS = re.compile(r"[,= \n\\]")
_TAG_NAME = "a tag's name"
_MAX_CACHED_NAMES = 4096


def encode(points: Iterable[Point]) -> bytes:
    """Return points as lines of line protocol with nanosecond timestamps.

    Raises:
        InvalidInputError: a point has no field, an empty name or tag value, a name or tag value
            with a newline or a trailing backslash, a NaN or infinite float, or a number over 64
            bits.
    """
    lines = []
    for point in points:
        try:
            lines.append(_encode_point(point).encode())
        except ValueError as error:
            raise InvalidInputError(
                f"A point of {point.measurement!r} can't be encoded as line protocol: {error}"
            ) from None
    return b"".join(lines)


def encode_batch(batch: Batch, *, extra_tags: Mapping[str, str]) -> bytes:
    """Return a batch as lines with nanosecond timestamps, by block and row.

    Args:
        batch: the points.
        extra_tags: tags of every line, replacing its own of the same name.

    Raises:
        InvalidInputError: as `encode`.
    """
    lines: list[bytes] = []
    for block in batch.blocks:
        try:
            lines.append(_encode_block(block, extra_tags).encode())
        except ValueError as error:
            raise InvalidInputError(
                f"Points of {block.measurement!r} can't be encoded as line protocol: {error}"
            ) from None
    return b"".join(lines)


def _encode_block(block: Block, extra_tags: Mapping[str, str]) -> str:
    if not block.fields:
        raise ValueError("it has no fields")
    heads = _encode_heads(block, extra_tags)
    columns: list[Sequence[str]] = []
    pairs = []
    for name, kind, values in zip(block.fields, block.kinds, block.values, strict=True):
        columns.append(_ENCODE_COLUMN[kind](name, values))
        pairs.append(f"{_in_template(_key(name))}=%s")
    _in_time(min(block.times_ns))
    _in_time(max(block.times_ns))
    template = f"%s {','.join(pairs)} %s\n"
    rows = zip([heads[at] for at in block.tag_set_of], *columns, block.times_ns, strict=True)
    return "".join(map(template.__mod__, rows))


def _encode_heads(block: Block, extra_tags: Mapping[str, str]) -> list[str]:
    """Return measurement and tags of each tag set, sorted as InfluxDB stores them."""
    own = dict(zip(block.tags, zip(*block.tag_sets, strict=True), strict=False))
    pairs, columns = [_in_template(_measurement(block.measurement))], []
    for name in sorted({*own, *extra_tags}):
        if name in extra_tags:
            pairs.append(_in_template(_tag(name, extra_tags[name])))
        else:
            pairs.append(f",{_in_template(_escape(name, _SPECIAL_IN_KEY, _TAG_NAME))}=%s")
            columns.append(_encode_tags(name, own[name]))
    template = "".join(pairs)
    if not columns:
        return [template % ()] * len(block.tag_sets)
    return list(map(template.__mod__, zip(*columns, strict=True)))


def _encode_tags(name: str, values: Sequence[str]) -> Sequence[str]:
    if "" not in values and not _ODD_IN_TAGS.search("".join(values)):
        return values
    return [_escape(value, _SPECIAL_IN_KEY, f"tag {name!r}") for value in values]


def _encode_floats(name: str, values: Sequence[FieldValue]) -> Sequence[str]:
    text = msgspec.json.encode(list(values))[1:-1].decode()
    # JSON has null for floats that are not finite.
    if "n" in text:
        return [_encode_value(name, value) for value in values]
    return text.split(",")


def _encode_integers(name: str, values: Sequence[FieldValue]) -> Sequence[str]:
    integers = cast("Sequence[int]", values)
    if min(integers) < MIN_INT64 or max(integers) > MAX_INT64:
        return [_encode_value(name, value) for value in values]
    return [f"{value}i" for value in integers]


def _encode_others(name: str, values: Sequence[FieldValue]) -> Sequence[str]:
    return [_encode_value(name, value) for value in values]


_ENCODE_COLUMN: Mapping[type, Callable[[str, Sequence[FieldValue]], Sequence[str]]] = {
    float: _encode_floats,
    int: _encode_integers,
    bool: _encode_others,
    str: _encode_others,
}


def _in_template(text: str) -> str:
    return text.replace("%", "%%")


def _encode_point(point: Point) -> str:
    if not point.fields:
        raise ValueError("it has no fields")
    head = _measurement(point.measurement) + "".join(
        [_tag(name, value) for name, value in point.tags.items()]
    )
    fields = ",".join(
        [
            # The most common type comes first.
            f"{_key(name)}={value!r}"
            if type(value) is float and isfinite(value)
            else f"{_key(name)}={_encode_value(name, value)}"
            for name, value in point.fields.items()
        ]
    )
    return f"{head} {fields} {_in_time(point.time_ns)}\n"


# Series and fields repeat with every reading, so their escaped names are cached.
@lru_cache(maxsize=_MAX_CACHED_NAMES)
def _measurement(name: str) -> str:
    if name.startswith(("#", "\r", "\t", "\0")):
        raise ValueError("the measurement starts with a comment sign, a line end or a blank")
    return _escape(name, _SPECIAL_IN_MEASUREMENT, "the measurement")


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def _tag(name: str, value: str) -> str:
    key = _escape(name, _SPECIAL_IN_KEY, _TAG_NAME)
    return f",{key}={_escape(value, _SPECIAL_IN_KEY, f'tag {name!r}')}"


@lru_cache(maxsize=_MAX_CACHED_NAMES)
def _key(name: str) -> str:
    if name.startswith(("\t", "\0")):
        raise ValueError(f"field name {name!r} starts with a blank")
    return _escape(name, _SPECIAL_IN_KEY, "a field name")


def _escape(text: str, special: re.Pattern[str], label: str) -> str:
    if not text:
        raise ValueError(f"{label} is empty")
    if "\n" in text or text.endswith("\\"):
        raise ValueError(f"{label} {text!r} has a newline or a trailing backslash")
    return special.sub(r"\\\g<0>", text)


def _encode_value(name: str, value: FieldValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + _SPECIAL_IN_STRING.sub(r"\\\g<0>", value) + '"'
    if isinstance(value, int):
        if MAX_INT64 < value <= MAX_UINT64:
            return f"{value}u"
        if not MIN_INT64 <= value <= MAX_INT64:
            raise ValueError(f"field {name!r} {value} is out of the range of 64 bits")
        return f"{value}i"
    if not isfinite(value):
        raise ValueError(f"field {name!r} is {value}; leave the field out instead")
    return repr(float(value))


def _in_time(time_ns: int) -> int:
    if not MIN_TIME_NS <= time_ns <= MAX_TIME_NS:
        raise ValueError(f"the time {time_ns} is out of the range of 64 bits")
    return time_ns
