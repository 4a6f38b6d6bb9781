"""Which points an InfluxDB would refuse, found before they are sent.

The server names only the first fault of a request, and keeps the type of a field by shard only: it
would take a field as a float one week and as text the next. So the types are known here, and a
point that clashes is refused by name while its neighbours are written.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from timeseries.batch import Batch, Block
from timeseries.influxdb.names import stored, stored_key
from timeseries.influxdb.ql import BOOLEAN, FLOAT, INTEGER, MAX_TIME_NS, MIN_TIME_NS, STRING
from timeseries.points import FieldValue
from timeseries.store import IDENTITY_TAGS, RejectedPoint

MAX_NAME_BYTES = 200
MIN_INTEGER, MAX_INTEGER, MAX_UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1

_TYPES: dict[type, str] = {float: FLOAT, int: INTEGER, bool: BOOLEAN, str: STRING}


class FieldTypes:
    """The types of fields by measurement, as far as they were asked for.

    Args:
        load: reads the types of one measurement from the server.
    """

    def __init__(self, load: Callable[[str], Mapping[str, str]]) -> None:
        self._load = load
        self._known: dict[str, dict[str, str]] = {}

    def of(self, measurement: str, fields: Sequence[str]) -> dict[str, str]:
        """Return the types of a measurement's fields; what is added to them is remembered.

        A field that is not known yet may have come by another process, so the server is asked.
        """
        known = self._known.setdefault(measurement, {})
        if not all(name in known for name in fields):
            known.update(self._load(measurement))
        return known

    def forget(self) -> None:
        """Ask the server anew from now on."""
        self._known.clear()


def vet(
    batch: Batch, identity: Mapping[str, str], types: FieldTypes
) -> tuple[Batch, list[RejectedPoint]]:
    """Return what can be written, under stored names and stamped, and the points that can't."""
    good: list[Block] = []
    refused: dict[int, str] = {}
    for block in sorted(filter(len, batch.blocks), key=lambda block: min(block.positions)):
        fault = _names_fault(block, identity)
        if fault is not None:
            refused |= dict.fromkeys(block.positions, fault)
            continue
        known = types.of(block.measurement, block.fields)
        faults = {**_time_faults(block), **_tag_faults(block)}
        for name, kind, values in zip(block.fields, block.kinds, block.values, strict=True):
            faults |= _value_faults(name, kind, values, known.get(name))
        refused |= {block.positions[row]: reason for row, reason in faults.items()}
        kept = block.without({block.positions[row] for row in faults})
        if len(kept):
            for name, kind in zip(block.fields, block.kinds, strict=True):
                known.setdefault(name, _TYPES[kind])
            good.extend(_stored(kept, identity, known))
    rejected = [RejectedPoint(position, reason) for position, reason in sorted(refused.items())]
    return Batch(tuple(good)), rejected


def _names_fault(block: Block, identity: Mapping[str, str]) -> str | None:
    if not block.fields:
        return "it has no fields"
    named = [(f"measurement {block.measurement!r}", block.measurement)]
    named += [(f"tag {name!r}", name) for name in (*block.tags, *identity)]
    named += [(f"field {name!r}", name) for name in block.fields]
    for what, name in named:
        if not name:
            return f"{what} has an empty name"
        if (fault := _text_fault(what, name)) is not None:
            return fault
        if len(name.encode()) > MAX_NAME_BYTES:
            return f"{what} is longer than {MAX_NAME_BYTES} bytes"
    for name, kind in zip(block.fields, block.kinds, strict=True):
        if kind not in _TYPES:
            return f"field {name!r} is a {kind.__name__}: no number, boolean or text"
    return None


def _text_fault(what: str, text: object) -> str | None:
    if not isinstance(text, str):
        return f"{what} is {text!r}, which is no text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{what} is not valid Unicode"
    return None


