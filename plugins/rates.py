"""Rates from counters: what a counter grew by, for each second between two readings."""

from collections.abc import Mapping
from datetime import datetime

from core.clock import to_ns
from timeseries.points import Point


class CounterRates:
    """Remembers the last counters of each key and gives their growth per second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[datetime, Mapping[str, float]]] = {}

    def rates(
        self, key: str, counters: Mapping[str, float], *, now: datetime
    ) -> dict[str, float] | None:
        """Return the growth per second of each counter, in the order given.

        None on the first reading of a key, when time did not move forward, and when any counter
        went back: then the device was reset and the difference says nothing.
        """
        before = self._last.get(key)
        self._last[key] = (now, dict(counters))
        if before is None:
            return None
        read_at, previous = before
        elapsed_seconds = (now - read_at).total_seconds()
        grown = {name: value - previous.get(name, value) for name, value in counters.items()}
        if elapsed_seconds <= 0 or any(growth < 0 for growth in grown.values()):
            return None
        return {name: growth / elapsed_seconds for name, growth in grown.items()}

    def points(
        self,
        measurement: str,
        tag: str,
        counters: Mapping[str, Mapping[str, float]],
        *,
        now: datetime,
    ) -> list[Point]:
        """Return a point of rates for each device that was read before; forget those gone.

        Args:
            tag: the tag that names the device.
            counters: device to its counters, each under the name of its rate's field.
        """
        points = []
        for device, values in sorted(counters.items()):
            fields = self.rates(device, values, now=now)
            if fields:
                points.append(Point(measurement, {tag: device}, fields, to_ns(now)))
        self.keep_only(set(counters))
        return points

    def keep_only(self, keys: set[str]) -> None:
        """Forget devices that are gone, so that one that comes back starts afresh."""
        for key in self._last.keys() - keys:
            del self._last[key]
