"""Why a point can't be stored: each check returns a sentence for the sender, or None."""

import math
from collections.abc import Mapping

from timeseries.duckdb.schema import (
    MAX_COLUMNS,
    MAX_MEASUREMENTS,
    MAX_NAME_BYTES,
    FieldType,
    Schema,
    Table,
    type_of,
)
from timeseries.lineprotocol_grammar import MAX_INT64, MAX_UINT64, MIN_INT64
from timeseries.points import FieldValue, Point


def measurement_fault(measurement: str, schema: Schema) -> str | None:
    """Return why no point of this measurement can be stored."""
    fault = name_fault(f"measurement {measurement!r}", measurement)
    if fault is None and measurement not in schema and len(schema) >= MAX_MEASUREMENTS:
        return (
            f"measurement {measurement!r} is new and the store already holds "
            f"{MAX_MEASUREMENTS}; put what varies into a tag"
        )
    return fault


def point_fault(point: Point, identity: Mapping[str, str], table: Table) -> str | None:
    """Return why a point does not fit its measurement's table."""
    if not point.fields:
        return "it has no fields"
    if not MIN_INT64 <= point.time_ns <= MAX_INT64:
        return f"its time {point.time_ns} ns is out of the range of 64 bits"
    for tag, tag_value in {**point.tags, **identity}.items():
        fault = name_fault(f"tag {tag!r}", tag) or text_fault(f"tag {tag!r}", tag_value)
        if fault:
            return fault
    for name, value in point.fields.items():
        kind = table.fields.get(name)
        fault = name_fault(f"field {name!r}", name) or value_fault(name, value, kind)
        if fault:
            return fault
    if widened(table, point, identity).width > MAX_COLUMNS:
        return f"{point.measurement!r} would have over {MAX_COLUMNS} tags and fields"
    return None


def widened(table: Table, point: Point, identity: Mapping[str, str]) -> Table:
    """Return the table with the columns that a good point needs."""
    new = {name: type_of(value) for name, value in point.fields.items() if name not in table.fields}
    if not new and table.tags.issuperset(point.tags) and table.tags.issuperset(identity):
        return table
    return Table(table.tags.union(point.tags, identity), {**table.fields, **new})


def name_fault(what: str, name: str) -> str | None:
    """Return why a name can't be one: empty, too long or not Unicode text."""
    if not name:
        return f"{what} has an empty name"
    fault = text_fault(what, name)
    if fault is None and len(name.encode()) > MAX_NAME_BYTES:
        return f"{what} is longer than {MAX_NAME_BYTES} bytes"
    return fault


def text_fault(what: str, text: object) -> str | None:
    """Return why a tag's value, or a text field's, can't be stored."""
    if not isinstance(text, str):
        return f"{what} is {text!r}, which is no text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"{what} is not valid Unicode"
    return None


def value_fault(name: str, value: object, kind: FieldType | None) -> str | None:
    """Return why a value can't be stored in a field of this type; None is a new field's type."""
    if not isinstance(value, bool | int | float | str):
        return f"field {name!r} is {value!r}: no number, boolean or text"
    given = type_of(value)
    if kind is None or given is kind:
        return _range_fault(name, value)
    if kind is FieldType.FLOAT and _is_integer_of_64_bits(value):
        return None
    return (
        f"field {name!r} is stored as {kind} and this value {value!r} is {given}: "
        "a field keeps the type of its first value"
    )


def _is_integer_of_64_bits(value: object) -> bool:
    return (
        isinstance(value, int) and not isinstance(value, bool) and MIN_INT64 <= value <= MAX_UINT64
    )


def _range_fault(name: str, value: FieldValue) -> str | None:
    if isinstance(value, str):
        return text_fault(f"field {name!r}", value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"field {name!r} is {value}; leave the field out instead"
    if isinstance(value, int) and not MIN_INT64 <= value <= MAX_INT64:
        return f"field {name!r} is {value}, which is out of the range of a signed 64 bit integer"
    return None
