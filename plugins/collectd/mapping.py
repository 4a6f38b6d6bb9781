"""From value lists to points; see README.md for the names.

Counters become rates, by collectd's rules.
"""

import logging
import math
import re
import time
from dataclasses import dataclass

from core.clock import NS_PER_SECOND
from core.host_names import is_same_host
from plugins.base import Metric, MetricKind, PluginError
from plugins.collectd.types_db import DataSet, DataSource, SourceKind, Types
from plugins.collectd.values import Identity, Notification, Number, ValueList
from timeseries.points import FieldValue, Point

log = logging.getLogger(__name__)

SECONDS_BETWEEN = 60.0


class ErrorLog:
    """Counts bad readings; logs the first one and the count, at most once a minute.

    Args:
        subject: prefix of the log line.
        unit: unit of dropped items, such as `bytes`.
    """

    def __init__(self, subject: str, *, unit: str) -> None:
        self._subject = subject
        self._unit = unit
        self._faults = 0
        self._first = ""
        self._dropped = 0
        self._logged_at_seconds: float | None = None  # monotonic

    def note(self, reason: str) -> None:
        """Count a bad reading."""
        self._faults += 1
        self._first = self._first or reason

    def drop(self, count: int) -> None:
        """Count dropped items."""
        self._dropped += count

    def flush(self) -> None:
        """Log the counts if a minute has passed."""
        if not self._faults and not self._dropped:
            return
        seconds, last = time.monotonic(), self._logged_at_seconds
        if last is not None and seconds - last < SECONDS_BETWEEN:
            return
        if self._faults:
            log.warning("%s: %d bad readings; first %s", self._subject, self._faults, self._first)
        if self._dropped:
            log.warning(
                "%s: dropped %d %s, above the limit",
                self._subject,
                self._dropped,
                self._unit,
            )
        self._faults, self._first, self._dropped = 0, "", 0
        self._logged_at_seconds = seconds


MEASUREMENT_PREFIX = "collectd_"
NOTIFICATION_MEASUREMENT = "notification"
NOTIFICATION_METRICS = (
    Metric("events", MetricKind.EVENT, "events", "1 at the time of each notification"),
)
MAX_SERIES = 10_000
MAX_PLUGINS = 100

_NOT_IN_NAME = re.compile(r"[^a-z0-9_]")
_NOT_IN_TAG = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_WRAP_32, _WRAP_64 = 2**32, 2**64


@dataclass(slots=True)
class _Series:
    """The series of one identity, and its last values."""

    measurement: str
    tags: dict[str, str]
    data_set: DataSet
    fields: tuple[str, ...]
    time_ns: int = 0
    values: tuple[Number | None, ...] = ()


class PointMapper:
    """Maps value lists to points, and computes rates.

    Args:
        types: see `load_types`.
        host: name of this host; readings of other hosts have it as a tag.
    """

    def __init__(self, types: Types, *, host: str) -> None:
        self._types = types
        self._host = host
        self._series: dict[Identity, _Series] = {}
        self._measurements: set[str] = set()

    def point(self, values: ValueList, *, now_ns: int, interval_seconds: float) -> Point | None:
        """Return the point; None without a value, such as for the first reading of a counter.

        Args:
            interval_seconds: default interval of the reading.

        Raises:
            PluginError: the type is unknown, or there are too many plugin names.
        """
        series = self._series.pop(values.identity, None) or self._open(values.identity)
        self._series[values.identity] = series  # newest last; the oldest is evicted first
        if len(self._series) > MAX_SERIES:
            del self._series[next(iter(self._series))]
        time_ns = now_ns if values.time_ns is None else values.time_ns
        interval = values.interval_seconds or interval_seconds
        fields = _fields(series, values.values, time_ns=time_ns, interval_seconds=interval)
        return Point(series.measurement, series.tags, fields, time_ns) if fields else None

    def notification(self, notification: Notification, *, now_ns: int) -> Point:
        """Return a notification as an event, without its message."""
        tags = {"severity": notification.severity.name.lower()}
        if notification.identity.plugin:
            tags["plugin"] = _tag(notification.identity.plugin)
        tags |= self._tags(notification.identity)
        time_ns = now_ns if notification.time_ns is None else notification.time_ns
        return Point(NOTIFICATION_MEASUREMENT, tags, {"events": 1}, time_ns)

    def _open(self, identity: Identity) -> _Series:
        data_set = self._types.get(identity.type)
        if data_set is None:
            raise PluginError(f"{identity}: type {identity.type!r} is not in any types.db")
        measurement = MEASUREMENT_PREFIX + _name(identity.plugin)
        if measurement not in self._measurements and len(self._measurements) >= MAX_PLUGINS:
            raise PluginError(
                f"{identity}: there are more than {MAX_PLUGINS} plugin names; use the instance for "
                "what varies"
            )
        self._measurements.add(measurement)
        fields = tuple(
            _name(source.name) + ("" if source.kind is SourceKind.GAUGE else "_per_second")
            for source in data_set
        )
        return _Series(measurement, self._tags(identity), data_set, fields)

    def _tags(self, identity: Identity) -> dict[str, str]:
        names = {
            "instance": identity.plugin_instance,
            "type": identity.type,
            "type_instance": identity.type_instance,
        }
        host = identity.host
        if host and not any(is_same_host(host, own) for own in ("localhost", self._host)):
            names["host"] = host
        return {name: _tag(value) for name, value in names.items() if value}


def _fields(
    series: _Series, values: tuple[Number | None, ...], *, time_ns: int, interval_seconds: float
) -> dict[str, FieldValue]:
    """Return the fields, without rates that are unknown or out of bounds.

    Source: uc_insert() and uc_update() in collectd's utils_cache.c.
    """
    elapsed_seconds = (time_ns - series.time_ns) / NS_PER_SECOND if series.values else None
    before = series.values or (None,) * len(values)
    fields: dict[str, FieldValue] = {}
    sources = zip(series.data_set, series.fields, values, before, strict=True)
    for source, field, value, previous in sources:
        reading = (
            _gauge(value)
            if source.kind is SourceKind.GAUGE
            else _rate(source, value, previous, elapsed_seconds, interval_seconds)
        )
        if reading is not None:
            fields[field] = reading
    if elapsed_seconds is None or elapsed_seconds > 0:
        series.time_ns, series.values = time_ns, values
    return fields


def _gauge(value: Number | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _rate(
    source: DataSource,
    value: Number | None,
    previous: Number | None,
    elapsed_seconds: float | None,
    interval_seconds: float,
) -> float | None:
    if value is None or (elapsed_seconds is not None and elapsed_seconds <= 0):
        return None
    if source.kind is SourceKind.ABSOLUTE:  # counts since the last read
        rate = value / (elapsed_seconds or interval_seconds)
    elif previous is None or elapsed_seconds is None:
        return None
    elif source.kind is SourceKind.COUNTER:
        rate = _counted(int(previous), int(value)) / elapsed_seconds
    else:
        rate = (value - previous) / elapsed_seconds
    is_low = source.minimum is not None and rate < source.minimum
    is_high = source.maximum is not None and rate > source.maximum
    return None if is_low or is_high else float(rate)


def _counted(previous: int, value: int) -> int:
    """Return the increase of a counter that wraps at 32 or 64 bits."""
    if value >= previous:
        return value - previous
    return value - previous + (_WRAP_32 if previous < _WRAP_32 else _WRAP_64)


def _name(text: str) -> str:
    return _NOT_IN_NAME.sub("_", text.lower())


def _tag(text: str) -> str:
    return _NOT_IN_TAG.sub("_", text)
