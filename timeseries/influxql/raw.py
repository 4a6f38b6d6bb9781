"""SELECT of fields: the samples themselves, with what is calculated of those of the same time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from timeseries.influxql.lines import calculated
from timeseries.influxql.reading import Measurement
from timeseries.influxql.results import Cell, ResultSeries, cell, check_values
from timeseries.influxql.syntax import (
    Binary,
    Column,
    Expression,
    Name,
    Number,
    Select,
    StatementError,
)
from timeseries.influxql.windows import Floats, Integers

Tags = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Table:
    """All rows, sorted as the answer has them.

    Attributes:
        tags: the tags of each series.
        groups: the group of each row.
        series: the series of each row.
        times_ns: the time of each row.
        values: the values of each field, NaN where a row has none.
    """

    tags: Sequence[Tags]
    groups: Integers
    series: Integers
    times_ns: Integers
    values: Mapping[str, Floats]


def raw_series(
    statement: Select,
    measurement: Measurement,
    group_tags: Sequence[str],
    columns: Sequence[Column],
) -> list[ResultSeries]:
    """Return the series of an answer without functions."""
    names = {name for column in columns for name in _names_of(column.expression)}
    fields = sorted(names & {*measurement.fields})
    if not fields:
        return []
    table = _table(measurement, fields, group_tags, is_descending=statement.is_descending)
    heads = ["time", *(column.alias for column in columns)]
    groups = np.flatnonzero(np.diff(table.groups)) + 1
    listed = []
    total = 0
    members_of = np.split(np.arange(len(table.groups)), groups)
    if statement.is_descending:
        members_of.reverse()
    members_of = members_of[statement.series.slice()]
    for members in reversed(members_of) if statement.is_descending else members_of:
        rows = members[statement.rows.slice()]
        total += len(rows) * len(heads)
        check_values(total)
        cells = [_cells(column.expression, table, rows) for column in columns]
        values = list(zip(table.times_ns[rows].tolist(), *cells, strict=True))
        if values:
            own = table.tags[table.series[rows[0]]]
            tags = {tag: own.get(tag, "") for tag in group_tags}
            listed.append(ResultSeries(measurement.name, heads, values, tags))
    return listed


def _names_of(expression: Expression) -> set[str]:
    if isinstance(expression, Binary):
        return _names_of(expression.left) | _names_of(expression.right)
    return {expression.text} if isinstance(expression, Name) else set()


def _table(
    measurement: Measurement,
    fields: Sequence[str],
    group_tags: Sequence[str],
    *,
    is_descending: bool,
) -> _Table:
    parts = [measurement.samples(field) for field in fields]
    keys = {tuple(sorted(tags.items())) for part in parts for tags in part.tags}
    # The order of series is that of their groups, then that of all of their tags.
    ordered = sorted(keys, key=lambda key: (_group_key(dict(key), group_tags), key))
    rank = {key: at for at, key in enumerate(ordered)}
    groups = {key: _group_key(dict(key), group_tags) for key in ordered}
    group_rank = {group: at for at, group in enumerate(dict.fromkeys(groups.values()))}
    series = np.concatenate(
        [
            np.array([rank[tuple(sorted(tags.items()))] for tags in part.tags], dtype=np.int64)[
                part.series
            ]
            for part in parts
        ]
    )
    times_ns = np.concatenate([part.times_ns for part in parts])
    group_of = np.array([group_rank[groups[key]] for key in ordered], dtype=np.int64)
    order = np.lexsort((series, times_ns, group_of[series]))
    if is_descending:
        order = order[::-1]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (np.diff(series[order]) != 0) | (np.diff(times_ns[order]) != 0)
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = np.cumsum(is_new) - 1
    values: dict[str, Floats] = {}
    start = 0
    for field, part in zip(fields, parts, strict=True):
        values[field] = np.full(int(is_new.sum()), np.nan)
        values[field][row_of[start : start + len(part.values)]] = part.values
        start += len(part.values)
    first = order[is_new]
    return _Table(
        [dict(key) for key in ordered],
        group_of[series[first]],
        series[first],
        times_ns[first],
        values,
    )


def _group_key(tags: Tags, group_tags: Sequence[str]) -> tuple[str, ...]:
    return tuple(tags.get(tag, "") for tag in group_tags)


def _cells(expression: Expression, table: _Table, rows: Integers) -> list[Cell]:
    if isinstance(expression, Name) and expression.text not in table.values:
        texts = [tags.get(expression.text) for tags in table.tags]
        return [texts[series] for series in table.series[rows].tolist()]
    values = np.broadcast_to(_value(expression, table, rows), rows.shape)
    return [cell(value) for value in values.tolist()]


def _value(expression: Expression, table: _Table, rows: Integers) -> Floats | float:
    if isinstance(expression, Number):
        return expression.value
    if isinstance(expression, Binary):
        left, right = (_value(side, table, rows) for side in (expression.left, expression.right))
        return calculated(expression.operator, left, right)
    if isinstance(expression, Name) and expression.text in table.values:
        return table.values[expression.text][rows]
    if isinstance(expression, Name):
        return np.full(rows.shape, np.nan)
    raise StatementError("A column is a field, a tag, a number, or arithmetic of fields.")
