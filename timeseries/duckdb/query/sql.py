"""SQL for reads: built from our own identifiers, with every value of a caller bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Span,
    Table,
    field_column,
    quoted,
    tag_column,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.store import APPLIANCE_TAG, TENANT_TAG, Aggregate, RangeQuery, TagMatcher
from timeseries.validation import FieldType, check_aggregate, check_step

MAX_APPLIANCES = 32
"""Up to this many appliances, sorting their few rows is faster in Python."""
MAX_SEPARATE_WINDOWS = 4
"""Up to this many windows are aggregated separately, which is faster."""
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


@dataclass(slots=True)
class Where:
    """A WHERE clause and its bound values; `matches_nothing` if no row can match."""

    clauses: list[str] = field(default_factory=list)
    values: list[object] = field(default_factory=list)
    matches_nothing: bool = False

    def add(self, clause: str, *values: object) -> None:
        """Add a condition."""
        self.clauses.append(clause)
        self.values.extend(values)

    def add_tag(self, tag: str, values: Sequence[str], table: Table) -> None:
        """Require one of these values of a tag; "" matches a sample without the tag."""
        column = quoted(tag_column(tag))
        named = [value for value in values if value]
        allows_absent = len(named) < len(values)
        if tag not in table.tags or not named:
            self.matches_nothing = self.matches_nothing or not allows_absent
            if tag in table.tags and allows_absent:
                self.add(f"{column} IS NULL")
            return
        clause = f"{column} IN ({', '.join('?' * len(named))})"
        self.add(f"({clause} OR {column} IS NULL)" if allows_absent else clause, *named)

    def add_matcher(self, matcher: TagMatcher, table: Table) -> None:
        """Require what a matcher does of its tag."""
        tag, operator, value = matcher
        column = f"coalesce({quoted(tag_column(tag))}, '')" if tag in table.tags else "''"
        is_equal = f"regexp_full_match({column}, ?)" if "~" in operator else f"{column} = ?"
        self.add(f"NOT {is_equal}" if operator.startswith("!") else is_equal, value)

    @property
    def sql(self) -> str:
        """The clause with its keyword, or an empty text."""
        return "WHERE " + " AND ".join(self.clauses) if self.clauses else ""


def has_appliance_filter(filters: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the filters select a few appliances by name."""
    names = filters.get(APPLIANCE_TAG, ())
    return 0 < len(names) <= MAX_APPLIANCES and all(names)


def where_visible(
    table: Table,
    *,
    tenants: Sequence[str] | None,
    filters: Mapping[str, Sequence[str]] | None = None,
) -> Where:
    """Return the condition for the tenants and filters of a query."""
    condition = Where()
    if tenants is not None:
        condition.add_tag(TENANT_TAG, [tenant for tenant in tenants if tenant], table)
    for tag, values in (filters or {}).items():
        condition.add_tag(tag, values, table)
    return condition


def grouped_lists_sql(
    windows: str, groups: Sequence[str], fields: int, *, is_ordered: bool = True
) -> str:
    """Return the statement that collects window rows into one row of lists per group.

    Args:
        windows: a statement whose rows have the group columns, `w`, `v0`, `v1` ...
        groups: the names of the group columns.
        fields: the number of value columns.
        is_ordered: whether to sort groups and lists.
    """
    by = " ORDER BY w" if is_ordered else ""
    lists = [
        f"list({column}{by}) FILTER (WHERE v{index} IS NOT NULL)"
        for index in range(fields)
        for column in ("w", f"v{index}")
    ]
    order = f" ORDER BY {', '.join(groups)}" if groups and is_ordered else ""
    return select([*groups, *lists], f"({windows})") + f" GROUP BY ALL{order}"


def select(columns: Sequence[str], source: str) -> str:
    """Return a SELECT of some columns."""
    return f"SELECT {', '.join(columns)} FROM {source}"  # noqa: S608 - own identifiers only


def successive_sql(
    source: str, aggregate: Aggregate, groups: Sequence[str], series: Sequence[str]
) -> str:
    """Return a statement with an aggregate of `timeseries.successive` by group and window.

    Args:
        source: rows with the columns of groups and series, the window `w`, the time `t` and the
            number `x`.
        aggregate: one of `SUCCESSIVE`.
        groups: the names of the group columns.
        series: the names of the columns that identify a series.
    """
    if aggregate is Aggregate.STDDEV:
        return f"{select([*groups, 'w', 'stddev_pop(x) AS v0'], source)} GROUP BY ALL"
    keys = [*groups, *series, "w"]
    before = f"lag(x) OVER (PARTITION BY {', '.join([*series, 'w'])} ORDER BY t) AS p"
    steps = select([*keys, "t", "x", before], source)
    growth = {
        Aggregate.CHANGE: "arg_max(x, t) - arg_min(x, t)",
        Aggregate.INCREASE: "sum(CASE WHEN x >= p THEN x - p WHEN p IS NOT NULL THEN x END)",
    }
    growth[Aggregate.RATE] = f"{growth[Aggregate.INCREASE]} * 1e9 / (max(t) - min(t))"
    grown = select([*keys, f"{growth[aggregate]} AS v"], f"({steps})")
    of_series = f"{grown} GROUP BY {', '.join(keys)} HAVING max(t) > min(t)"
    return f"{select([*groups, 'w', 'sum(v) AS v0'], f'({of_series})')} GROUP BY ALL"


def group_columns(tags: Sequence[str], table: Table) -> list[str]:
    """Return the columns `g0`, `g1` ... of the tags to group by."""
    return [
        (f"coalesce({quoted(tag_column(tag))}, '')" if tag in table.tags else "''")
        + f" AS g{index}"
        for index, tag in enumerate(tags)
    ]


def window_start_sql(query: RangeQuery, span: Span) -> str:
    """Return the expression for the start of a row's window, for the rows of a span."""
    if query.step_ns is None:
        return f"CAST({clamp_time(query.start_ns)} AS BIGINT)"
    step = check_step(query.step_ns)
    if span[0] // step == (span[1] - 1) // step:
        # Grouping by one column less takes half the time for many rows.
        return f"CAST({clamp_time(span[0] // step * step)} AS BIGINT)"
    # The remainder in SQL has the sign of the time; windows before 1970 still start before it.
    remainder = f"{_TIME} % {step}"
    if query.start_ns < 0:
        remainder = f"(({remainder}) + {step}) % {step}"
    return f"{_TIME} - ({remainder})"


def separate_windows(query: RangeQuery) -> list[Span]:
    """Return the windows of a query separately if they are few, else the whole span."""
    span = (clamp_time(query.start_ns), clamp_time(query.end_ns))
    if query.step_ns is None:
        return [span]
    step = check_step(query.step_ns)
    first, last = span[0] // step, (span[1] - 1) // step
    if not first < last < first + MAX_SEPARATE_WINDOWS:
        return [span]
    edges = [span[0], *(number * step for number in range(first + 1, last + 1)), span[1]]
    return list(pairwise(edges))


def aggregate_sql(name: str, aggregate: Aggregate, table: Table) -> str:
    """Return the aggregate of a field's samples."""
    check_aggregate(name, table.fields[name], aggregate)
    column = quoted(field_column(name))
    if table.fields[name] is FieldType.BOOLEAN:
        column = f"CAST({column} AS INTEGER)"
    return _AGGREGATES[aggregate].format(column)


def clamp_time(time_ns: int) -> int:
    """Return the time, or the nearest one in the range of 64 bits."""
    return max(MIN_INT64, min(MAX_INT64, time_ns))
