"""A range query over samples and roll-ups: which reads answer it.

Where roll-ups have no part in it, the samples answer alone and exactly. Else each source gives
its partials by group and window, and these are merged; percentiles come from sketches then and are
within 1 %.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from timeseries.duckdb.condition import is_near, visible
from timeseries.duckdb.fine_range import MAX_ROWS, fine_sql, is_fine, ordered, windowed
from timeseries.duckdb.rollups_coverage import Progress, Sources, sources
from timeseries.duckdb.rollups_schema import Part, part_column, rollup_table
from timeseries.duckdb.rollups_sql import (
    MERGES,
    QUANTILES,
    key_sql,
    number,
    raw_partials,
    rolled_partials,
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
    window_sql,
)
from timeseries.sketch import quantile_of_buckets
from timeseries.store import RangeQuery, Resolution

Row = tuple[Any, ...]
"""One row of an answer."""


@dataclass(frozen=True, slots=True)
class Read:
    """A statement, its values, and the fields it answers; no text gives no rows.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values.

    Attributes:
        finish: makes such rows of those that the statement gives.
        plain: asked first where there is one; answers unless there are too many samples.
    """

    fields: Sequence[str]
    text: str
    values: Sequence[object] = field(default_factory=list)
    finish: Callable[[Sequence[Row]], Sequence[Row]] = tuple
    plain: "PlainRead | None" = None


@dataclass(frozen=True, slots=True)
class PlainRead:
    """A statement that reads samples as they are, and its values; no text gives none.

    Attributes:
        finish: makes rows as those of a `Read` of the samples.
        most_rows: with more samples, this is not the way to answer.
    """

    text: str
    values: Sequence[object]
    finish: Callable[[Sequence[Row]], Sequence[Row]]
    most_rows: int


@dataclass(frozen=True, slots=True)
class _Source:
    """One table to read from, and the condition with its values."""

    resolution: Resolution
    table: Table
    window: str
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
        return [_from_samples(query, table, fields)]
    for name in fields:
        check_aggregate(name, query.aggregate, table)
    read_from = list(_sources(query, table, fields, plan=plan, progress=progress))
    if not read_from:
        return []
    if has_sketch:
        return [_quantiles(query, table, name, read_from) for name in fields]
    return [_merged(query, table, fields, read_from)]


def _from_samples(query: RangeQuery, table: Table, fields: Sequence[str]) -> Read:
    """Return the read where roll-ups have no part in the answer."""
    groups = len(query.group_by)
    read = Read(fields, *range_sql(query, table, fields))
    if is_near(query.filters):
        # To order the little that one appliance has is dear for the database.
        read = replace(read, finish=partial(ordered, groups=groups))
    if not is_fine(query):
        return read
    finish = partial(windowed, groups=groups, aggregate=query.aggregate)
    return replace(read, plain=PlainRead(*fine_sql(query, table, fields), finish, MAX_ROWS))


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
            condition.near(query.filters)
            text = sample_source(query, table, fields, condition)
        else:
            text = f"{quoted(rollup_table(query.measurement, resolution))} {condition.sql}"
        window = window_sql(query, (spans[0][0], spans[-1][1]))
        yield _Source(resolution, known, window, text, condition.values)


def _merged(
    query: RangeQuery, table: Table, fields: Sequence[str], read_from: Sequence[_Source]
) -> Read:
    """Return the read that merges the partials `a` and `b` of each field."""
    united = " UNION ALL ".join(
        select(
            [
                *groups_sql(query.group_by, source.table),
                f"{source.window} AS w",
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
    """Return the read that merges the buckets of one field; what is left to do has few rows."""
    names = [f"g{index}" for index in range(len(query.group_by))]
    known = [
        source
        for source in read_from
        if source.resolution is Resolution.RAW or name in source.table.fields
    ]
    if not known:
        return Read([name], "")
    united = " UNION ALL ".join(_buckets(query, table, name, source) for source in known)
    counted = ["CAST(sum(c) AS BIGINT) AS c", "min(lo) AS lo", "max(hi) AS hi"]
    buckets = select([*names, "w", "k", *counted], f"({united})") + " GROUP BY ALL"
    lists = ["list(k ORDER BY k)", "list(c ORDER BY k)", "min(lo)", "max(hi)"]
    order = ", ".join(str(index + 1) for index in range(len(names) + 1))
    return Read(
        [name],
        select([*names, "w", *lists], f"({buckets})") + f" GROUP BY ALL ORDER BY {order}",
        [value for source in known for value in source.values],
        partial(quantiles_by_group, groups=len(names), q=QUANTILES[query.aggregate]),
    )


def quantiles_by_group(rows: Sequence[Row], *, groups: int, q: float) -> list[Row]:
    """Return a row for each group of rows that are a window: start, keys, counts, min and max."""
    found: list[Row] = []
    for group, windows in groupby(rows, key=lambda row: row[:groups]):
        starts, values = [], []
        for start, keys, counts, least, most in (row[groups:] for row in windows):
            value = quantile_of_buckets(keys, counts, q)
            if value is not None:
                starts.append(start)
                values.append(max(least, min(most, value)))
        found.append((*group, starts, values))
    return found


def _buckets(query: RangeQuery, table: Table, name: str, source: _Source) -> str:
    shared = [*groups_sql(query.group_by, source.table), f"{source.window} AS w"]
    if source.resolution is Resolution.RAW:
        column = number(name, table.fields[name])
        counted = [
            *shared, f"{key_sql(column)} AS k", "count(*) AS c",
            f"CAST(min({column}) AS DOUBLE) AS lo", f"CAST(max({column}) AS DOUBLE) AS hi",
        ]  # fmt: skip
        groups = ", ".join(str(index + 1) for index in range(len(shared) + 1))
        return select(counted, f"{source.text} AND {column} IS NOT NULL") + f" GROUP BY {groups}"
    sketch = part_column(Part.SKETCH, name)
    each = [
        *shared,
        f"unnest(map_keys({sketch})) AS k",
        f"unnest(map_values({sketch})) AS c",
        f"CAST({part_column(Part.MIN, name)} AS DOUBLE) AS lo",
        f"CAST({part_column(Part.MAX, name)} AS DOUBLE) AS hi",
    ]
    return select(each, source.text)
