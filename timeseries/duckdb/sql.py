"""The SQL of each read: text made of our own identifiers, with every value of a caller bound.

A retried delivery can leave the same sample twice. `avg`, `min`, `max`, `last` and the percentiles
hardly notice; `sum` and `count` would be wrong, so they look at one row per series and instant.
"""

from collections.abc import Sequence
from itertools import pairwise

from core.errors import InvalidInputError
from timeseries.duckdb.condition import Condition, is_near, visible
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    FieldType,
    Table,
    field_column,
    quoted,
    table_name,
    tag_column,
)
from timeseries.lineprotocol_grammar import MAX_INT64, MIN_INT64
from timeseries.store import Aggregate, LatestQuery, RangeQuery

MAX_SEPARATE_WINDOWS = 4
"""Up to so many windows of a query are aggregated each by itself, which is faster."""

Span = tuple[int, int]

_TIME = quoted(TIME_COLUMN)
_AGGREGATES = {
    Aggregate.AVG: "avg({0})",
    Aggregate.MIN: "min({0})",
    Aggregate.MAX: "max({0})",
    Aggregate.SUM: "sum({0})",
    Aggregate.COUNT: "nullif(count({0}), 0)",
    Aggregate.LAST: "arg_max({0}, " + _TIME + ")",
    Aggregate.P50: "quantile_cont({0}, 0.5)",
    Aggregate.P95: "quantile_cont({0}, 0.95)",
    Aggregate.P99: "quantile_cont({0}, 0.99)",
}
_COUNTS_EACH_SAMPLE = frozenset({Aggregate.SUM, Aggregate.COUNT})


