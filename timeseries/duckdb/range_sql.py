"""A range query over samples and roll-ups: which reads answer it.

Where roll-ups have no part in it, the samples answer alone and exactly. Else each source gives
its partials by group and window, and these are merged; percentiles come from sketches then and are
within 1 %.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from timeseries.duckdb.rollups_coverage import Progress, Sources, sources
from timeseries.duckdb.rollups_schema import Part, part_column, rollup_table
from timeseries.duckdb.rollups_sql import (
    MERGES,
    QUANTILES,
    key_sql,
    number,
    raw_partials,
    rolled_partials,
    value_sql,
    within,
)
from timeseries.duckdb.schema import Table, quoted
from timeseries.duckdb.sql import (
    check_aggregate,
    clamped,
    groups_sql,
    lists_sql,
    range_sql,
    sample_source,
    select,
    visible,
    window_sql,
)
from timeseries.store import RangeQuery, Resolution


@dataclass(frozen=True, slots=True)
class Read:
    """A statement, its values, and the fields it answers; no text gives no rows.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values.
    """

    fields: Sequence[str]
    text: str
    values: Sequence[object] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """One table to read from, and the condition with its values."""

    resolution: Resolution
    table: Table
    text: str
    values: Sequence[object]


def range_reads(
    query: RangeQuery, table: Table, fields: Sequence[str], *, progress: Progress
) -> list[Read]:
    """Return the reads that answer a range query over `fields`, which the table has."""
    span = (clamped(query.start_ns), clamped(query.end_ns))
    has_sketch = query.aggregate in QUANTILES
    plan: Sources = {}
    if progress.until and span[0] < span[1]:
        plan = sources(span, step_ns=query.step_ns, has_sketch=has_sketch, progress=progress)
    if not plan.keys() - {Resolution.RAW}:
        return [Read(fields, *range_sql(query, table, fields))]
    for name in fields:
        check_aggregate(name, query.aggregate, table)
    read_from = list(_sources(query, table, fields, plan=plan, progress=progress))
    if not read_from:
        return []
    if has_sketch:
        return [_quantiles(query, table, name, read_from) for name in fields]
    return [_merged(query, table, fields, read_from)]


def _sources(
    query: RangeQuery,
    table: Table,
    fields: Sequence[str],
    *,
    plan: Sources,
    progress: Progress,
) -> Iterator[_Source]:
    for resolution, spans in plan.items():
        known = table if resolution is Resolution.RAW else progress.tables.get(resolution)
        if known is None:
            continue
        condition = visible(known, tenants=query.tenants, filters=query.filters)
        condition.add(within(spans))
        if condition.is_never:
            continue
        if resolution is Resolution.RAW:
            text = sample_source(query, table, fields, condition)
        else:
            text = f"{quoted(rollup_table(query.measurement, resolution))} {condition.sql}"
        yield _Source(resolution, known, text, condition.values)


def _merged(
    query: RangeQuery, table: Table, fields: Sequence[str], read_from: Sequence[_Source]
) -> Read:
    """Return the read that merges the partials `a` and `b` of each field."""
    united = " UNION ALL ".join(
        select(
            [
                *groups_sql(query.group_by, source.table),
                f"{window_sql(query)} AS w",
                *_partials(query, table, fields, source),
            ],
            source.text,
        )
        + " GROUP BY ALL"
        for source in read_from
    )
    names = [f"g{index}" for index in range(len(query.group_by))]
    values = [
        "CAST(" + MERGES[query.aggregate].format(a=f"a{index}", b=f"b{index}")
        + f" AS DOUBLE) AS v{index}"
        for index in range(len(fields))
    ]  # fmt: skip
    windows = select([*names, "w", *values], f"({united})") + " GROUP BY ALL"
    return Read(
        fields,
        lists_sql(windows, names, len(fields)),
        [value for source in read_from for value in source.values],
    )


def _partials(query: RangeQuery, table: Table, fields: Sequence[str], source: _Source) -> list[str]:
    columns = []
    for index, name in enumerate(fields):
        if source.resolution is Resolution.RAW:
            pair = raw_partials(query.aggregate, number(name, table.fields[name]))
        elif name in source.table.fields:
            pair = rolled_partials(query.aggregate, name)
        else:
            pair = ("NULL", "NULL")
        columns += [f"{pair[0]} AS a{index}", f"{pair[1]} AS b{index}"]
    return columns


def _quantiles(query: RangeQuery, table: Table, name: str, read_from: Sequence[_Source]) -> Read:
    """Return the read that merges the buckets of one field; see `timeseries.sketch.quantile`."""
    names = [f"g{index}" for index in range(len(query.group_by))]
    known = [
        source
        for source in read_from
        if source.resolution is Resolution.RAW or name in source.table.fields
    ]
    if not known:
        return Read([name], "")
    by = ", ".join([*names, "w"])
    united = " UNION ALL ".join(_buckets(query, table, name, source) for source in known)
    rank = f"{QUANTILES[query.aggregate]} * (n - 1)"
    buckets = (
        select([by, "k", "sum(c) AS c", "min(lo) AS lo", "max(hi) AS hi"], f"({united})")
        + " GROUP BY ALL"
    )
    ranked = select(
        [
            "*",
            f"sum(c) OVER (PARTITION BY {by} ORDER BY k) AS passed",
            f"sum(c) OVER (PARTITION BY {by}) AS n",
        ],
        f"({buckets})",
    )
    keys = select(
        [
            by,
            f"min(k) FILTER (WHERE passed > floor({rank})) AS low",
            f"min(k) FILTER (WHERE passed > ceil({rank})) AS high",
            f"any_value({rank} - floor({rank})) AS part",
            "min(lo) AS lo",
            "max(hi) AS hi",
        ],
        f"({ranked}) GROUP BY ALL",
    )
    low, high = value_sql("low"), value_sql("high")
    value = f"greatest(lo, least(hi, {low} + ({high} - {low}) * part))"
    windows = select([by, f"CAST({value} AS DOUBLE) AS v0"], f"({keys})")
    return Read(
        [name],
        lists_sql(windows, names, 1),
        [value for source in known for value in source.values],
    )


def _buckets(query: RangeQuery, table: Table, name: str, source: _Source) -> str:
    shared = [*groups_sql(query.group_by, source.table), f"{window_sql(query)} AS w"]
    names = [f"g{index}" for index in range(len(query.group_by))]
    if source.resolution is Resolution.RAW:
        column = number(name, table.fields[name])
        counted = [
            *shared, f"{key_sql(column)} AS k", f"count({column}) AS c",
            f"CAST(min({column}) AS DOUBLE) AS lo", f"CAST(max({column}) AS DOUBLE) AS hi",
        ]  # fmt: skip
        return f"({select(counted, source.text)} GROUP BY ALL HAVING k IS NOT NULL)"
    each = [
        *shared,
        f"unnest(map_entries({part_column(Part.SKETCH, name)})) AS e",
        f"CAST({part_column(Part.MIN, name)} AS DOUBLE) AS lo",
        f"CAST({part_column(Part.MAX, name)} AS DOUBLE) AS hi",
    ]
    return select(
        [*names, "w", "e.key AS k", "e.value AS c", "lo", "hi"], f"({select(each, source.text)})"
    )
