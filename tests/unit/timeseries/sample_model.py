"""A model of a store in a dict, and what each read of a store has to return of it.

The last write of a series and instant counts, field by field.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from core.clock import NS_PER_SECOND
from timeseries.points import FieldValue, Point
from timeseries.store import (
    IDENTITY_TAGS,
    Aggregate,
    Extent,
    Latest,
    LatestQuery,
    RangeQuery,
    ScanQuery,
    Series,
)

SeriesKey: TypeAlias = tuple[tuple[str, str], ...]
"""The tags of a series with the identity, sorted."""
_Numbers = Sequence[tuple[int, float]]
_QUANTILES = {Aggregate.P50: 0.5, Aggregate.P95: 0.95, Aggregate.P99: 0.99}


@np.errstate(over="ignore")
def _stddev(values: list[float]) -> float:
    """Return the standard deviation; infinity where a square is beyond what a float can be."""
    return float(np.std(values))


def _of_values(reduce: Callable[[list[float]], float]) -> Callable[[_Numbers], float]:
    return lambda numbers: float(reduce([value for _, value in numbers]))


_REDUCERS: dict[Aggregate, Callable[[_Numbers], float]] = {
    Aggregate.AVG: _of_values(np.mean),
    Aggregate.MIN: _of_values(min),
    Aggregate.MAX: _of_values(max),
    Aggregate.SUM: _of_values(math.fsum),
    Aggregate.COUNT: _of_values(len),
    Aggregate.LAST: lambda numbers: max(numbers)[1],
    Aggregate.STDDEV: _of_values(_stddev),
}


class SampleModel:
    """The samples of one measurement."""

    def __init__(self) -> None:
        self._fields: dict[tuple[int, SeriesKey], dict[str, FieldValue]] = {}

    def write(self, points: Iterable[Point], identity: Mapping[str, str]) -> None:
        """Write points in order."""
        for point in points:
            series = tuple(sorted({**point.tags, **identity}.items()))
            self._fields.setdefault((point.time_ns, series), {}).update(point.fields)

    def scan(self, query: ScanQuery) -> list[tuple[int, SeriesKey, dict[str, FieldValue]]]:
        """Return the points of a scan, sorted."""
        return [
            (time_ns, series, self._fields[time_ns, series])
            for time_ns, series in sorted(self._fields)
            if query.start_ns <= time_ns < query.end_ns
            and (query.tenants is None or dict(series)["tenant"] in query.tenants)
        ]

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan."""
        times_ns = [time_ns for time_ns, _, _ in self.scan(query)]
        return Extent(times_ns[0], times_ns[-1] + 1, len(times_ns)) if times_ns else None

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return the series of a range query."""
        return [
            Series(
                name,
                dict(zip(query.group_by, group, strict=True)),
                list(windows),
                list(windows.values()),
            )
            for name in sorted(query.fields)
            for group, windows in sorted(self._windows(query, name).items())
        ]

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group of which only one series is newest."""
        newest: dict[tuple[str, ...], Latest] = {}
        for time_ns, series, fields in self._scanned(query.measurement, query.tenants):
            present = {name: fields[name] for name in query.fields if name in fields}
            if time_ns >= query.since_ns and present:
                group = _group(series, query.group_by)
                before = newest.get(group, Latest({}, 0, {}))
                tags = dict(zip(query.group_by, group, strict=True))
                newest[group] = Latest(tags, time_ns, {**before.values, **present})
        return [newest[group] for group in sorted(newest)]

    def _scanned(
        self, measurement: str, tenants: tuple[str, ...] | None
    ) -> list[tuple[int, SeriesKey, dict[str, FieldValue]]]:
        everything = ScanQuery(
            measurement=measurement, start_ns=-(2**63), end_ns=2**63, tenants=tenants
        )
        return self.scan(everything)

    def _windows(self, query: RangeQuery, name: str) -> dict[tuple[str, ...], dict[int, float]]:
        windows_of: dict[tuple[str, ...], dict[int, dict[SeriesKey, list[tuple[int, float]]]]] = {}
        for time_ns, series, fields in self._scanned(query.measurement, query.tenants):
            if query.start_ns <= time_ns < query.end_ns and name in fields:
                step = query.step_ns
                start_ns = time_ns // step * step if step else query.start_ns
                windows = windows_of.setdefault(_group(series, query.group_by), {})
                of_series = windows.setdefault(start_ns, {})
                of_series.setdefault(series, []).append((time_ns, float(fields[name])))
        values = {
            group: {
                at: value
                for at, of_series in windows.items()
                if (value := _aggregate(query.aggregate, of_series)) is not None
            }
            for group, windows in windows_of.items()
        }
        return {group: windows for group, windows in values.items() if windows}


def _group(series: SeriesKey, tags: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict(series).get(tag, "") for tag in tags)


def _aggregate(
    aggregate: Aggregate, of_series: Mapping[SeriesKey, list[tuple[int, float]]]
) -> float | None:
    numbers = [number for samples in of_series.values() for number in samples]
    if aggregate in _QUANTILES:
        return float(np.quantile([value for _, value in numbers], _QUANTILES[aggregate]))
    if aggregate in _REDUCERS:
        return _REDUCERS[aggregate](numbers)
    grown = [_growth(aggregate, samples) for samples in of_series.values() if len(samples) > 1]
    return math.fsum(grown) if grown else None


def _growth(aggregate: Aggregate, numbers: Sequence[tuple[int, float]]) -> float:
    values = [value for _, value in numbers]
    if aggregate is Aggregate.CHANGE:
        return values[-1] - values[0]
    steps = pairwise(values)
    increase = math.fsum(after - before if after >= before else after for before, after in steps)
    if aggregate is Aggregate.INCREASE:
        return increase
    return increase * NS_PER_SECOND / (numbers[-1][0] - numbers[0][0])


def is_same_value(value: FieldValue, other: FieldValue) -> bool:
    """Return whether two values are the same, with their type and the sign of zero."""
    return type(value) is type(other) and repr(value) == repr(other)


def identity_of(tenant: str, appliance: str) -> dict[str, str]:
    """Return the identity tags of a sender."""
    return dict(zip(IDENTITY_TAGS, (tenant, appliance), strict=True))