def range_sql(query: RangeQuery, table: Table, fields: Sequence[str]) -> tuple[str, list[object]]:
    """Return the statement and values of a range query over `fields`, which the table has.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values, gaps left out, in order unless the query `is_near`. The text is empty where nothing can
    match.
    """
    groups = groups_sql(query.group_by, table)
    aggregates = [
        f"CAST({_aggregate(name, query.aggregate, table)} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    parts, values = [], list[object]()
    for span in _separate(query):
        condition = visible(table, tenants=query.tenants, filters=query.filters)
        condition.add(f"{_TIME} >= ? AND {_TIME} < ?", *span)
        condition.near(query.filters)
        if condition.is_never:
            return "", []
        columns = [*groups, f"{window_sql(query, span)} AS w", *aggregates]
        source = sample_source(query, table, fields, condition)
        parts.append(f"{select(columns, source)} GROUP BY ALL")
        values += condition.values
    names = [f"g{index}" for index in range(len(groups))]
    text = lists_sql(
        " UNION ALL ".join(parts), names, len(fields), is_ordered=not is_near(query.filters)
    )
    return text, values


def lists_sql(windows: str, groups: Sequence[str], fields: int, *, is_ordered: bool = True) -> str:
    """Return the statement that makes lists by group of rows with groups, `w`, `v0`, `v1` ...

    Args:
        windows: the statement that gives those rows.
        groups: the names of their groups.
        fields: how many values they have.
        is_ordered: whether groups and lists are to be in order.
    """
    by = " ORDER BY w" if is_ordered else ""
    lists = [
        f"list({what}{by}) FILTER (WHERE v{index} IS NOT NULL)"
        for index in range(fields)
        for what in ("w", f"v{index}")
    ]
    order = f" ORDER BY {', '.join(groups)}" if groups and is_ordered else ""
    return select([*groups, *lists], f"({windows})") + f" GROUP BY ALL{order}"


def latest_sql(query: LatestQuery, table: Table, fields: Sequence[str]) -> tuple[str, list[object]]:
    """Return the statement and values of a latest query over `fields`, which the table has.

    Each row is one group: its tags, the newest time, and each field's newest value or NULL.
    """
    condition = visible(table, tenants=query.tenants, filters=query.filters)
    columns = [quoted(field_column(name)) for name in fields]
    condition.add(f"{_TIME} >= ?", clamped(query.since_ns))
    if query.until_ns is not None:
        condition.add(f"{_TIME} < ?", clamped(query.until_ns))
    condition.add("(" + " OR ".join(f"{column} IS NOT NULL" for column in columns) + ")")
    if condition.is_never:
        return "", []
    groups = groups_sql(query.group_by, table)
    newest = [f"arg_max({column}, {_TIME})" for column in columns]
    source = f"{quoted(table_name(query.measurement))} {condition.sql}"
    order = ", ".join(str(index + 1) for index in range(len(groups)))
    text = select([*groups, f"max({_TIME})", *newest], source) + " GROUP BY ALL"
    return text + (f" ORDER BY {order}" if order else ""), condition.values


def delete_sql(measurement: str, condition: str) -> str:
    """Return the statement that deletes samples of a measurement."""
    return f"DELETE FROM {quoted(table_name(measurement))} WHERE {condition}"  # noqa: S608 - ours


def select(columns: Sequence[str], source: str) -> str:
    """Return a SELECT of some columns."""
    return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 - own identifiers only


def groups_sql(tags: Sequence[str], table: Table) -> list[str]:
    """Return the columns `g0`, `g1` ... that split an answer by tags."""
    return [
        (f"coalesce({quoted(tag_column(tag))}, '')" if tag in table.tags else "''")
        + f" AS g{index}"
        for index, tag in enumerate(tags)
    ]


def sample_source(
    query: RangeQuery, table: Table, fields: Sequence[str], condition: Condition
) -> str:
    """Return the samples to aggregate; one row a series and instant where each one counts."""
    source = f"{quoted(table_name(query.measurement))} {condition.sql}"
    if query.aggregate not in _COUNTS_EACH_SAMPLE:
        return source
    series = [_TIME, *(quoted(tag_column(tag)) for tag in sorted(table.tags))]
    once = [
        f"any_value({quoted(field_column(name))}) AS {quoted(field_column(name))}"
        for name in fields
    ]
    return f"({select([*series, *once], source)} GROUP BY {', '.join(series)})"


def window_sql(query: RangeQuery, span: Span) -> str:
    """Return the start of the window that a row's time is in, of rows of a span of the query."""
    if query.step_ns is None:
        return f"CAST({clamped(query.start_ns)} AS BIGINT)"
    step = _step(query.step_ns)
    if span[0] // step == (span[1] - 1) // step:
        # Grouping by a column less takes half the time where there are many rows.
        return f"CAST({clamped(span[0] // step * step)} AS BIGINT)"
    # SQL's remainder has the sign of the time; windows before 1970 still start at or before it.
    remainder = f"{_TIME} % {step}"
    if query.start_ns < 0:
        remainder = f"(({remainder}) + {step}) % {step}"
    return f"{_TIME} - ({remainder})"


def _separate(query: RangeQuery) -> list[Span]:
    """Return the windows of a query one by one where they are few, else their whole span."""
    span = (clamped(query.start_ns), clamped(query.end_ns))
    if query.step_ns is None:
        return [span]
    step = _step(query.step_ns)
    first, last = span[0] // step, (span[1] - 1) // step
    if not first < last < first + MAX_SEPARATE_WINDOWS:
        return [span]
    edges = [span[0], *(number * step for number in range(first + 1, last + 1)), span[1]]
    return list(pairwise(edges))


def _step(step_ns: int) -> int:
    if step_ns <= 0:
        raise InvalidInputError(
            f"step_ns is {step_ns}; a window must be wider than 0.",
            errors={"step_ns": ["must be > 0"]},
        )
    return int(step_ns)


def check_aggregate(name: str, aggregate: Aggregate, table: Table) -> None:
    """Refuse an aggregate that a field's type does not have.

    Raises:
        InvalidInputError: the field holds text, which can only be counted.
    """
    if table.fields[name] is FieldType.STRING and aggregate is not Aggregate.COUNT:
        raise InvalidInputError(
            f"Field {name!r} holds text, which has no {aggregate}; "
            "count it, or read its newest value instead.",
            errors={"aggregate": [f"{aggregate} is not possible for text; use count"]},
        )


def _aggregate(name: str, aggregate: Aggregate, table: Table) -> str:
    check_aggregate(name, aggregate, table)
    column = quoted(field_column(name))
    if table.fields[name] is FieldType.BOOLEAN:
        column = f"CAST({column} AS INTEGER)"
    return _AGGREGATES[aggregate].format(column)


def clamped(time_ns: int) -> int:
    """Return the time, or the nearest one that a column can hold."""
    return max(MIN_INT64, min(MAX_INT64, time_ns))
