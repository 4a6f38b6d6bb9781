"""The store queries of one refresh, within a scope, a span and fixed filters.

Each measurement is queried once per refresh, whatever the number of appliances. After the first
error the other queries fail at once with the same message, so that a page with many panels does not
wait once per panel.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from core.clock import NS_PER_SECOND
from core.errors import UnavailableError
from dash_app.charts import Line, Summary, line_of
from dash_app.context import SharedCache
from dash_app.timerange import Span
from tenants.scope import Scope
from timeseries.points import FieldValue
from timeseries.store import Aggregate, Latest, LatestQuery, RangeQuery, Series, Store

# An older reading is not shown as the present value.
FRESH_SECONDS = 180
# Shorter steps have one sample or two.
MIN_HIDING_STEP_NS = 30 * NS_PER_SECOND
_MINUTE_NS = 60 * NS_PER_SECOND

T = TypeVar("T")
Values = Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True)
class Extremes:
    """The least and the greatest value in each step, by series."""

    by_series: Mapping[Hashable, Mapping[int, tuple[float, float]]]

    def behind(self, line: Line, series: Series) -> Line:
        """Return a series' line with the extremes behind its values."""
        extremes = self.by_series.get(_key(series))
        if not extremes or line.is_dotted:
            return line
        pairs = zip(series.times_ns, series.values, strict=True)
        return replace(line, extremes=[extremes.get(at, (value, value)) for at, value in pairs])


@dataclass(frozen=True, slots=True)
class Result:
    """Series of one measurement, or why there are none; `summaries` are those of `charted`."""

    series: tuple[Series, ...] = ()
    problem: str = ""
    summaries: Mapping[Hashable, Summary] = field(default_factory=dict)

    def of(self, field_name: str) -> tuple[Series, ...]:
        """Return the series of one field, ordered by their tags."""
        return tuple(series for series in self.series if series.field == field_name)

    def line(self, series: Series, *, name: str, color: int) -> Line:
        """Return one of the series as a line with its summary."""
        return replace(line_of(series, name=name, color=color), summary=self.summary(series))

    def summary(self, series: Series) -> Summary | None:
        """Return the figures of one of the series over the whole span."""
        return self.summaries.get(_key(series))


