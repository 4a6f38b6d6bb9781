"""Rates from counters: what a counter grew by, for each second between two readings."""

from collections.abc import Mapping
from datetime import datetime

from core.clock import to_ns
from timeseries.points import Point

DECIMALS = 3


class CounterRates:
    """Remembers the last counters of each key and gives their growth per second.

    Rates have three decimals: more would only cost room in the buffer and on the line.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[datetime, Mapping[str, float]]] = {}

    def rates(
        self, key: str, counters: Mapping[str, float], *, now: datetime
    ) -> dict[str, float] | None:
        """Return the growth per second of each counter, in the order given.

        None on the first reading of a key, when time did not move forward, and when any counter
        went back: then the device was reset and the difference says nothing. `counters` is kept
        until the next reading: do not change it.
        """
        before = self._last.get(key)
        self._last[key] = (now, counters)
        if before is None:
            return None
        read_at, previous = before
        elapsed_seconds = (now - read_at).total_seconds()
        if elapsed_seconds <= 0:
            return None
        rates = {}
        for name, value in counters.items():
            growth = value - previous.get(name, value)
            if growth < 0:
                return None
            rates[name] = round(growth / elapsed_seconds, DECIMALS) if growth else 0.0
        return rates

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
        points, time_ns = [], to_ns(now)
        for device in sorted(counters):
            fields = self.rates(device, counters[device], now=now)
            if fields:
                points.append(Point(measurement, {tag: device}, fields, time_ns))
        if len(self._last) > len(counters):
            self.keep_only(set(counters))
        return points

    def keep_only(self, keys: set[str]) -> None:
        """Forget devices that are gone, so that one that comes back starts afresh."""
        for key in self._last.keys() - keys:
            del self._last[key]
