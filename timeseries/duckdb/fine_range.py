"""A range query in fine steps over one appliance: its samples are read as they are.

In steps of up to a minute there is next to nothing to aggregate. To plan and run the grouping costs
the database more than it costs to put some thousand samples into their windows here.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from timeseries.duckdb.condition import is_near, visible
from timeseries.duckdb.rollups_coverage import MINUTE_NS
from timeseries.duckdb.schema import TIME_COLUMN, Table, field_column, quoted, table_name
from timeseries.duckdb.sql import check_aggregate, clamped, groups_sql, select, window_sql
from timeseries.store import APPLIANCE_TAG, Aggregate, RangeQuery

MAX_WINDOWS = 1_000
MAX_ROWS = 20_000
"""More samples than these are left to the database."""

Row = tuple[Any, ...]

_TIME = quoted(TIME_COLUMN)
_REDUCERS: dict[Aggregate, Callable[[Sequence[float]], float]] = {
    Aggregate.AVG: lambda values: sum(values) / len(values),
    Aggregate.MIN: min,
    Aggregate.MAX: max,
}


def is_fine(query: RangeQuery) -> bool:
    """Return whether a query asks for about the samples of one appliance as they are."""
    step_ns = query.step_ns
    return (
        query.aggregate in _REDUCERS
        and is_near(query.filters)
        and len(query.filters[APPLIANCE_TAG]) == 1
        and query.start_ns >= 0
        and step_ns is not None
        and 0 < step_ns <= MINUTE_NS
        and query.end_ns - query.start_ns <= MAX_WINDOWS * step_ns
    )


def fine_sql(query: RangeQuery, table: Table, fields: Sequence[str]) -> tuple[str, list[object]]:
    """Return the statement and values that read the samples; no text where nothing can match.

    Each row is one sample: the tags of its group, the start of its window, and the fields.
    """
    for name in fields:
        check_aggregate(name, query.aggregate, table)
    condition = visible(table, tenants=query.tenants, filters=query.filters)
    span = (query.start_ns, clamped(query.end_ns))
    condition.add(f"{_TIME} >= ? AND {_TIME} < ?", *span)
    condition.near(query.filters)
    if condition.is_never:
        return "", []
    columns = [*groups_sql(query.group_by, table), window_sql(query, span)]
    columns += [
        f"CAST({quoted(field_column(name))} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    source = f"{quoted(table_name(query.measurement))} {condition.sql}"
    return select(columns, source), condition.values


def windowed(samples: Sequence[Row], *, groups: int, aggregate: Aggregate) -> Sequence[Row]:
    """Return a row for each group: its tags, then for each field the starts and the values.

    Args:
        samples: the rows of `fine_sql`.
        groups: how many of their columns are tags.
        aggregate: how the values in one window become one.
    """
    by_group: dict[Row, dict[int, Row]] = defaultdict(dict)
    for row in samples:
        by_group[row[:groups]][row[groups]] = row
    if sum(map(len, by_group.values())) < len(samples):
        return windowed(
            _one_a_window(samples, groups, aggregate), groups=groups, aggregate=aggregate
        )
    found: list[Row] = []
    for group, windows in sorted(by_group.items()):
        starts = sorted(windows)
        rows = [windows[start] for start in starts]
        lists: list[list[Any]] = []
        for index in range(groups + 1, len(rows[0])):
            values = [row[index] for row in rows]
            if None in values:
                pairs = zip(starts, values, strict=True)
                lists += [
                    [start for start, value in pairs if value is not None],
                    [value for value in values if value is not None],
                ]
            else:
                lists += [starts, values]
        found.append((*group, *lists))
    return found


def ordered(rows: Sequence[Row], *, groups: int) -> list[Row]:
    """Return rows that are groups in their order, and the lists of each by time."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: row[:groups]):
        lists = []
        for times, values in zip(row[groups::2], row[groups + 1 :: 2], strict=True):
            pairs = sorted(zip(times or (), values or (), strict=True))
            lists += [[time for time, _ in pairs], [value for _, value in pairs]]
        found.append((*row[:groups], *lists))
    return found


def _one_a_window(samples: Sequence[Row], groups: int, aggregate: Aggregate) -> list[Row]:
    """Return one row for the samples of each group and window."""
    together: dict[Row, list[Row]] = defaultdict(list)
    for row in samples:
        together[row[: groups + 1]].append(row[groups + 1 :])
    return [
        (*place, *(_reduced(values, aggregate) for values in zip(*rows, strict=True)))
        for place, rows in together.items()
    ]


def _reduced(values: Sequence[float | None], aggregate: Aggregate) -> float | None:
    some = [value for value in values if value is not None]
    return _REDUCERS[aggregate](some) if some else None