def _time_faults(block: Block) -> dict[int, str]:
    if min(block.times_ns) >= MIN_TIME_NS and max(block.times_ns) <= MAX_TIME_NS:
        return {}
    return {
        row: f"its time {time_ns} ns is out of the range of 64 bits"
        for row, time_ns in enumerate(block.times_ns)
        if not MIN_TIME_NS <= time_ns <= MAX_TIME_NS
    }


def _tag_faults(block: Block) -> dict[int, str]:
    faults = {}
    for index, tag_set in enumerate(block.tag_sets):
        for name, value in zip(block.tags, tag_set, strict=True):
            if (fault := _text_fault(f"tag {name!r}", value)) is not None:
                faults[index] = fault
    if not faults:
        return {}
    return {row: faults[at] for row, at in enumerate(block.tag_set_of) if at in faults}


def _value_faults(
    name: str, kind: type, values: Sequence[FieldValue], known: str | None
) -> dict[int, str]:
    given = _TYPES[kind]
    if known not in (None, given) and (known, given) != (FLOAT, INTEGER):
        return {
            row: f"field {name!r} is stored as {known} and this value {value!r} is {given}: "
            "a field keeps the type of its first value"
            for row, value in enumerate(values)
        }
    if kind is bool or _are_all_storable(kind, values, becomes_float=known == FLOAT):
        return {}
    faults = {row: _fault_of(name, value, known) for row, value in enumerate(values)}
    return {row: fault for row, fault in faults.items() if fault is not None}


def _are_all_storable(kind: type, values: Sequence[FieldValue], *, becomes_float: bool) -> bool:
    if kind is float:
        return all(map(math.isfinite, values))  # type: ignore[arg-type] # floats by the kind
    if kind is int:
        highest = MAX_UNSIGNED if becomes_float else MAX_INTEGER
        return min(values) >= MIN_INTEGER and max(values) <= highest  # type: ignore[operator] # integers by the kind
    try:
        "".join(values).encode()  # type: ignore[arg-type] # texts by the kind
    except UnicodeEncodeError:
        return False
    return True


def _fault_of(name: str, value: FieldValue, known: str | None) -> str | None:
    what = f"field {name!r}"
    if isinstance(value, str):
        return _text_fault(what, value)
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{what} is {value}; leave the field out instead"
    if MIN_INTEGER <= value <= (MAX_UNSIGNED if known == FLOAT else MAX_INTEGER):
        return None
    return f"{what} is {value}, which is out of the range of a signed 64 bit integer"


def _stored(
    block: Block, identity: Mapping[str, str], known: Mapping[str, str]
) -> tuple[Block, ...]:
    """Return the points as blocks with stored names, stamped, their integers of float fields
    turned to floats; points that lack a tag come in a block of their own."""
    kinds, columns = [], []
    for name, kind, values in zip(block.fields, block.kinds, block.values, strict=True):
        becomes_float = kind is int and known[name] == FLOAT
        kinds.append(float if becomes_float else kind)
        columns.append(list(map(float, values)) if becomes_float else values)
    claimed = {*IDENTITY_TAGS, *identity}
    own = [at for at, name in enumerate(block.tags) if name not in claimed]
    stamped = {name: value for name, value in identity.items() if value}
    tags = (*stamped, *(block.tags[at] for at in own))
    tag_sets = [(*stamped.values(), *(one[at] for at in own)) for one in block.tag_sets]
    whole = Block(
        stored(block.measurement),
        tuple(map(stored_key, tags)),
        [tuple(map(stored, one)) for one in tag_sets],
        block.tag_set_of,
        tuple(map(stored_key, block.fields)),
        tuple(kinds),
        tuple(columns),
        block.times_ns,
        block.positions,
    )
    if all(map(all, tag_sets)):
        return (whole,)
    return _without_empty_tags(whole)


def _without_empty_tags(block: Block) -> tuple[Block, ...]:
    points = [
        dataclasses.replace(point, tags={name: text for name, text in point.tags.items() if text})
        for point in block.points()
    ]
    return Batch.of_placed(zip(block.positions, points, strict=True)).blocks
