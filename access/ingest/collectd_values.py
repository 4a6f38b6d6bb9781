"""Points from the values of collectd; see docs/operating.md for their names.

A *value list* is one reading of collectd: host/plugin-instance/type-instance, a time, and a value
for each data source of its type. A *notification* is an event with a message. The agent's own
plugins for collectd use the same names.

Requests are stateless, so counters are stored as received, unless collectd sends rates
(`StoreRates`).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from core.host_names import is_same_host
from timeseries.points import FieldValue, Point

# Data sources, the values of a type: each has a name and a kind.
Sources = tuple[tuple[str, str], ...]

MEASUREMENT_PREFIX = "collectd_"
NOTIFICATION_MEASUREMENT = "notification"

_NOT_IN_NAME = re.compile(r"[^a-z0-9_]")
_NOT_IN_TAG = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_NS_PER_MS = 1_000_000
_LATEST_MS = 2**63 // _NS_PER_MS


class CollectdError(ValueError):
    """A value of collectd can't be stored; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueList:
    """One reading of collectd; an unknown value is None."""

    host: str
    plugin: str
    plugin_instance: str
    type: str
    type_instance: str
    time_ns: int
    interval_seconds: float
    sources: Sources
    numbers: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """An event; `tags` are those besides host and severity."""

    host: str
    severity: str
    message: str
    time_ns: int
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PointMaker:
    """Converts the values of one collectd to points.

    Attributes:
        own_name: the appliance's name; readings of another host get the tag `host`.
        are_rates: derives and counters are sent as rates.
    """

    own_name: str
    are_rates: bool = False

    def point(self, reading: ValueList | Notification) -> Point | None:
        """Return a point; None if no value of a reading is known."""
        if isinstance(reading, Notification):
            tags = {"severity": reading.severity, **reading.tags}
            fields: dict[str, FieldValue] = {"events": 1, "message": reading.message}
            return Point(
                NOTIFICATION_MEASUREMENT, self._tags(reading.host, tags), fields, reading.time_ns
            )
        tags = {
            "instance": reading.plugin_instance,
            "type": reading.type,
            "type_instance": reading.type_instance,
        }
        fields = {}
        for (name, kind), number in zip(reading.sources, reading.numbers, strict=True):
            if number is not None and math.isfinite(number):
                suffix, value = self._stored(kind, number, reading.interval_seconds)
                fields[_name(name) + suffix] = value
        measurement = MEASUREMENT_PREFIX + _name(reading.plugin)
        if not fields:
            return None
        return Point(measurement, self._tags(reading.host, tags), fields, reading.time_ns)

    def _stored(self, kind: str, number: float, interval_seconds: float) -> tuple[str, float]:
        if kind == "gauge":
            return "", number
        if self.are_rates:
            return "_per_second", number
        if kind == "absolute" and interval_seconds > 0:  # it counts since the last reading
            return "_per_second", number / interval_seconds
        return "_total", number

    def _tags(self, host: str, tags: Mapping[str, str]) -> dict[str, str]:
        point_tags = {name: _NOT_IN_TAG.sub("_", value) for name, value in tags.items() if value}
        if host and not any(is_same_host(host, own) for own in ("localhost", self.own_name)):
            point_tags["host"] = _NOT_IN_TAG.sub("_", host)
        return point_tags


def time_ns_of(seconds: float) -> int:
    """Return a time of collectd, which has milliseconds, in nanoseconds.

    Raises:
        CollectdError: it is out of range.
    """
    milliseconds = seconds * 1000
    if not -_LATEST_MS < milliseconds < _LATEST_MS:
        raise CollectdError(f"the time {seconds:g} is out of range")
    return round(milliseconds) * _NS_PER_MS


def _name(text: str) -> str:
    return _NOT_IN_NAME.sub("_", text.lower())
