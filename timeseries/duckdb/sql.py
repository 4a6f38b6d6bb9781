"""The SQL of each read: text made of our own identifiers, with every value of a caller bound.

A retried delivery can leave the same sample twice. `avg`, `min`, `max`, `last` and the percentiles
hardly notice; `sum` and `count` would be wrong, so they look at one row per series and instant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import InvalidInputError
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
from timeseries.store import TENANT_TAG, Aggregate, LatestQuery, RangeQuery

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


@dataclass(slots=True)
class Condition:
    """A WHERE clause and the values bound to it; `is_never` where nothing can match."""

    clauses: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)
    is_never: bool = False

    def add(self, clause: str, *values: object) -> None:
        """Demand one more thing."""
        self.clauses.append(clause)
        self.values.extend(values)

    def among(self, tag: str, values: Sequence[str], table: Table) -> None:
        """Demand that a tag has one of these values; "" stands for a sample without the tag."""
        column = quoted(tag_column(tag))
        named = [value for value in values if value]
        is_absent_welcome = len(named) < len(values)
        if tag not in table.tags or not named:
            self.is_never = self.is_never or not is_absent_welcome
            if tag in table.tags and is_absent_welcome:
                self.add(f"{column} IS NULL")
            return
        clause = f"{column} IN ({', '.join('?' * len(named))})"
        self.add(f"({clause} OR {column} IS NULL)" if is_absent_welcome else clause, *named)

    @property
    def sql(self) -> str:
        """The clause with its keyword, or nothing."""
        return "WHERE " + " AND ".join(self.clauses) if self.clauses else ""


def visible(
    table: Table,
    *,
    tenants: Sequence[str] | None,
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Condition:
    """Return the condition that keeps to these tenants and filters."""
    condition = Condition()
    if tenants is not None:
        condition.among(TENANT_TAG, [tenant for tenant in tenants if tenant], table)
    for tag, values in (filters or {}).items():
        condition.among(tag, values, table)
    return condition


def range_sql(query: RangeQuery, table: Table, fields: Sequence[str]) -> tuple[str, list[object]]:
    """Return the statement and values of a range query over `fields`, which the table has.

    Each row is one group: its tags, then for each field the list of window starts and the list of
    values, gaps left out. The text is empty where nothing can match.
    """
    condition = visible(table, tenants=query.tenants, filters=query.filters)
    condition.add(f"{_TIME} >= ?", clamped(query.start_ns))
    condition.add(f"{_TIME} < ?", clamped(query.end_ns))
    if condition.is_never:
        return "", []
    groups = groups_sql(query.group_by, table)
    aggregates = [
        f"CAST({_aggregate(name, query.aggregate, table)} AS DOUBLE) AS v{index}"
        for index, name in enumerate(fields)
    ]
    windows = select(
        [*groups, f"{window_sql(query)} AS w", *aggregates],
        sample_source(query, table, fields, condition),
    )
    names = [f"g{index}" for index in range(len(groups))]
    return lists_sql(f"{windows} GROUP BY ALL", names, len(fields)), condition.values


def lists_sql(windows: str, groups: Sequence[str], fields: int) -> str:
    """Return the statement that makes lists by group of rows with groups, `w`, `v0`, `v1` ..."""
    lists = [
        f"list({what} ORDER BY w) FILTER (WHERE v{index} IS NOT NULL)"
        for index in range(fields)
        for what in ("w", f"v{index}")
    ]
    order = f" ORDER BY {', '.join(groups)}" if groups else ""
    return select([*groups, *lists], f"({windows})") + f" GROUP BY ALL{order}"


def latest_sql(query: LatestQuery, table: Table, fields: Sequence[str]) -> tuple[str, list[object]]:
    """Return the statement and values of a latest query over `fields`, which the table has.

    Each row is one group: its tags, the newest time, and each field's newest value or NULL.
    """
    condition = visible(table, tenants=query.tenants, filters=query.filters)
    columns = [quoted(field_column(name)) for name in fields]
    condition.add(f"{_TIME} >= ?", clamped(query.since_ns))
    condition.add("(" + " OR ".join(f"{column} IS NOT NULL" for column in columns) + ")")
    if condition.is_never:
        return "", []
    groups = groups_sql(query.group_by, table)
    newest = [f"arg_max({column}, {_TIME})" for column in columns]
    source = f"{quoted(table_name(query.measurement))} {condition.sql}"
    order = ", ".join(str(index + 1) for index in range(len(groups)))
    text = select([*groups, f"max({_TIME})", *newest], source) + " GROUP BY ALL"
    return text + (f" ORDER BY {order}" if order else ""), condition.values


def exists_sql(measurement: str, condition: Condition) -> str:
    """Return the statement that finds one sample, if there is any."""
    return select(["1"], f"{quoted(table_name(measurement))} {condition.sql} LIMIT 1")


def tag_values_sql(measurement: str, tag: str, condition: Condition) -> str:
    """Return the statement that lists the distinct values of a tag."""
    condition.add(f"{quoted(tag_column(tag))} IS NOT NULL")
    source = f"{quoted(table_name(measurement))} {condition.sql}"
    return select([f"DISTINCT {quoted(tag_column(tag))}"], source) + " ORDER BY 1"


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


def window_sql(query: RangeQuery) -> str:
    """Return the start of the window that a row's time is in."""
    if query.step_ns is None:
        return f"CAST({clamped(query.start_ns)} AS BIGINT)"
    step = int(query.step_ns)
    if step <= 0:
        raise InvalidInputError(
            f"step_ns is {step}; a window must be wider than 0.",
            errors={"step_ns": ["must be > 0"]},
        )
    # SQL's remainder has the sign of the time; windows before 1970 still start at or before it.
    remainder = f"{_TIME} % {step}"
    if query.start_ns < 0:
        remainder = f"(({remainder}) + {step}) % {step}"
    return f"{_TIME} - ({remainder})"


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
