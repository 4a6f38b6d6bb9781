"""Readings that can't be true: dropped, counted, and reported with the health.

A device that is about to fail, or a driver that signals "unknown" by -1, returns numbers that would
spoil every mean. `timeseries.ranges` has what is plausible.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock

import msgspec

from core.clock import from_ns
from protocol.health import MAX_IMPLAUSIBLE_READINGS, ImplausibleReading
from protocol.inventory import MAX_TEXT_LENGTH
from timeseries.declared import DECLARED
from timeseries.points import FieldValue, Point
from timeseries.ranges import PARTS

log = logging.getLogger(__name__)

# They tell one series from another only together with an index, which is shorter.
_LONG_TAGS = frozenset({"uuid", "model", "image", "job"})


def implausible_fields(measurement: str, fields: Mapping[str, FieldValue]) -> dict[str, str]:
    """Return the fields of a point that can't be true, with the reason."""
    declared = DECLARED.get(measurement)
    if declared is None:
        return {}
    numbers = {name: value for name, value in fields.items() if not isinstance(value, str)}
    reasons = {
        name: f"outside {limits}"
        for name, value in numbers.items()
        if (limits := declared.ranges.get(name))
        and not limits.least <= value <= limits.greatest  # NaN is in no range
    }
    for total, parts in PARTS.get(measurement, ()):
        if total in numbers and total not in reasons:
            reasons |= {
                part: f"above {total}, which is {numbers[total]}"
                for part in parts
                if part not in reasons and numbers.get(part, 0) > numbers[total]
            }
    return reasons


class ImplausibleFilter:
    """Drops implausible values. Thread-safe.

    Attributes:
        count: how many were dropped since the agent started.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()
        self._readings: dict[tuple[str, str], ImplausibleReading] = {}

    def plausible(self, points: Iterable[Point]) -> Sequence[Point]:
        """Return the points without implausible values."""
        return [checked for point in points if (checked := self._plausible(point)) is not None]

    def readings(self) -> list[ImplausibleReading]:
        """Return what was dropped, the newest first; of too many series, the newest."""
        with self._lock:
            return list(reversed(self._readings.values()))

    def _plausible(self, point: Point) -> Point | None:
        reasons = implausible_fields(point.measurement, point.fields)
        if not reasons:
            return point
        with self._lock:
            for name, reason in reasons.items():
                self._record(point, name, reason)
        plausible_fields = {
            name: value for name, value in point.fields.items() if name not in reasons
        }
        return (
            Point(point.measurement, point.tags, plausible_fields, point.time_ns)
            if plausible_fields
            else None
        )

    def _record(self, point: Point, field: str, reason: str) -> None:
        metric = f"{point.measurement}.{field}"
        tags = (f"{name}={text}" for name, text in point.tags.items() if name not in _LONG_TAGS)
        key = metric, ", ".join(tags)[:MAX_TEXT_LENGTH]
        before = self._readings.pop(key, None)
        if before is None:
            log.warning("dropped %s=%r of %s: %s", metric, point.fields[field], key[1], reason)
        reading = ImplausibleReading(
            metric=metric,
            series=key[1],
            value=str(point.fields[field])[:MAX_TEXT_LENGTH],
            detail=reason,
            count=1,
            last_at=from_ns(point.time_ns),
        )
        if before is not None:
            reading = msgspec.structs.replace(reading, count=before.count + 1)
        self._readings[key] = reading  # the newest last
        if len(self._readings) > MAX_IMPLAUSIBLE_READINGS:
            del self._readings[next(iter(self._readings))]
        self.count += 1
