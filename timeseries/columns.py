"""Range queries as arrays: for results of millions of values, of which lists take most time."""

from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """The samples of some series of one field.

    Attributes:
        field: the field.
        tags: the tags of each series, without empty ones.
        lengths: the number of samples of each series.
        times_ns: the times of the samples, of one series after the other; in any order in it.
        values: the values, likewise.
    """

    field: str
    tags: Sequence[Mapping[str, str]]
    lengths: NDArray[np.int64]
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def empty(cls, field: str) -> "SampleColumns":
        """Return no series."""
        integers = np.zeros(0, dtype=np.int64)
        return cls(field, [], integers, integers, np.zeros(0))


Tags = tuple[tuple[str, str], ...]


def samples_of(
    series_of: Mapping[tuple[str, Tags], tuple[list[int], list[float]]],
) -> list[SampleColumns]:
    """Return the times and values of series, by field and tags, as columns."""
    columns = []
    for field in sorted({name for name, _ in series_of}):
        members = {tags: pair for (name, tags), pair in series_of.items() if name == field}
        columns.append(
            SampleColumns(
                field,
                [dict(tags) for tags in members],
                np.array([len(times) for times, _ in members.values()], dtype=np.int64),
                np.array([at for times, _ in members.values() for at in times], dtype=np.int64),
                np.array([at for _, values in members.values() for at in values], dtype=np.float64),
            )
        )
    return columns


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


def samples_by_series(
    rows: pa.Table, keys: pa.DictionaryArray, field: str, tags: Sequence[Iterable[tuple[str, str]]]
) -> SampleColumns:
    """Return the samples in any order as those of each series.

    Args:
        rows: their times `t` and values `v`.
        keys: the series of each.
        field: the field.
        tags: the tags of each series.
    """
    series = keys.indices.to_numpy()
    # Numpy sorts numbers of 16 bits by their digits, in a tenth of the time.
    narrow = np.uint16 if len(tags) <= np.iinfo(np.uint16).max else np.int64
    order = np.argsort(series.astype(narrow), kind="stable")
    return SampleColumns(
        field,
        [{tag: text for tag, text in own if text} for own in tags],
        np.bincount(series, minlength=len(tags)),
        rows.column("t").to_numpy()[order],
        rows.column("v").to_numpy()[order],
    )
