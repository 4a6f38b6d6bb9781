"""Range queries for percentiles over roll-ups, which store sketches; samples are counted alike."""

from collections.abc import Sequence
from functools import partial

from timeseries.duckdb.query.reads import Read, Source
from timeseries.duckdb.query.relation import Relation
from timeseries.duckdb.query.rollup_sql import (
    QUANTILES,
    StoredAggregate,
    aggregate_column,
    bucket_key_sql,
    numeric_column,
)
from timeseries.duckdb.query.row_groups import merge_quantiles
from timeseries.duckdb.query.sketch_merge import read_sketches
from timeseries.duckdb.query.sql import group_columns, select
from timeseries.duckdb.schema import Table
from timeseries.store import RangeQuery, Resolution

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
