"""Rows of range queries, as the database returns them, into rows of groups.

A row of a group has its tags, then for each field the list of window starts and the list of values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from timeseries.sketch import bucket_quantile
from timeseries.store import Aggregate, Resolution

Row = tuple[Any, ...]
"""One row of a result."""
REDUCERS: dict[Aggregate, np.ufunc] = {
    Aggregate.AVG: np.add,
    Aggregate.MIN: np.fmin,
    Aggregate.MAX: np.fmax,
}
"""The aggregates that `read_windows` can compute, and what reduces the values of a window."""
MAX_ROWS = 20_000
"""The database aggregates more samples than this."""


@dataclass(frozen=True, slots=True)
class Read:
    """A statement, its values, and the fields it answers; an empty text gives no rows.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values.

    Attributes:
        finish: converts the rows of the statement to such rows.
        shortcut: tried first if set; returns such rows, or None if that would take too much memory.
    """

    fields: Sequence[str]
    text: str
    values: Sequence[object] = field(default_factory=list)
    finish: Callable[[Sequence[Row]], Sequence[Row]] = tuple
    shortcut: Callable[[duckdb.DuckDBPyConnection], Sequence[Row] | None] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Samples or roll-ups to aggregate, with their values, by windows of the query."""

    resolution: Resolution
    window: str
    text: str
    values: Sequence[object]


def single_windows(rows: Sequence[Row], *, groups: int, start_ns: int) -> list[Row]:
    """Return the rows of a query without steps with a list of one window for each field."""
    return [
        (
            *row[:groups],
            *(
                column
                for value in row[groups:]
                for column in (_list(value, start_ns), _list(value))
            ),
        )
        for row in rows
    ]


def _list(value: float | None, shown: float | None = None) -> list[float]:
    if value is None:
        return []
    return [value if shown is None else shown]


def merge_quantiles(rows: Sequence[Row], *, groups: int, q: float) -> list[Row]:
    """Return a row per group from rows per window: start, bucket keys, counts, min and max."""
    merged: list[Row] = []
    for group, windows in groupby(rows, key=lambda row: row[:groups]):
        starts, values = [], []
        for start, keys, counts, least, greatest in (row[groups:] for row in windows):
            value = bucket_quantile(keys, counts, q)
            if value is not None:
                starts.append(start)
                values.append(max(least, min(greatest, value)))
        merged.append((*group, starts, values))
    return merged


def read_windows(
    cursor: duckdb.DuckDBPyConnection,
    text: str,
    values: Sequence[object],
    *,
    groups: int,
    aggregate: Aggregate,
) -> list[Row] | None:
    """Return a row per group of a few samples; None if there are too many.

    Args:
        cursor: runs the statement.
        text: a statement whose rows are samples: the tags of the group, the start of the window,
            and a value for each field.
        values: those of the statement.
        groups: the number of tags.
        aggregate: what to compute for each window.
    """
    # Otherwise the database reads the table first, then the files, to keep their order.
    cursor.execute("SET SESSION preserve_insertion_order = false")
    read = cursor.execute(f"{text} LIMIT {MAX_ROWS + 1}", values).fetchnumpy()
    columns_read = list(read.values())
    *tags, starts = columns_read[: groups + 1]
    if len(starts) > MAX_ROWS:
        return None
    fields = [np.ma.filled(column, np.nan) for column in columns_read[groups + 1 :]]
    found_groups, codes = _coded(tags, len(starts))
    order = np.lexsort((starts, codes))
    codes, starts = codes[order], starts[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (codes[1:] != codes[:-1]) | (starts[1:] != starts[:-1])
    windows = np.flatnonzero(is_first)
    starts = starts[windows]
    ends = np.searchsorted(codes[windows], range(len(found_groups)), side="right").tolist()
    columns = [_reduced(column[order], windows, aggregate) for column in fields]
    rows = []
    for group, start, end in zip(found_groups, [0, *ends], ends, strict=False):
        lists = []
        for column in columns:
            is_known = ~np.isnan(column[start:end])
            lists += [starts[start:end][is_known].tolist(), column[start:end][is_known].tolist()]
        rows.append((*group, *lists))
    return rows


def _coded(tags: Sequence[NDArray[np.object_]], count: int) -> tuple[list[Row], NDArray[np.int64]]:
    """Return the sorted groups of rows, and the index of each row's group.

    Rows of a group mostly follow one another: only the first of each run is looked up.
    """
    is_first = np.zeros(count, dtype=bool)
    is_first[:1] = True
    for column in tags:
        is_first[1:] |= column[1:] != column[:-1]
    runs = np.flatnonzero(is_first)
    of_runs = list(zip(*[column[runs].tolist() for column in tags], strict=True))
    of_runs = of_runs or [()] * len(runs)
    groups = sorted(set(of_runs))
    index = {group: at for at, group in enumerate(groups)}
    codes = np.array([index[group] for group in of_runs], dtype=np.int64)
    return groups, np.repeat(codes, np.diff(runs, append=count))


def _reduced(
    values: NDArray[np.float64], windows: NDArray[np.int64], aggregate: Aggregate
) -> NDArray[np.float64]:
    """Return the aggregate of each window, which starts at an index; NaN where it has no value."""
    if len(windows) == len(values):
        return values
    reduce = REDUCERS[aggregate].reduceat
    if aggregate is not Aggregate.AVG:
        return reduce(values, windows)
    is_known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return reduce(np.where(is_known, values, 0.0), windows) / reduce(
            is_known, windows, dtype=np.float64
        )


def sort_groups(rows: Sequence[Row], *, groups: int) -> list[Row]:
    """Return rows sorted by group, and the lists of each sorted by time."""
    ordered: list[Row] = []
    for row in sorted(rows, key=lambda row: row[:groups]):
        lists = []
        for times, values in zip(row[groups::2], row[groups + 1 :: 2], strict=True):
            pairs = sorted(zip(times or (), values or (), strict=True))
            lists += [[time for time, _ in pairs], [value for _, value in pairs]]
        ordered.append((*row[:groups], *lists))
    return ordered