@dataclass(slots=True)
class Telemetry:
    """Queries the store; `problem` is the first error."""

    store: Store
    scope: Scope
    span: Span
    filters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problem: str = ""

    def over_time(
        self,
        measurement: str,
        fields: tuple[str, ...],
        *,
        group_by: tuple[str, ...] = (),
        aggregate: Aggregate = Aggregate.AVG,
    ) -> Result:
        """Return the aggregates of `fields` per step, by group."""
        return self._range(measurement, fields, group_by, aggregate, self.span.step_ns)

    def charted(
        self,
        measurement: str,
        fields: tuple[str, ...],
        *,
        group_by: tuple[str, ...] = (),
        aggregate: Aggregate = Aggregate.AVG,
    ) -> Result:
        """Return the aggregates of `fields` per step, by group, with summaries for a legend."""
        result = self.over_time(measurement, fields, group_by=group_by, aggregate=aggregate)

        def total(function: Aggregate) -> dict[Hashable, float]:
            totals = self.over_span(measurement, fields, group_by=group_by, aggregate=function)
            return {_key(series): series.values[-1] for series in totals.series if series.values}

        overall = total(aggregate)
        if aggregate is Aggregate.AVG:
            least, greatest = total(Aggregate.MIN), total(Aggregate.MAX)
        else:
            least, greatest = (
                {_key(series): reduce(series.values) for series in result.series if series.values}
                for reduce in (min, max)
            )
        keys = overall.keys() & least.keys() & greatest.keys()
        summaries = {key: Summary(least[key], overall[key], greatest[key]) for key in keys}
        return replace(result, summaries=summaries)

    def over_span(
        self,
        measurement: str,
        fields: tuple[str, ...],
        *,
        group_by: tuple[str, ...] = (),
        aggregate: Aggregate = Aggregate.AVG,
    ) -> Result:
        """Return one aggregate of `fields` over the whole span, by group."""
        return self._range(measurement, fields, group_by, aggregate, None)

    def _range(
        self,
        measurement: str,
        fields: tuple[str, ...],
        group_by: tuple[str, ...],
        aggregate: Aggregate,
        step_ns: int | None,
    ) -> Result:
        query = RangeQuery(
            measurement=measurement,
            fields=fields,
            start_ns=self.span.range_start_ns if step_ns is None else self.span.start_ns,
            end_ns=self.span.end_ns,
            step_ns=step_ns,
            aggregate=aggregate,
            tenants=self.scope.tenants,
            filters=self.filters,
            group_by=group_by,
        )
        series = self._read(lambda: self.store.query_range(query))
        return Result(series, self.problem)

    def extremes(
        self,
        measurement: str,
        fields: tuple[str, ...],
        *,
        group_by: tuple[str, ...] = (),
        is_of_many: bool = False,
    ) -> Extremes:
        """Return the least and greatest value of fields in each step, if steps hide samples.

        Args:
            measurement: the measurement.
            fields: its fields.
            group_by: tags that split the result into series.
            is_of_many: each step has the values of several devices, however short it is.
        """
        if self.span.step_ns < MIN_HIDING_STEP_NS and not is_of_many:
            return Extremes({})
        least, greatest = (
            self.over_time(measurement, fields, aggregate=aggregate, group_by=group_by)
            for aggregate in (Aggregate.MIN, Aggregate.MAX)
        )
        highs = {
            _key(series): dict(zip(series.times_ns, series.values, strict=True))
            for series in greatest.series
        }
        return Extremes(
            {
                _key(low): {
                    at: (value, highs[_key(low)].get(at, value))
                    for at, value in zip(low.times_ns, low.values, strict=True)
                }
                for low in least.series
                if _key(low) in highs
            }
        )

    def latest(
        self, measurement: str, fields: tuple[str, ...], *, group_by: tuple[str, ...] = ()
    ) -> tuple[Latest, ...]:
        """Return the latest fresh values of `fields` by group; none without the store."""
        query = LatestQuery(
            measurement=measurement,
            fields=fields,
            since_ns=self.span.end_ns - FRESH_SECONDS * NS_PER_SECOND,
            until_ns=self.span.end_ns + 1,
            tenants=self.scope.tenants,
            filters=self.filters,
            group_by=group_by,
        )
        return self._read(lambda: self.store.latest(query))

    def once_a_minute(self, cache: SharedCache, name: str, read: Callable[[], T], default: T) -> T:
        """Return what `read` returns, shared for a minute; the default without the store.

        Args:
            cache: shares it between viewers with the same scope, filters and span.
            name: of what is read.
            read: queries this telemetry.
            default: the result if the store is unavailable.
        """

        def complete() -> T:
            result = read()
            if self.problem:
                raise UnavailableError(self.problem)
            return result

        width_ns, minute = self.span.end_ns - self.span.start_ns, self.span.end_ns // _MINUTE_NS
        filters = tuple(sorted(self.filters.items()))
        try:
            return cache.get((name, width_ns, minute, self.scope.tenants, filters), complete)
        except UnavailableError:
            return default

    def _read(self, read: Callable[[], Iterable[T]]) -> tuple[T, ...]:
        if not self.problem:
            try:
                return tuple(read())
            except UnavailableError as error:
                self.problem = error.message
        return ()


def _key(series: Series) -> Hashable:
    return series.field, tuple(sorted(series.tags.items()))


def number(values: Values, name: str) -> float | None:
    """Return a field as a number, or None without a value."""
    value = values.get(name)
    if type(value) is float:  # fast path for every GPU of a fleet
        return value
    return None if value is None or isinstance(value, str) else float(value)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, or None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def single(rows: Sequence[Latest]) -> Values:
    """Return the values of the only row, or none."""
    return rows[0].values if rows else {}


def fullest_disk(disks: Sequence[Latest]) -> tuple[float | None, str]:
    """Return the used percentage and the mount point of the fullest file system."""
    disk = max(disks, key=lambda row: number(row.values, "used_percent") or 0.0, default=None)
    return (number(disk.values, "used_percent"), disk.tags.get("mount", "")) if disk else (None, "")


def by_index(text: str) -> tuple[int, str]:
    """Return a sort key that puts GPU 10 after GPU 9."""
    return (int(text), "") if text.isdigit() else (1 << 30, text)
