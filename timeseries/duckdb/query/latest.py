"""Latest queries: the newest values from the samples, and from roll-ups where samples expired.

A roll-up by hour stores the last number of each window and its time; text has no roll-up.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from timeseries.duckdb.query.relation import Relation, Statement
from timeseries.duckdb.query.rollup_sql import StoredAggregate, aggregate_column, last_at_sql
from timeseries.duckdb.query.sql import clamp_time, group_columns, select
from timeseries.duckdb.schema import TIME_COLUMN, Span, field_column, quoted
from timeseries.lineprotocol.grammar import MAX_INT64
from timeseries.store import HOUR_NS, Latest, LatestQuery, Resolution
from timeseries.validation import FieldType

Row = tuple[Any, ...]

_TIME = quoted(TIME_COLUMN)


def latest_sql(query: LatestQuery, relation: Relation, fields: Sequence[str]) -> Statement:
    """Return the statement of a latest query over `fields` of the samples.

    Each row is one group: its tags, the newest time, and each field's newest value or NULL.
    """
    columns = [quoted(field_column(name)) for name in fields]
    source, values = relation.samples(fields, [_span(query)], tags=query.group_by)
    if not source:
        return "", []
    source += " WHERE " + " OR ".join(f"{column} IS NOT NULL" for column in columns)
    groups = group_columns(query.group_by, relation.table)
    newest = [f"arg_max({column}, {_TIME})" for column in columns]
    order = ", ".join(str(index + 1) for index in range(len(groups)))
    text = select([*groups, f"max({_TIME})", *newest], source) + " GROUP BY ALL"
    return text + (f" ORDER BY {order}" if order else ""), values


def expired_latest_sql(query: LatestQuery, relation: Relation, fields: Sequence[str]) -> Statement:
    """Return the statement for the part of a latest query whose samples have expired.

    Rows are as those of `latest_sql`. The text is empty if nothing has expired.
    """
    span = _span(query)
    expired = [
        segment
        for segment in relation.visible(span, margin_ns=HOUR_NS)
        if Resolution.RAW not in segment.sizes and Resolution.HOUR in segment.sizes
    ]
    windows = (span[0] - HOUR_NS, span[1])
    source, values = relation.rolled_up(Resolution.HOUR, fields, [windows], segments=expired)
    if not source:
        return "", []
    groups = group_columns(query.group_by, relation.table)
    newest = [
        column
        for index, name in enumerate(fields)
        for column in _newest(index, name, relation.table.fields[name], span)
    ]
    text = select([*groups, *newest], source) + " GROUP BY ALL"
    times = ", ".join(f"t{index}" for index in range(len(fields)))
    names = [f"g{index}" for index in range(len(query.group_by))]
    typed = [_typed(f"v{i}", relation.table.fields[name]) for i, name in enumerate(fields)]
    return select([*names, f"greatest({times}, NULL)", *typed], f"({text})"), values


def merge_latest(
    expired: Sequence[Row], samples: Sequence[Row], *, tags: Sequence[str], fields: Sequence[str]
) -> list[Latest]:
    """Return the newest values of each group, ordered by group.

    Args:
        expired: the rows of `expired_latest_sql`.
        samples: the rows of `latest_sql`, in order.
        tags: the tags that the rows are grouped by.
        fields: the fields that the rows have values of.
    """
    width = len(tags)
    before = [row for row in expired if row[width] is not None]
    if not tags:
        # Without groups there is always one row, even if it is empty.
        samples = [row for row in samples if row[width] is not None]
    newest = list(_each(samples, tags, fields))
    if not before:
        return newest
    latest_of = {
        row[:width]: latest for row, latest in zip(before, _each(before, tags, fields), strict=True)
    }
    for row, latest in zip(samples, newest, strict=True):
        older = latest_of.get(row[:width])
        values = {**older.values, **latest.values} if older else latest.values
        latest_of[row[:width]] = Latest(latest.tags, latest.time_ns, values)
    return [latest_of[group] for group in sorted(latest_of)]


def _each(rows: Sequence[Row], tags: Sequence[str], fields: Sequence[str]) -> Iterator[Latest]:
    width = len(tags)
    if len(fields) == 1:
        # With a single field every row has a value; fast path for every GPU of a fleet.
        for row in rows:
            named = zip(tags, row, strict=False)
            yield Latest(dict(named), row[width], {fields[0]: row[-1]})
        return
    for row in rows:
        values = dict(zip(fields, row[width + 1 :], strict=True))
        if None in row:
            values = {name: value for name, value in values.items() if value is not None}
        yield Latest(dict(zip(tags, row, strict=False)), row[width], values)


def _span(query: LatestQuery) -> Span:
    end = MAX_INT64 + 1 if query.until_ns is None else clamp_time(query.until_ns)
    return clamp_time(query.since_ns), end


def _newest(index: int, name: str, kind: FieldType, span: Span) -> list[str]:
    """Return the newest value of a field and its time, as `v` and `t` of its index."""
    if kind is FieldType.STRING:
        return [f"NULL AS v{index}", f"CAST(NULL AS BIGINT) AS t{index}"]
    last, at = aggregate_column(StoredAggregate.LAST, name), last_at_sql(name)
    counted = f"FILTER (WHERE {last} IS NOT NULL AND {at} >= {span[0]} AND {at} < {span[1]})"
    return [f"arg_max({last}, {at}) {counted} AS v{index}", f"max({at}) {counted} AS t{index}"]


def _typed(value: str, kind: FieldType) -> str:
    return f"CAST({value} AS BOOLEAN)" if kind is FieldType.BOOLEAN else value
