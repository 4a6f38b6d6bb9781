"""Noise of the made-up appliance: amounts that vary, and counters that grow into rates."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from random import Random

from core.clock import to_ns
from plugins.procfs import CounterRates
from timeseries.points import FieldValue, Point

PAGE_BYTES = 4096


class Noise:
    """Draws amounts as the kernel counts them: in pages, sectors, packets.

    Args:
        random: where the noise comes from.
        interval_seconds: from one tick to the next.
    """

    def __init__(self, random: Random, *, interval_seconds: float) -> None:
        self.random = random
        self.interval_seconds = interval_seconds
        self._rates = CounterRates()
        self._counters: dict[str, dict[str, float]] = {}

    def pages(self, around: int) -> int:
        """Return an amount of memory in bytes, `around` so many pages."""
        return PAGE_BYTES * round(abs(self.random.gauss(around, around / 10)))

    def grown(self, per_second: float) -> int:
        """Return by how much a counter grows in one interval."""
        mean = per_second * self.interval_seconds
        return max(0, round(self.random.gauss(mean, mean / 5)))

    def rates(
        self, measurement: str, tags: Mapping[str, str], *, now: datetime, grown: Mapping[str, int]
    ) -> Iterator[Point]:
        """Let a device's counters grow and yield a point of its rates, but for the first time."""
        key = f"{measurement}/{'/'.join(tags.values())}"
        before = self._counters.get(key, dict.fromkeys(grown, 0.0))
        counters = {name: before[name] + growth for name, growth in grown.items()}
        self._counters[key] = counters
        if rates := self._rates.rates(key, counters, now=now):
            yield Point(measurement, tags, rates, to_ns(now))


def with_fields(point: Point, fields: Mapping[str, FieldValue]) -> Point:
    """Return a point with fields added."""
    return Point(point.measurement, point.tags, {**point.fields, **fields}, point.time_ns)
