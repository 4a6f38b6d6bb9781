"""Range queries as arrays: for results of millions of values, of which lists take most time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeseries.store import Series


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """All series of one field, in any order.

    Attributes:
        field: the field.
        groups: the values of the tags of each series.
        lengths: the number of values of each series.
        times_ns: the starts of the windows, of one series after the other; in any order in it.
        values: the values, likewise.
    """

    field: str
    groups: Sequence[tuple[str, ...]]
    lengths: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]


def columns_of(series: Iterable[Series]) -> list[SeriesColumns]:
    """Return series, ordered by field, as columns."""
    columns = []
    for field, group in groupby(series, key=lambda item: item.field):
        members = list(group)
        columns.append(
            SeriesColumns(
                field,
                [tuple(item.tags.values()) for item in members],
                np.array([len(item.values) for item in members], dtype=np.int64),
                np.array([at for item in members for at in item.times_ns], dtype=np.int64),
                np.array([value for item in members for value in item.values], dtype=np.float64),
            )
        )
    return columns


def columns_of_table(table: pa.Table, fields: Sequence[str]) -> list[SeriesColumns]:
    """Return the rows of a table as columns.

    A row is a group: its tags, then for each field the list of window starts and that of values.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

    width = table.num_columns - 2 * len(fields)
    tags = [column.to_pylist() for column in table.columns[:width]]
    groups = list(zip(*tags, strict=True)) if tags else [()] * table.num_rows
    columns = []
    for index, field in enumerate(fields):
        times, values = table.columns[width + 2 * index : width + 2 * index + 2]
        # A field without values in a group has no list.
        lengths = pc.fill_null(pc.list_value_length(times), 0).to_numpy().astype(np.int64)
        numbers = (pc.list_flatten(array).to_numpy() for array in (times, values))
        columns.append(SeriesColumns(field, groups, lengths, *numbers))
    return columns
