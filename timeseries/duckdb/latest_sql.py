"""The newest values of samples that have expired, from what the roll-ups keep of them.

A roll-up keeps the last number of each window and when it was; text is not kept.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from timeseries.duckdb.condition import visible
from timeseries.duckdb.rollups_coverage import WIDTHS_NS, Progress, Span
from timeseries.duckdb.rollups_schema import NEWEST_COLUMN, Part, part_column, rollup_table
from timeseries.duckdb.schema import TIME_COLUMN, FieldType, Table, quoted
from timeseries.duckdb.sql import clamped, groups_sql, select
from timeseries.lineprotocol_grammar import MAX_INT64, MIN_INT64
from timeseries.store import Latest, LatestQuery, Resolution

Row = tuple[Any, ...]

_TIME = quoted(TIME_COLUMN)
_NEWEST = quoted(NEWEST_COLUMN)


def expired_latest_sql(
    query: LatestQuery, table: Table, fields: Sequence[str], *, progress: Progress
) -> tuple[str, list[object]]:
    """Return the statement and values of a latest query's part whose samples have expired.

    Each row is one group: its tags, the newest time, and each field's newest value or NULL. The
    text is empty where nothing has expired.
    """
    reads, values = [], list[object]()
    for resolution, span in _spans(query, progress):
        kept = progress.tables[resolution]
        condition = visible(kept, tenants=query.tenants, filters=query.filters)
        if condition.is_never:
            continue
        condition.add(f"{_TIME} > ? AND {_TIME} < ?", span[0] - WIDTHS_NS[resolution], span[1])
        source = f"{quoted(rollup_table(query.measurement, resolution))} {condition.sql}"
        columns = [
            column
            for index, name in enumerate(fields)
            for column in _newest(index, name, kept, table, span)
        ]
        groups = groups_sql(query.group_by, kept)
        reads.append(f"{select([*groups, *columns], source)} GROUP BY ALL")
        values += condition.values
    if not reads:
        return "", []
    times = ", ".join(f"max(t{index})" for index in range(len(fields)))
    newest = [_typed(f"arg_max(v{i}, t{i})", table.fields[name]) for i, name in enumerate(fields)]
    names = [f"g{index}" for index in range(len(query.group_by))]
    text = select([*names, f"greatest({times}, NULL)", *newest], f"({' UNION ALL '.join(reads)})")
    return f"{text} GROUP BY ALL", values


def merged_latest(
    expired: Sequence[Row], kept: Sequence[Row], *, tags: Sequence[str], fields: Sequence[str]
) -> list[Latest]:
    """Return the newest values of each group, ordered by group.

    Args:
        expired: the rows of `expired_latest_sql`.
        kept: the rows of `latest_sql`, in order.
        tags: what the groups are made of.
        fields: whose values the rows have.
    """
    width = len(tags)
    before = [row for row in expired if row[width] is not None]
    if not tags:
        # Of everything together there is one row, even where there is nothing.
        kept = [row for row in kept if row[width] is not None]
    newest = list(_each(kept, tags, fields))
    if not before:
        return newest
    found = {row[:width]: one for row, one in zip(before, _each(before, tags, fields), strict=True)}
    for row, one in zip(kept, newest, strict=True):
        older = found.get(row[:width])
        values = {**older.values, **one.values} if older else one.values
        found[row[:width]] = Latest(one.tags, one.time_ns, values)
    return [found[group] for group in sorted(found)]


def _each(rows: Sequence[Row], tags: Sequence[str], fields: Sequence[str]) -> Iterator[Latest]:
    width = len(tags)
    if len(fields) == 1:
        # Of a single field every row has a value; a page asks this of a fleet's every GPU.
        for row in rows:
            named = zip(tags, row, strict=False)
            yield Latest(dict(named), row[width], {fields[0]: row[-1]})
        return
    for row in rows:
        pairs = zip(fields, row[width + 1 :], strict=True)
        values = {name: value for name, value in pairs if value is not None}
        yield Latest(dict(zip(tags, row, strict=False)), row[width], values)


def _spans(query: LatestQuery, progress: Progress) -> Iterator[tuple[Resolution, Span]]:
    """Yield which part each roll-up answers: minutes, and hours where those have expired."""
    start = max(clamped(query.since_ns), 0)
    end = MAX_INT64 if query.until_ns is None else clamped(query.until_ns)
    end = min(end, progress.since.get(Resolution.RAW, MIN_INT64))
    minutes = max(start, progress.since.get(Resolution.MINUTE, 0))
    spans = {Resolution.MINUTE: (minutes, end), Resolution.HOUR: (start, min(end, minutes))}
    for resolution, span in spans.items():
        if span[0] < span[1] and resolution in progress.tables:
            yield resolution, span


def _newest(index: int, name: str, kept: Table, table: Table, span: Span) -> list[str]:
    """Return the newest value of a field and its time, as `v` and `t` of its index."""
    if name not in kept.fields or table.fields[name] is FieldType.STRING:
        return [f"NULL AS v{index}", f"CAST(NULL AS BIGINT) AS t{index}"]
    last = part_column(Part.LAST, name)
    at = f"coalesce({part_column(Part.LAST_AT, name)}, {_NEWEST})"
    counted = f"FILTER (WHERE {last} IS NOT NULL AND {at} >= {span[0]} AND {at} < {span[1]})"
    return [f"arg_max({last}, {at}) {counted} AS v{index}", f"max({at}) {counted} AS t{index}"]


def _typed(value: str, kind: FieldType) -> str:
    return f"CAST({value} AS BOOLEAN)" if kind is FieldType.BOOLEAN else value
