"""Rows of range queries, as the database returns them, into rows of groups.

A row of a group has its tags, then for each field the list of window starts and the list of values.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from timeseries.sketch import bucket_quantile
from timeseries.store import Aggregate

Row = tuple[Any, ...]
"""One row of a result."""
REDUCERS: dict[Aggregate, Callable[[Sequence[float]], float]] = {
    Aggregate.AVG: lambda values: sum(values) / len(values),
    Aggregate.MIN: min,
    Aggregate.MAX: max,
}
"""The aggregates that `aggregate_windows` can compute."""


def single_windows(rows: Sequence[Row], *, groups: int, start_ns: int) -> list[Row]:
    """Return the rows of a query without steps with a list of one window for each field."""
    return [
        (
            *row[:groups],
            *(one for value in row[groups:] for one in (_list(value, start_ns), _list(value))),
        )
        for row in rows
    ]


def _list(value: float | None, shown: float | None = None) -> list[float]:
    if value is None:
        return []
    return [value if shown is None else shown]


def merge_quantiles(rows: Sequence[Row], *, groups: int, q: float) -> list[Row]:
    """Return a row per group from rows per window: start, bucket keys, counts, min and max."""
    found: list[Row] = []
    for group, windows in groupby(rows, key=lambda row: row[:groups]):
        starts, values = [], []
        for start, keys, counts, least, most in (row[groups:] for row in windows):
            value = bucket_quantile(keys, counts, q)
            if value is not None:
                starts.append(start)
                values.append(max(least, min(most, value)))
        found.append((*group, starts, values))
    return found


def aggregate_windows(
    samples: Sequence[Row], *, groups: int, aggregate: Aggregate
) -> Sequence[Row]:
    """Return a row per group from the rows of `raw_rows_sql`, whose first `groups` are tags."""
    by_group: dict[Row, dict[int, Row]] = defaultdict(dict)
    for row in samples:
        by_group[row[:groups]][row[groups]] = row
    if sum(map(len, by_group.values())) < len(samples):
        return aggregate_windows(
            _merge_windows(samples, groups, aggregate), groups=groups, aggregate=aggregate
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


def _merge_windows(samples: Sequence[Row], groups: int, aggregate: Aggregate) -> list[Row]:
    """Return one row per group and window."""
    by_window: dict[Row, list[Row]] = defaultdict(list)
    for row in samples:
        by_window[row[: groups + 1]].append(row[groups + 1 :])
    return [
        (*key, *(_reduce(values, aggregate) for values in zip(*rows, strict=True)))
        for key, rows in by_window.items()
    ]


def _reduce(values: Sequence[float | None], aggregate: Aggregate) -> float | None:
    some = [value for value in values if value is not None]
    return REDUCERS[aggregate](some) if some else None


def sort_groups(rows: Sequence[Row], *, groups: int) -> list[Row]:
    """Return rows sorted by group, and the lists of each sorted by time."""
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: row[:groups]):
        lists = []
        for times, values in zip(row[groups::2], row[groups + 1 :: 2], strict=True):
            pairs = sorted(zip(times or (), values or (), strict=True))
            lists += [[time for time, _ in pairs], [value for _, value in pairs]]
        found.append((*row[:groups], *lists))
    return found
