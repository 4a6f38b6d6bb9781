"""Points: what plugins produce, the line protocol carries and the store keeps.

A *sample* is one reading (measurement, tags, field, value, time); a *point* is all samples that
share measurement, tags and time: one line of line protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass

FieldValue = float | int | bool | str


@dataclass(frozen=True, slots=True)
class Point:
    """All readings of one measurement, tag set and instant.

    Attributes:
        measurement: what is measured, such as `gpu`.
        tags: what tells its series apart, such as `{"gpu": "0"}`; values are never empty.
        fields: at least one reading; the unit is the field's suffix (`power_watts`).
        time_ns: nanoseconds since the epoch.
    """

    measurement: str
    tags: Mapping[str, str]
    fields: Mapping[str, FieldValue]
    time_ns: int
