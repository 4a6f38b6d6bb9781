"""Merging the sketches of roll-ups by group and window, for percentiles over weeks.

Sketches are added up in an array with a row for each group and window and a column for each bucket
key, which takes half the time of grouping millions of buckets in the database.
"""

from collections.abc import Sequence
from itertools import groupby

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeseries.duckdb.query.row_groups import Row
from timeseries.sketch import bucket_value

BATCH_ROWS = 50_000
MAX_CELLS = 4_000_000
"""The most cells of the array, with 8 bytes each; the database merges more."""

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]


def read_sketches(
    cursor: duckdb.DuckDBPyConnection,
    text: str,
    values: Sequence[object],
    *,
    groups: int,
    q: float,
) -> list[Row] | None:
    """Return a row per group, as `row_groups` does; None if there are too many buckets.

    Args:
        cursor: runs the statement.
        text: a statement whose rows are sketches: the tags of the group, the start of the window,
            the list of bucket keys, that of their counts, the least and the greatest value.
        values: those of the statement.
        groups: the number of tags.
        q: the quantile, 0 <= q <= 1.
    """
    merged = _Merged()
    for batch in cursor.sql(text, params=list(values)).to_arrow_reader(BATCH_ROWS):
        if not merged.add(batch, groups):
            return None
    if not merged.rows:
        return []
    pairs = zip(merged.rows, merged.quantiles(q), strict=True)
    return [
        (*group, [row[-1] for row, _ in windows], [value for _, value in windows])
        for group, group_pairs in groupby(sorted(pairs), key=lambda pair: pair[0][:-1])
        if (windows := list(group_pairs))
    ]


class _Merged:
    """The sum of sketches.

    Attributes:
        rows: the tags and the window start of each row of the array, with its index.
    """

    def __init__(self) -> None:
        self.rows: dict[Row, int] = {}
        self._first_key = 0
        self._counts: _Floats = np.zeros((0, 0))
        self._limits: _Floats = np.zeros((2, 0))

    def add(self, batch: pa.RecordBatch, groups: int) -> bool:
        """Add sketches; return False if the array would be too large."""
        if not batch.num_rows:
            return True
        rows = self._row_of(batch.columns[: groups + 1])
        keys_column, counts_column, *limits = batch.columns[groups + 1 :]
        keys = keys_column.flatten().to_numpy()
        if not self._grow(keys):
            return False
        width = self._counts.shape[1]
        sizes = np.diff(keys_column.offsets.to_numpy())
        cells = np.repeat(rows * width - self._first_key, sizes) + keys
        counts = counts_column.flatten().to_numpy()
        sums = np.bincount(cells, weights=counts, minlength=self._counts.size)
        self._counts += sums.reshape(self._counts.shape)
        for of_all, column, ufunc in zip(
            self._limits, limits, (np.minimum, np.maximum), strict=True
        ):
            ufunc.at(of_all, rows, column.to_numpy())
        return True

    def quantiles(self, q: float) -> list[float]:
        """Return a quantile of each row, as `timeseries.sketch.bucket_quantile` does."""
        passed = self._counts.cumsum(axis=1)
        ranks = q * (passed[:, -1:] - 1)
        low, high = (
            np.array(
                [bucket_value(self._first_key + int(at)) for at in (passed <= rank).sum(axis=1)]
            )
            for rank in (np.floor(ranks), np.ceil(ranks))
        )
        values = low + (high - low) * (ranks - np.floor(ranks))[:, 0]
        clipped: list[float] = np.clip(values, *self._limits).tolist()
        return clipped

    def _row_of(self, columns: Sequence[pa.Array]) -> _Ints:
        """Return the row of each sketch; new ones for groups and windows that have none."""
        encoded = [column.dictionary_encode() for column in columns]
        codes = np.zeros(len(columns[0]), dtype=np.int64)
        for column in encoded:
            codes = codes * len(column.dictionary) + column.indices.to_numpy()
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        distinct = zip(
            *[column.take(pa.array(first)).to_pylist() for column in columns], strict=True
        )
        rows = [self.rows.setdefault(row, len(self.rows)) for row in distinct]
        return np.array(rows, dtype=np.int64)[which]

    def _grow(self, keys: NDArray[np.integer]) -> bool:
        """Make room for all rows and some keys; return False if that is too much."""
        height, width = self._counts.shape
        first, last = int(keys.min()), int(keys.max()) + 1
        if width:
            first, last = min(first, self._first_key), max(last, self._first_key + width)
        if len(self.rows) * (last - first) > MAX_CELLS:
            return False
        if (len(self.rows), last - first) == (height, width):
            return True
        before = self._first_key - first if width else 0
        rows = (0, len(self.rows) - height)
        self._counts = np.pad(self._counts, (rows, (before, last - first - before - width)))
        self._limits = np.stack(
            [
                np.pad(limits, rows, constant_values=empty)
                for limits, empty in zip(self._limits, (np.inf, -np.inf), strict=True)
            ]
        )
        self._first_key = first
        return True
