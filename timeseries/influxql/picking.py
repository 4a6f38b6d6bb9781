"""Functions with several rows for a window: `top`, `bottom` and `distinct`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timeseries.influxql.reading import FieldSamples, Measurement
from timeseries.influxql.results import Cell, ResultSeries, cell, check_values
from timeseries.influxql.syntax import Call, Column, Name, Number, Select
from timeseries.influxql.windows import Floats, Integers, windows_of


@dataclass(frozen=True, slots=True)
class _Rows:
    """Samples with the group, the window and the series of each.

    Attributes:
        groups: the group.
        windows_ns: the start of the window.
        series: the series.
    """

    groups: Integers
    windows_ns: Integers
    series: Integers
    times_ns: Integers
    values: Floats

    def at(self, rows: Integers) -> "_Rows":
        return _Rows(
            self.groups[rows],
            self.windows_ns[rows],
            self.series[rows],
            self.times_ns[rows],
            self.values[rows],
        )


def picked_series(
    statement: Select, measurement: Measurement, group_tags: Sequence[str], column: Column
) -> list[ResultSeries]:
    """Return the series of an answer whose only column is a function with several rows."""
    call = column.expression
    assert isinstance(call, Call)  # noqa: S101 - as checked before
    field, *others = call.arguments
    if not isinstance(field, Name) or field.text not in measurement.fields:
        return []
    tags = [argument.text for argument in others if isinstance(argument, Name)]
    samples = measurement.samples(field.text)
    rows, groups = _rows_of(statement, measurement, samples, group_tags)
    if call.function == "distinct":
        rows = _distinct(rows)
    else:
        count = others[-1]
        limit = int(count.value) if isinstance(count, Number) else 0
        tag_sets = _tag_sets(samples, tags)[rows.series] if tags else None
        rows = _extreme(rows, limit, tag_sets, is_bottom=call.function == "bottom")
    names = ["time", column.alias, *tags]
    bounds = np.searchsorted(rows.groups, np.arange(len(groups) + 1)).tolist()
    spans = [
        (group, low, high)
        for group, low, high in zip(groups, bounds[:-1], bounds[1:], strict=True)
        if high > low
    ][statement.series.slice()]
    listed = []
    total = 0
    for group, low, high in reversed(spans) if statement.is_descending else spans:
        at = np.arange(low, high)
        own = rows.at((at[::-1] if statement.is_descending else at)[statement.rows.slice()])
        total += len(own.times_ns) * len(names)
        check_values(total)
        cells: list[Sequence[Cell]] = [list(map(cell, own.values.tolist()))]
        cells += [[samples.tags[series].get(tag) for series in own.series.tolist()] for tag in tags]
        values = list(zip(own.times_ns.tolist(), *cells, strict=True))
        if values:
            shown = dict(zip(group_tags, group, strict=True))
            listed.append(ResultSeries(measurement.name, names, values, shown))
    return listed


def _rows_of(
    statement: Select, measurement: Measurement, samples: FieldSamples, group_tags: Sequence[str]
) -> tuple[_Rows, list[tuple[str, ...]]]:
    """Return the samples of a field, and the values of the tags of each group."""
    keys = [tuple(tags.get(tag, "") for tag in group_tags) for tags in samples.tags]
    groups = sorted(set(keys))
    index = {group: at for at, group in enumerate(groups)}
    group_of = np.array([index[key] for key in keys], dtype=np.int64)
    windows_ns = windows_of(
        samples.times_ns,
        start_ns=measurement.where.start_ns or 0,
        interval_ns=statement.interval_ns,
        offset_ns=statement.offset_ns,
    )
    rows = _Rows(
        group_of[samples.series], windows_ns, samples.series, samples.times_ns, samples.values
    )
    return rows, groups


def _tag_sets(samples: FieldSamples, tags: Sequence[str]) -> Integers:
    """Return a number for each series: the same for those with the same values of some tags."""
    keys = [tuple(own.get(tag) for tag in tags) for own in samples.tags]
    index = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    return np.array([index[key] for key in keys], dtype=np.int64)


def _distinct(rows: _Rows) -> _Rows:
    """Return each value of a window once, in the order in which they first came."""
    ordered = rows.at(np.lexsort((rows.times_ns, rows.values, rows.windows_ns, rows.groups)))
    first = ordered.at(_first_of(ordered.groups, ordered.windows_ns, ordered.values))
    first = first.at(np.lexsort((first.values, first.times_ns, first.windows_ns, first.groups)))
    return _Rows(first.groups, first.windows_ns, first.series, first.windows_ns, first.values)


def _extreme(rows: _Rows, limit: int, tag_sets: Integers | None, *, is_bottom: bool) -> _Rows:
    """Return the greatest or least samples of a window, of each tag set at most one."""
    ranked = rows.values if is_bottom else -rows.values
    if tag_sets is not None:
        order = np.lexsort((rows.times_ns, ranked, tag_sets, rows.windows_ns, rows.groups))
        ordered = rows.at(order)
        best = order[_first_of(ordered.groups, ordered.windows_ns, tag_sets[order])]
        rows, ranked = rows.at(best), ranked[best]
    ordered = rows.at(np.lexsort((rows.times_ns, ranked, rows.windows_ns, rows.groups)))
    starts = _first_of(ordered.groups, ordered.windows_ns)
    lengths = np.diff(np.append(starts, len(ordered.values)))
    ranks = np.arange(len(ordered.values)) - np.repeat(starts, lengths)
    chosen = ordered.at(np.flatnonzero(ranks < limit))
    return chosen.at(np.lexsort((chosen.series, chosen.times_ns, chosen.groups)))


def _first_of(*columns: Integers | Floats) -> Integers:
    """Return where any of the columns has another value than in the row before."""
    is_first = np.ones(len(columns[0]), dtype=bool)
    is_first[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(is_first)
