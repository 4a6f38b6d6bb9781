"""SELECT: functions of windows by group, or the samples themselves.

The lines of each column are calculated group by group, and the rows of a group are those of all
times at which any of its columns has a value.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from timeseries.influxql.columns import (
    SELECTORS,
    Reduction,
    calls_of,
    check_columns,
    expanded,
    picker_of,
    reduction_of,
    transformation_of,
)
from timeseries.influxql.conditions import search
from timeseries.influxql.lines import TRANSFORMATIONS, Line, aligned, calculated, filled
from timeseries.influxql.picking import picked_series
from timeseries.influxql.raw import raw_series
from timeseries.influxql.reading import Measurement
from timeseries.influxql.results import Cell, ResultSeries, cell, check_values
from timeseries.influxql.syntax import (
    Binary,
    Call,
    Column,
    Expression,
    Fill,
    Name,
    Number,
    Regex,
    Select,
    StatementError,
    Wildcard,
)
from timeseries.influxql.windows import Floats, GroupedSamples, Integers, segments_of
from timeseries.store import Aggregate

MAX_WINDOWS = 11_000
_OF_STORES = {
    "mean": Aggregate.AVG,
    "sum": Aggregate.SUM,
    "count": Aggregate.COUNT,
    "min": Aggregate.MIN,
    "max": Aggregate.MAX,
    "last": Aggregate.LAST,
    "median": Aggregate.P50,
}
Group = tuple[str, ...]
Lines = Mapping[Group, Line]
Scalar = TypeVar("Scalar", bound=np.generic)


def select(
    statement: Select, measurements: Iterable[Measurement], *, now_ns: int
) -> list[ResultSeries]:
    """Return the series of a SELECT over some measurements.

    Raises:
        StatementError: it can't be evaluated.
    """
    has_functions = check_columns(statement)
    picker = picker_of(statement)
    series: list[ResultSeries] = []
    ordered = list(measurements)
    for measurement in reversed(ordered) if statement.is_descending else ordered:
        tags = group_tags(statement, measurement)
        columns = expanded(
            statement.columns, measurement.fields, sorted({*measurement.tags} - {*tags})
        )
        if not columns or not measurement.fields:
            continue
        if picker is not None:
            series += picked_series(
                statement, _closed(statement, measurement, now_ns), tags, picker
            )
        elif has_functions:
            series += _Windows(statement, measurement, tags, now_ns).series(columns)
        else:
            series += raw_series(statement, measurement, tags, columns)
    return series


def _closed(statement: Select, measurement: Measurement, now_ns: int) -> Measurement:
    """Return a measurement whose windows end now unless the statement says when."""
    where = measurement.where
    if where.end_ns is None and statement.interval_ns:
        return replace(measurement, where=replace(where, end_ns=now_ns))
    return measurement


def group_tags(statement: Select, measurement: Measurement) -> tuple[str, ...]:
    """Return the tags that split the answer into series, sorted."""
    tags: set[str] = set()
    for tag in statement.group_tags:
        if isinstance(tag, Wildcard):
            tags |= {*measurement.tags}
        else:
            tags |= {*search(measurement.tags, tag)} if isinstance(tag, Regex) else {tag}
    return tuple(sorted(tags))


@dataclass
class _Windows:
    """The functions of one statement over one measurement."""

    statement: Select
    measurement: Measurement
    tags: tuple[str, ...]
    now_ns: int
    _reduced: dict[tuple[Call, int], Lines] = field(default_factory=dict)

    def series(self, columns: Sequence[Column]) -> list[ResultSeries]:
        """Return the series of the answer."""
        self.measurement = _closed(self.statement, self.measurement, self.now_ns)
        expressions = [column.expression for column in columns]
        for call in (call for expression in expressions for call in calls_of(expression)):
            self._prepare(call, before=0)
        groups = sorted({group for lines in self._reduced.values() for group in lines})
        groups = groups[self.statement.series.slice()]
        if self.statement.is_descending:
            groups.reverse()
        names = ["time", *(column.alias for column in columns)]
        listed = []
        total = 0
        for group in groups:
            self.measurement.source.check()
            rows = self._rows(expressions, group)
            total += len(rows) * len(names)
            check_values(total)
            if rows:
                tags = dict(zip(self.tags, group, strict=True))
                listed.append(ResultSeries(self.measurement.name, names, rows, tags))
        return listed

    def _prepare(self, call: Call, *, before: int) -> None:
        """Read what a call reduces, some windows earlier if it is below a transformation."""
        first = call.arguments[0]
        if call.function not in TRANSFORMATIONS:
            self._reduced[call, before] = self._reduce(reduction_of(call), before)
        elif isinstance(first, Call):
            before = max(before, TRANSFORMATIONS[call.function].windows_before)
            self._prepare(first, before=before)
        else:
            self._reduced[call, 0] = self._samples(first)

    def _reduce(self, reduction: Reduction, before: int) -> Lines:
        measurement = self._earlier(before)
        interval_ns, offset_ns = self.statement.interval_ns, self.statement.offset_ns
        if reduction.field not in measurement.fields:
            return {}
        aggregate = _OF_STORES.get(reduction.function)
        if aggregate and interval_ns and offset_ns % interval_ns == 0:
            lines = measurement.aggregates(reduction.field, aggregate, interval_ns, self.tags)
            if lines is not None:
                return {
                    self._group(line.tags): Line(np.array(line.times_ns), np.array(line.values))
                    for line in lines
                }
        samples, groups = self._grouped(measurement, reduction.field)
        segments = segments_of(
            samples,
            start_ns=measurement.where.start_ns or 0,
            interval_ns=interval_ns,
            offset_ns=offset_ns,
        )
        if not len(segments.starts):
            return {}
        reduced = reduction.reduce(segments)
        times_ns = segments.windows_ns
        if reduced.times_ns is not None and not interval_ns and self._is_single_selector:
            times_ns = reduced.times_ns
        rows = slice(None) if reduced.is_there is None else reduced.is_there
        return _by_group(segments.groups[rows], times_ns[rows], reduced.values[rows], groups)

    def _samples(self, argument: Expression) -> Lines:
        """Return the samples of a field as lines."""
        name = argument.text if isinstance(argument, Name) else ""
        if name not in self.measurement.fields:
            return {}
        rows, groups = self._grouped(self.measurement, name)
        rows = rows.ordered(rows.times_ns, rows.groups)
        return _by_group(rows.groups, rows.times_ns, rows.values, groups)

    def _grouped(self, measurement: Measurement, name: str) -> tuple[GroupedSamples, list[Group]]:
        samples = measurement.samples(name)
        keys = [self._group(tags) for tags in samples.tags]
        groups = sorted(set(keys))
        index = {group: at for at, group in enumerate(groups)}
        group_of = np.array([index[key] for key in keys], dtype=np.int64)
        return GroupedSamples(group_of[samples.series], samples.times_ns, samples.values), groups

    def _group(self, tags: Mapping[str, str]) -> Group:
        return tuple(tags.get(tag, "") for tag in self.tags)

    def _earlier(self, windows: int) -> Measurement:
        """Return the measurement with some windows more, before the first of the answer."""
        where, width_ns = self.measurement.where, windows * self.statement.interval_ns
        if not width_ns:
            return self.measurement
        if self.statement.is_descending:
            where = replace(where, end_ns=self.measurement.end_ns + width_ns)
        elif where.start_ns is not None:
            where = replace(where, start_ns=where.start_ns - width_ns)
        return replace(self.measurement, where=where)

    @property
    def _is_single_selector(self) -> bool:
        """Whether the answer has the time of a sample: that of the only function."""
        calls = [call for column in self.statement.columns for call in calls_of(column.expression)]
        return len(calls) == 1 and calls[0].function in SELECTORS

    def _rows(self, expressions: Sequence[Expression], group: Group) -> list[tuple[Cell, ...]]:
        """Return the rows of a group: those of all times at which any function has a value."""
        calls = dict.fromkeys(call for own in expressions for call in calls_of(own))
        lines = {call: self._line(call, group, before=0) for call in calls}
        times_ns = next(iter(lines.values())).times_ns
        if any(not np.array_equal(line.times_ns, times_ns) for line in lines.values()):
            times_ns = np.unique(np.concatenate([line.times_ns for line in lines.values()]))
            times_ns = self._ordered(times_ns)
        fill, number = self.statement.fill, self.statement.fill_value
        values = {
            call: line.values
            if line.times_ns is times_ns
            else aligned(line, times_ns, fill, number)
            for call, line in lines.items()
        }
        part = self.statement.rows.slice()
        cells = [
            map(cell, np.broadcast_to(_value(own, values), times_ns.shape)[part].tolist())
            for own in expressions
        ]
        return list(zip(times_ns[part].tolist(), *cells, strict=True))

    def _line(self, call: Call, group: Group, *, before: int) -> Line:
        """Return a function of one group."""
        if call.function not in TRANSFORMATIONS:
            return self._filled(call, group, before)
        transformation, argument = transformation_of(call)
        first = call.arguments[0]
        if isinstance(first, Call):
            inner = self._line(first, group, before=max(before, transformation.windows_before))
        else:
            inner = self._in_order(self._reduced[call, 0].get(group, Line.empty()))
        return transformation.line(inner, argument)

    def _filled(self, call: Call, group: Group, before: int) -> Line:
        line = self._in_order(self._reduced[call, before].get(group, Line.empty()))
        if not self.statement.interval_ns:
            return line
        fill, value = self.statement.fill, self.statement.fill_value
        if call.function == "count" and fill is Fill.NULL:
            fill, value = Fill.NUMBER, 0.0
        return filled(line, self._times_ns(before), fill, value)

    def _times_ns(self, before: int) -> Integers:
        """Return the starts of all windows."""
        interval_ns, offset_ns = self.statement.interval_ns, self.statement.offset_ns
        measurement = self._earlier(before)
        start_ns = measurement.where.start_ns
        if start_ns is None:
            starts = [
                line.times_ns.min() for lines in self._reduced.values() for line in lines.values()
            ]
            start_ns = int(min(starts, default=measurement.end_ns))
        first, last = (
            (at_ns - offset_ns) // interval_ns for at_ns in (start_ns, measurement.end_ns - 1)
        )
        if last - first >= MAX_WINDOWS:
            raise StatementError(
                f"The range has {last - first + 1:,} windows, more than {MAX_WINDOWS:,}. Use a "
                "larger interval, or a shorter range."
            )
        return self._ordered(np.arange(first, last + 1, dtype=np.int64) * interval_ns + offset_ns)

    def _in_order(self, line: Line) -> Line:
        """Return a line in the order of the answer."""
        return Line(self._ordered(line.times_ns), self._ordered(line.values))

    def _ordered(self, array: NDArray[Scalar]) -> NDArray[Scalar]:
        return array[::-1] if self.statement.is_descending else array


def _value(expression: Expression, values: Mapping[Call, Floats]) -> Floats | float:
    """Return a column of functions and arithmetic with their values."""
    if isinstance(expression, Number):
        return expression.value
    if isinstance(expression, Call):
        return values[expression]
    if isinstance(expression, Binary):
        left, right = (_value(side, values) for side in (expression.left, expression.right))
        return calculated(expression.operator, left, right)
    raise StatementError("mixing aggregate and non-aggregate queries is not supported")


def _by_group(
    groups: Integers, times_ns: Integers, values: Floats, names: Sequence[Group]
) -> Lines:
    """Return rows that are sorted by group as lines."""
    bounds = np.searchsorted(groups, np.arange(len(names) + 1))
    return {
        name: Line(times_ns[low:high], values[low:high])
        for name, low, high in zip(names, bounds[:-1], bounds[1:], strict=True)
        if high > low
    }
