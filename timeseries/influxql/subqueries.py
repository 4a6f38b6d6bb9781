"""Subqueries: the answer of a SELECT as a measurement, which another SELECT reads.

As in InfluxDB, the inner statement has the order of the outer one, its span of time where that is
narrower, its tags of GROUP BY as well as its own, and its windows if it has functions and none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from timeseries.influxql.columns import calls_of
from timeseries.influxql.conditions import Where, check_condition
from timeseries.influxql.lines import TRANSFORMATIONS
from timeseries.influxql.reading import FieldSamples, Measurement
from timeseries.influxql.results import Cell, ResultSeries
from timeseries.influxql.syntax import Call, Fill, Select
from timeseries.store import Aggregate, Series

Span = tuple[int | None, int | None]


@dataclass
class Derived(Measurement):
    """What a subquery answers for one measurement.

    Attributes:
        answer: returns its series within a span.
    """

    answer: Callable[[Span], list[ResultSeries]]
    _answers: dict[Span, list[ResultSeries]] = field(default_factory=dict)

    @cached_property
    def fields(self) -> list[str]:
        """The columns with numbers, sorted."""
        names = {
            name
            for series in self._series()
            for at, name in enumerate(series.columns)
            if at and not any(isinstance(row[at], str) for row in series.rows)
        }
        check_condition(self.where.tags, names - set(self.tags))
        return sorted(names)

    @cached_property
    def tags(self) -> list[str]:
        """The tags that its answer is grouped by, sorted."""
        return sorted({tag for series in self._series() for tag in series.tags})

    def aggregates(
        self,
        field: str,  # noqa: ARG002 - no store has them
        aggregate: Aggregate,  # noqa: ARG002
        interval_ns: int,  # noqa: ARG002
        group_tags: Sequence[str],  # noqa: ARG002
    ) -> list[Series] | None:
        """Return nothing: there are only samples."""
        return None

    def _read(self, field: str) -> FieldSamples:
        tags, lengths, cells = [], list[int](), list[tuple[int, Cell]]()
        for series in self._series():
            if field not in series.columns:
                continue
            at = series.columns.index(field)
            present = [
                (int(row[0] or 0), float(row[at] or 0))
                for row in series.rows
                if row[at] is not None
            ]
            tags.append({tag: text for tag, text in series.tags.items() if text})
            lengths.append(len(present))
            cells += present
        times_ns = np.array([time_ns for time_ns, _ in cells], dtype=np.int64)
        values = np.array([value for _, value in cells], dtype=np.float64)
        return FieldSamples(tags, np.repeat(np.arange(len(tags)), lengths), times_ns, values)

    def _series(self) -> list[ResultSeries]:
        span = self.where.start_ns, self.where.end_ns
        if span not in self._answers:
            self._answers[span] = self.answer(span)
        return [series for series in self._answers[span] if series.name == self.name]


def inherited(inner: Select, outer: Select) -> Select:
    """Return a subquery with what it has of the statement around it."""
    calls = [call for column in inner.columns for call in calls_of(column.expression)]
    statement = replace(
        inner,
        group_tags=(*inner.group_tags, *(tag for tag in outer.group_tags if isinstance(tag, str))),
        is_descending=outer.is_descending,
    )
    if calls and inner.fill is Fill.NULL:
        statement = replace(statement, fill=Fill.NONE)
    if calls and not inner.interval_ns and not any(map(_is_of_samples, calls)):
        statement = replace(statement, interval_ns=outer.interval_ns, offset_ns=outer.offset_ns)
    return statement


def _is_of_samples(call: Call) -> bool:
    return call.function in TRANSFORMATIONS and not isinstance(call.arguments[0], Call)


def within(where: Where, span: Span) -> Where:
    """Return a condition with a span that is no longer than another."""
    starts = [at for at in (where.start_ns, span[0]) if at is not None]
    ends = [at for at in (where.end_ns, span[1]) if at is not None]
    return replace(where, start_ns=max(starts, default=None), end_ns=min(ends, default=None))
