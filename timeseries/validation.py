"""Checks that the stores share: of points before a write, and of queries.

A check of points returns the reason to reject, or None; a check of a query raises. In a batch that
has a series twice at one instant, the order of the points counts.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum

from core.errors import InvalidInputError
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import Batch, Block, FieldValue
from timeseries.store import IDENTITY_TAGS, Aggregate

MAX_NAME_BYTES = 200


class FieldType(StrEnum):
    """The type of a field: that of the first value ever written to it."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    STRING = "string"


FIELD_TYPES: dict[type, FieldType] = {
    float: FieldType.FLOAT,
    int: FieldType.INTEGER,
    bool: FieldType.BOOLEAN,
    str: FieldType.STRING,
}


def name_error(label: str, name: str, *, max_bytes: int = MAX_NAME_BYTES) -> str | None:
    """Return why a measurement, tag or field can't have this name."""
    if not name:
        return f"{label} has an empty name"
    return text_error(label, name, max_bytes=max_bytes)


def text_error(label: str, text: object, *, max_bytes: int | None = None) -> str | None:
    """Return why a tag value or a text can't be stored."""
    if not isinstance(text, str):
        return f"{label} is {text!r}, which is not text"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return f"{label} is not valid Unicode"
    if max_bytes is not None and size > max_bytes:
        return f"{label} is longer than {max_bytes} bytes"
    return None


def value_error(name: str, value: FieldValue, *, max_integer: int = MAX_INT64) -> str | None:
    """Return why a value is out of the range of its type."""
    if isinstance(value, str):
        return text_error(f"field {name!r}", value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"field {name!r} is {value}; leave the field out instead"
    if isinstance(value, int) and not MIN_INT64 <= value <= max_integer:
        return f"field {name!r} is {value}, which is out of the range of a signed 64 bit integer"
    return None


def type_conflict(name: str, value: object, *, stored: str, given: str) -> str:
    """Return the reason to reject a value of another type than the field has."""
    return (
        f"field {name!r} has type {stored}, and this value {value!r} is {given}: "
        "the first value sets the type"
    )


def check_aggregate(name: str, kind: str, aggregate: Aggregate) -> None:
    """Raise InvalidInputError for an aggregate other than count of a text field."""
    if kind == FieldType.STRING and aggregate is not Aggregate.COUNT:
        raise InvalidInputError(
            f"Field {name!r} is text, which has no {aggregate}. "
            "Use count, or read its latest value.",
            errors={"aggregate": [f"{aggregate} is not possible for text; use count"]},
        )


def check_step(step_ns: int) -> int:
    """Return the width of a query's windows; raise InvalidInputError unless it is positive."""
    if step_ns <= 0:
        raise InvalidInputError(
            f"step_ns is {step_ns}. A window must be wider than 0.",
            errors={"step_ns": ["must be > 0"]},
        )
    return int(step_ns)


def repeating_measurements(batch: Batch) -> set[str]:
    """Return the measurements of which a batch has a series twice at one instant."""
    blocks_of: dict[str, list[Block]] = {}
    for block in batch.blocks:
        if block.fields:
            blocks_of.setdefault(block.measurement, []).append(block)
    return {
        measurement
        for measurement, blocks in blocks_of.items()
        if any(_repeats(alike, is_stamped=batch.is_stamped) for alike in _by_tags(blocks))
    }


def _by_tags(blocks: Sequence[Block]) -> Iterable[Sequence[Block]]:
    if len(blocks) == 1:
        return (blocks,)
    blocks_of: dict[frozenset[str], list[Block]] = {}
    for block in blocks:
        blocks_of.setdefault(frozenset(block.tags), []).append(block)
    return blocks_of.values()


def _repeats(blocks: Sequence[Block], *, is_stamped: bool) -> bool:
    """Return whether a series of blocks with the same tags is twice at one instant."""
    count = sum(map(len, blocks))
    if count == 1:
        return False
    claimed = () if is_stamped else [tag for tag in IDENTITY_TAGS if tag in blocks[0].tags]
    if len(blocks) == 1 and not claimed:
        (block,) = blocks
        return len(set(zip(block.tag_set_of, block.times_ns, strict=False))) < count
    instants = {
        (series[at], time_ns)
        for block in blocks
        for series in [_series(block, claimed)]
        for at, time_ns in zip(block.tag_set_of, block.times_ns, strict=False)
    }
    return len(instants) < count


def _series(block: Block, claimed: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Return the values of each tag set in the order of the names, without claimed tags."""
    order = sorted(range(len(block.tags)), key=block.tags.__getitem__)
    order = [at for at in order if block.tags[at] not in claimed]
    if order == list(range(len(block.tags))):
        return block.tag_sets
    return [tuple([values[at] for at in order]) for values in block.tag_sets]
