"""From value lists to points; see README.md for the names.

Counters become rates here, by collectd's rules, because a point holds what people watch.
"""

import math
import re
from dataclasses import dataclass

from core.clock import NS_PER_SECOND
from plugins.base import Metric, MetricKind, PluginError
from plugins.collectd.types_db import DataSet, DataSource, SourceKind, Types
from plugins.collectd.values import Identity, Notification, Number, ValueList
from timeseries.points import FieldValue, Point

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
    """What one identity became, and its last numbers."""

    measurement: str
    tags: dict[str, str]
    data_set: DataSet
    fields: tuple[str, ...]
    time_ns: int = 0
    values: tuple[Number | None, ...] = ()


class PointMapper:
    """Turns value lists into points and remembers each series for its rates.

    Args:
        types: see `load_types`.
        host: this host's name; readings of another host carry it as a tag.
    """

    def __init__(self, types: Types, *, host: str) -> None:
        self._types = types
        self._host = host.partition(".")[0].lower()
        self._series: dict[Identity, _Series] = {}
        self._measurements: set[str] = set()

    def point(self, values: ValueList, *, now_ns: int, interval_seconds: float) -> Point | None:
        """Return the reading, or None when it has none yet: the first of a counter, all unknown.

        Args:
            interval_seconds: how often the reading comes, when it does not say itself.

        Raises:
            PluginError: the type is unknown, or there are too many plugins' names.
        """
        series = self._series.pop(values.identity, None) or self._open(values.identity)
        self._series[values.identity] = series  # the newest last, so that the oldest goes first
        if len(self._series) > MAX_SERIES:
            del self._series[next(iter(self._series))]
        time_ns = now_ns if values.time_ns is None else values.time_ns
        interval = values.interval_seconds or interval_seconds
        fields = _fields(series, values.values, time_ns=time_ns, interval_seconds=interval)
        return Point(series.measurement, series.tags, fields, time_ns) if fields else None

    def notification(self, notification: Notification, *, now_ns: int) -> Point:
        """Return a notification as an event; its message is for the log."""
        tags = {"severity": notification.severity.name.lower()}
        if notification.plugin:
            tags["plugin"] = _tag(notification.plugin)
        tags |= self._tags(
            notification.host,
            instance=notification.plugin_instance,
            type=notification.type,
            type_instance=notification.type_instance,
        )
        time_ns = now_ns if notification.time_ns is None else notification.time_ns
        return Point(NOTIFICATION_MEASUREMENT, tags, {"events": 1}, time_ns)

    def _open(self, identity: Identity) -> _Series:
        data_set = self._types.get(identity.type)
        if data_set is None:
            raise PluginError(f"{identity}: type {identity.type!r} is in no types.db")
        measurement = MEASUREMENT_PREFIX + _name(identity.plugin)
        if measurement not in self._measurements and len(self._measurements) >= MAX_PLUGINS:
            raise PluginError(
                f"{identity}: there are readings of {MAX_PLUGINS} plugins already; put what varies "
                "into the instance"
            )
        self._measurements.add(measurement)
        tags = self._tags(
            identity.host,
            instance=identity.plugin_instance,
            type=identity.type,
            type_instance=identity.type_instance,
        )
        return _Series(measurement, tags, data_set, tuple(_field(source) for source in data_set))

    def _tags(self, host: str, **names: str) -> dict[str, str]:
        short = host.partition(".")[0].lower()
        if short not in {"", "localhost", self._host}:
            names["host"] = host
        return {name: _tag(value) for name, value in names.items() if value}


def _fields(
    series: _Series, values: tuple[Number | None, ...], *, time_ns: int, interval_seconds: float
) -> dict[str, FieldValue]:
    """Return the readings; a rate that can't be known or can't be true is absent.

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
    if source.kind is SourceKind.ABSOLUTE:  # it counts since it was read last
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
    """Return how far a counter went, which begins again behind 32 or 64 bits."""
    if value >= previous:
        return value - previous
    return value - previous + (_WRAP_32 if previous < _WRAP_32 else _WRAP_64)


def _field(source: DataSource) -> str:
    name = _name(source.name)
    return name if source.kind is SourceKind.GAUGE else f"{name}_per_second"


def _name(text: str) -> str:
    return _NOT_IN_NAME.sub("_", text.lower())


def _tag(text: str) -> str:
    return _NOT_IN_TAG.sub("_", text)
