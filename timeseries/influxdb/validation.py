"""Finding the points that an InfluxDB would reject before they are sent.

The server reports only the first error of a request, and stores field types per shard: a field
could be a float one week and a string the next. So the types are tracked here, and a point that
conflicts is rejected by itself while its neighbors are written.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from timeseries.influxdb.influxql import encode_key, encode_name
from timeseries.lineprotocol.grammar import (
    MAX_INT64,
    MAX_TIME_NS,
    MAX_UINT64,
    MIN_INT64,
    MIN_TIME_NS,
)
from timeseries.points import Batch, Block, FieldValue
from timeseries.store import IDENTITY_TAGS, RejectedPoint
from timeseries.validation import (
    FIELD_TYPES,
    FieldType,
    name_error,
    repeating_measurements,
    text_error,
    type_conflict,
    value_error,
)


class FieldTypes:
    """A cache of field types by measurement; `load` reads those of one from the server."""

    def __init__(self, load: Callable[[str], Mapping[str, str]]) -> None:
        self._load = load
        self._known: dict[str, dict[str, str]] = {}

    def of(self, measurement: str, fields: Sequence[str]) -> dict[str, str]:
        """Return the field types of a measurement, to which the caller adds new ones.

        Another process may have written an unknown field, so the types are then loaded again.
        """
        stored_types = self._known.setdefault(measurement, {})
        if not all(name in stored_types for name in fields):
            stored_types.update(self._load(measurement))
        return stored_types

    def clear(self) -> None:
        """Load the types from the server again when needed."""
        self._known.clear()


def validate(
    batch: Batch, identity: Mapping[str, str], types: FieldTypes
) -> tuple[Batch, list[RejectedPoint]]:
    """Return the valid points, stamped and with encoded names, and the rejected ones."""
    batch = batch.in_order(repeating_measurements(batch))
    good: list[Block] = []
    rejections: dict[int, str] = {}
    for block in sorted(filter(len, batch.blocks), key=lambda block: min(block.positions)):
        error = _names_error(block, identity)
        if error is not None:
            rejections |= dict.fromkeys(block.positions, error)
            continue
        stored_types = types.of(block.measurement, block.fields)
        errors = {**_time_errors(block), **_tag_errors(block)}
        for name, kind, values in zip(block.fields, block.kinds, block.values, strict=True):
            errors |= _value_errors(name, kind, values, stored_types.get(name))
        rejections |= {block.positions[row]: reason for row, reason in errors.items()}
        valid = block.without({block.positions[row] for row in errors})
        if len(valid):
            for name, kind in zip(block.fields, block.kinds, strict=True):
                stored_types.setdefault(name, FIELD_TYPES[kind])
            good.extend(_encode(valid, identity, stored_types))
    rejected = [RejectedPoint(position, reason) for position, reason in sorted(rejections.items())]
    return Batch(tuple(good)), rejected


def _names_error(block: Block, identity: Mapping[str, str]) -> str | None:
    if not block.fields:
        return "it has no fields"
    named = [(f"measurement {block.measurement!r}", block.measurement)]
    named += [(f"tag {name!r}", name) for name in (*block.tags, *identity)]
    named += [(f"field {name!r}", name) for name in block.fields]
    for label, name in named:
        if error := name_error(label, name):
            return error
    for name, kind in zip(block.fields, block.kinds, strict=True):
        if kind not in FIELD_TYPES:
            return f"field {name!r} is a {kind.__name__}, which is not a number, boolean or text"
    return None


def _time_errors(block: Block) -> dict[int, str]:
    if min(block.times_ns) >= MIN_TIME_NS and max(block.times_ns) <= MAX_TIME_NS:
        return {}
    return {
        row: f"its time {time_ns} ns is out of the range of 64 bits"
        for row, time_ns in enumerate(block.times_ns)
        if not MIN_TIME_NS <= time_ns <= MAX_TIME_NS
    }


def _tag_errors(block: Block) -> dict[int, str]:
    errors = {}
    for index, tag_set in enumerate(block.tag_sets):
        for name, value in zip(block.tags, tag_set, strict=True):
            if (error := text_error(f"tag {name!r}", value)) is not None:
                errors[index] = error
    if not errors:
        return {}
    return {row: errors[at] for row, at in enumerate(block.tag_set_of) if at in errors}


def _value_errors(
    name: str, kind: type, values: Sequence[FieldValue], stored: str | None
) -> dict[int, str]:
    value_type = FIELD_TYPES[kind]
    if stored not in (None, value_type) and (stored, value_type) != (
        FieldType.FLOAT,
        FieldType.INTEGER,
    ):
        return {
            row: type_conflict(name, value, stored=str(stored), given=value_type)
            for row, value in enumerate(values)
        }
    if kind is bool or _are_all_storable(kind, values, becomes_float=stored == FieldType.FLOAT):
        return {}
    limit = MAX_UINT64 if stored == FieldType.FLOAT else MAX_INT64
    errors = {row: value_error(name, value, max_integer=limit) for row, value in enumerate(values)}
    return {row: error for row, error in errors.items() if error is not None}


def _are_all_storable(kind: type, values: Sequence[FieldValue], *, becomes_float: bool) -> bool:
    if kind is float:
        return all(map(math.isfinite, values))  # type: ignore[arg-type] # floats by the kind
    if kind is int:
        highest = MAX_UINT64 if becomes_float else MAX_INT64
        return min(values) >= MIN_INT64 and max(values) <= highest  # type: ignore[operator] # integers by the kind
    try:
        "".join(values).encode()  # type: ignore[arg-type] # texts by the kind
    except UnicodeEncodeError:
        return False
    return True


def _encode(
    block: Block, identity: Mapping[str, str], stored_types: Mapping[str, str]
) -> tuple[Block, ...]:
    """Return the points as blocks with encoded names, stamped, integers of float fields as floats.

    Points that lack a tag get their own block.
    """
    kinds, columns = [], []
    for name, kind, values in zip(block.fields, block.kinds, block.values, strict=True):
        becomes_float = kind is int and stored_types[name] == FieldType.FLOAT
        kinds.append(float if becomes_float else kind)
        columns.append(list(map(float, values)) if becomes_float else values)
    claimed = {*IDENTITY_TAGS, *identity}
    own = [at for at, name in enumerate(block.tags) if name not in claimed]
    stamped = {name: value for name, value in identity.items() if value}
    tags = (*stamped, *(block.tags[at] for at in own))
    tag_sets = [(*stamped.values(), *(tag_set[at] for at in own)) for tag_set in block.tag_sets]
    encoded = Block(
        encode_name(block.measurement),
        tuple(map(encode_key, tags)),
        [tuple(map(encode_name, tag_set)) for tag_set in tag_sets],
        block.tag_set_of,
        tuple(map(encode_key, block.fields)),
        tuple(kinds),
        tuple(columns),
        block.times_ns,
        block.positions,
    )
    if all(map(all, tag_sets)):
        return (encoded,)
    return _without_empty_tags(encoded)


def _without_empty_tags(block: Block) -> tuple[Block, ...]:
    points = [
        dataclasses.replace(point, tags={name: text for name, text in point.tags.items() if text})
        for point in block.points()
    ]
    return Batch.from_positioned(zip(block.positions, points, strict=True)).blocks
