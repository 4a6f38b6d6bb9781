"""One refresh's conversation with the store: narrowed to a scope, patient with its absence.

Each measurement is asked once per refresh, whatever the number of appliances. When the store does
not answer, the first fault is kept and the other questions are answered with it at once, so that a
dashboard shows its readable panels instead of waiting once per panel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from core.clock import NS_PER_SECOND
from core.errors import UnavailableError
from dash_app.timerange import Span
from tenants.scope import Scope
from timeseries.points import FieldValue
from timeseries.store import Aggregate, Latest, LatestQuery, RangeQuery, Series, Store

# A reading older than this is history, not a present figure.
FRESH_SECONDS = 180

Filters = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Series of one measurement, or why there are none."""

    series: tuple[Series, ...] = ()
    problem: str = ""

    def of(self, field_name: str) -> tuple[Series, ...]:
        """Return the series of one field, ordered by their tags."""
        return tuple(series for series in self.series if series.field == field_name)


@dataclass(slots=True)
class Telemetry:
    """Asks the store within a scope, a span and fixed filters; remembers the first fault."""

    store: Store
    scope: Scope
    span: Span
    filters: Filters = field(default_factory=dict)
    problem: str = ""

    def over_time(
        self, measurement: str, fields: tuple[str, ...], *, group_by: tuple[str, ...] = ()
    ) -> Answer:
        """Return the averages of `fields` in the span's windows, by group."""
        return self._asked(measurement, fields, group_by, aggregate=Aggregate.AVG)

    def events(
        self, measurement: str, field: str, *, group_by: tuple[str, ...]
    ) -> tuple[Series, ...]:
        """Return how many events fell into each of the span's windows that has any, by group."""
        return self._asked(measurement, (field,), group_by, aggregate=Aggregate.SUM).series

    def latest(
        self, measurement: str, fields: tuple[str, ...], *, group_by: tuple[str, ...] = ()
    ) -> tuple[Latest, ...]:
        """Return the newest fresh values of `fields` by group; none when the store is away."""
        if self.problem:
            return ()
        query = LatestQuery(
            measurement=measurement,
            fields=fields,
            since_ns=self.span.end_ns - FRESH_SECONDS * NS_PER_SECOND,
            until_ns=self.span.end_ns + 1,
            tenants=self.scope.tenants,
            filters=self.filters,
            group_by=group_by,
        )
        try:
            return tuple(self.store.latest(query))
        except UnavailableError as error:
            self.problem = error.message
            return ()

    def _asked(
        self,
        measurement: str,
        fields: tuple[str, ...],
        group_by: tuple[str, ...],
        *,
        aggregate: Aggregate,
    ) -> Answer:
        if self.problem:
            return Answer(problem=self.problem)
        query = RangeQuery(
            measurement=measurement,
            fields=fields,
            start_ns=self.span.start_ns,
            end_ns=self.span.end_ns,
            step_ns=self.span.step_ns,
            aggregate=aggregate,
            tenants=self.scope.tenants,
            filters=self.filters,
            group_by=group_by,
        )
        try:
            return Answer(tuple(self.store.query_range(query)))
        except UnavailableError as error:
            self.problem = error.message
            return Answer(problem=self.problem)


def number(values: Mapping[str, FieldValue], name: str) -> float | None:
    """Return a field as a number, or None when it was not read."""
    value = values.get(name)
    return None if value is None or isinstance(value, str) else float(value)


def mean(values: list[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return sum(values) / len(values) if values else None


def by_index(text: str) -> tuple[int, str]:
    """Return a sort key that puts GPU 10 after GPU 9."""
    return (int(text), "") if text.isdigit() else (1 << 30, text)
