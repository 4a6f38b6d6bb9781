"""Checks that the stores share: of points before a write, and of queries.

A check of points returns the reason to reject, or None; a check of a query raises.
"""

import math
from enum import StrEnum

from core.errors import InvalidInputError
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.points import FieldValue
from timeseries.store import Aggregate

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
