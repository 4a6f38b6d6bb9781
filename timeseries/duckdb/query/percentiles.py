"""Range queries for percentiles over roll-ups, which store sketches; samples are counted alike.

Over weeks, sketches are added up in an array with a row for each group and window and a column for
each bucket key, which takes half the time of grouping millions of buckets in the database.
"""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeseries.duckdb.query.relation import Relation
from timeseries.duckdb.query.rollup_sql import (
    QUANTILES,
    StoredAggregate,
    aggregate_column,
    bucket_key_sql,
    numeric_column,
)
from timeseries.duckdb.query.row_groups import Read, Row, Source, merge_quantiles
from timeseries.duckdb.query.sql import group_columns, select
from timeseries.duckdb.schema import Table
from timeseries.sketch import bucket_value
from timeseries.store import RangeQuery, Resolution

BATCH_ROWS = 50_000
MAX_CELLS = 4_000_000
"""The most cells of the array, with 8 bytes each; the database merges more."""

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
_OF_SKETCHES = (StoredAggregate.SKETCH, StoredAggregate.MIN, StoredAggregate.MAX)


def quantiles_read(
    query: RangeQuery, relation: Relation, name: str, sources: Sequence[Source]
) -> Read:
    """Return the read that merges the sketch buckets of one field."""
    names = [f"g{index}" for index in range(len(query.group_by))]
    parts, values = [], list[object]()
    for source in sources:
        counted = _bucket_counts(query, relation.table, name, source)
        parts += counted
        values += [*source.values] * len(counted)
    united = " UNION ALL ".join(parts)
    merged = ["CAST(sum(c) AS BIGINT) AS c", "min(lo) AS lo", "max(hi) AS hi"]
    buckets = select([*names, "w", "k", *merged], f"({united})") + " GROUP BY ALL"
    lists = [
        f"coalesce(list({column} ORDER BY k) FILTER (WHERE k IS NOT NULL), [])"
        for column in ("k", "c")
    ]
    order = ", ".join(str(index + 1) for index in range(len(names) + 1))
    q = QUANTILES[query.aggregate]
    sketches = " UNION ALL ".join(
        _sketches(query, relation.table, name, source) for source in sources
    )
    return Read(
        [name],
        select([*names, "w", *lists, "min(lo)", "max(hi)"], f"({buckets})")
        + f" GROUP BY ALL ORDER BY {order}",
        values,
        partial(merge_quantiles, groups=len(names), q=q),
        partial(
            read_sketches,
            text=sketches,
            values=[value for source in sources for value in source.values],
            groups=len(names),
            q=q,
        ),
    )


def _sketches(query: RangeQuery, table: Table, name: str, source: Source) -> str:
    """Return the statement for the sketches of one source: keys, counts, least and greatest."""
    if source.resolution is Resolution.RAW:
        (counted,) = _bucket_counts(query, table, name, source)
        names = [f"g{index}" for index in range(len(query.group_by))]
        lists = ["CAST(list(k) AS INTEGER[])", "CAST(list(c) AS UINTEGER[])", "min(lo)", "max(hi)"]
        return select([*names, "w", *lists], f"({counted})") + " GROUP BY ALL"
    sketch, least, greatest = (aggregate_column(part, name) for part in _OF_SKETCHES)
    columns = [
        *group_columns(query.group_by, table),
        f"{source.window} AS w",
        f"map_keys({sketch}) AS k",
        f"map_values({sketch}) AS c",
        f"CAST({least} AS DOUBLE) AS lo",
        f"CAST({greatest} AS DOUBLE) AS hi",
    ]
    return select(columns, f"{source.text} WHERE {sketch} IS NOT NULL")


def _bucket_counts(query: RangeQuery, table: Table, name: str, source: Source) -> list[str]:
    """Return statements of one source: the counts of buckets `k`, and the least and greatest value.

    Of roll-ups these are apart, with no bucket: to take them along with millions of buckets costs
    a fifth of the time.
    """
    shared = [*group_columns(query.group_by, table), f"{source.window} AS w"]
    if source.resolution is Resolution.RAW:
        column = numeric_column(name, table.fields[name])
        counted = [
            *shared,
            f"{bucket_key_sql(column)} AS k",
            "count(*) AS c",
            *_limits(column, column),
        ]
        groups = ", ".join(str(index + 1) for index in range(len(shared) + 1))
        return [
            select(counted, f"{source.text} WHERE {column} IS NOT NULL") + f" GROUP BY {groups}"
        ]
    sketch, least, greatest = (aggregate_column(part, name) for part in _OF_SKETCHES)
    buckets = [*shared, f"unnest(map_keys({sketch})) AS k", f"unnest(map_values({sketch})) AS c"]
    counts = ["* EXCLUDE c", "sum(c) AS c", "NULL AS lo", "NULL AS hi"]
    limits = [*shared, "NULL AS k", "NULL AS c", *_limits(least, greatest)]
    return [
        select(counts, f"({select(buckets, source.text)})") + " GROUP BY ALL",
        select(limits, f"{source.text} WHERE {least} IS NOT NULL") + " GROUP BY ALL",
    ]


def _limits(least: str, greatest: str) -> tuple[str, str]:
    return f"CAST(min({least}) AS DOUBLE) AS lo", f"CAST(max({greatest}) AS DOUBLE) AS hi"


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
