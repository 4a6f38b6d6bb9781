"""Roll-up files and their SQL.

A row is one series in one window: `time` is the start of the window, `newest` the time of its
newest sample, followed by the tags as in the files of samples. Each field `x` has those of the
columns `count_x`, `sum_x`, `min_x`, `max_x`, `last_x`, `at_x` (the time of the last value; NULL if
it is `newest`) and `sketch_x` that go with the resolution and its `Detail`. Booleans are numbers.
Several rows of one series and window add up: samples that arrive after the others were sealed have
a file, and roll-ups, of their own.

A *partial* is the contribution of one source to a group and window; partials of several sources are
united and merged into the result.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from timeseries.duckdb.schema import (
    TIME_COLUMN,
    WIDTHS_NS,
    Span,
    Table,
    encoded,
    field_column,
    quoted,
    tag_column,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MIN_INT64
from timeseries.sketch import KEY_OFFSET, LOG_GAMMA, SMALLEST
from timeseries.store import Aggregate, Detail, Resolution
from timeseries.validation import FieldType

NEWEST_COLUMN = "newest"
_TIME = quoted(TIME_COLUMN)
_NEWEST = quoted(NEWEST_COLUMN)
QUANTILES = {Aggregate.P50: 0.5, Aggregate.P95: 0.95, Aggregate.P99: 0.99}
# From the partial columns a and b of a group to its value.
MERGES = {
    Aggregate.AVG: "sum({a}) / nullif(sum({b}), 0)",
    Aggregate.SUM: "sum({a})",
    Aggregate.COUNT: "nullif(sum({a}), 0)",
    Aggregate.MIN: "min({a})",
    Aggregate.MAX: "max({a})",
    Aggregate.LAST: "arg_max({a}, {b})",
}


class StoredAggregate(StrEnum):
    """An aggregate stored per field; its value begins the name of its column."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    LAST = "last"
    LAST_AT = "at"
    SKETCH = "sketch"


_LEAST_DETAILS: Mapping[Resolution, Mapping[StoredAggregate, Detail]] = {
    Resolution.FIVE_MINUTES: {
        StoredAggregate.COUNT: Detail.MEANS,
        StoredAggregate.SUM: Detail.MEANS,
        StoredAggregate.MIN: Detail.ALL,
        StoredAggregate.MAX: Detail.ALL,
    },
    Resolution.HOUR: {
        **dict.fromkeys(StoredAggregate, Detail.HOURS),
        StoredAggregate.SKETCH: Detail.PERCENTILES,
    },
    Resolution.DAY: {
        StoredAggregate.MIN: Detail.PERCENTILES,
        StoredAggregate.MAX: Detail.PERCENTILES,
        StoredAggregate.SKETCH: Detail.PERCENTILES,
    },
}
"""The detail from which on a field has an aggregate in the roll-ups of a resolution."""
_STORED = {
    Aggregate.AVG: StoredAggregate.SUM,
    Aggregate.SUM: StoredAggregate.SUM,
    Aggregate.COUNT: StoredAggregate.COUNT,
    Aggregate.MIN: StoredAggregate.MIN,
    Aggregate.MAX: StoredAggregate.MAX,
    **dict.fromkeys(QUANTILES, StoredAggregate.SKETCH),
}


def least_detail(aggregate: Aggregate, resolution: Resolution) -> Detail | None:
    """Return the detail from which on roll-ups have an aggregate of a field; None if they never do.

    Aggregates of successive values need the last value.
    """
    return _LEAST_DETAILS[resolution].get(_STORED.get(aggregate, StoredAggregate.LAST))


def aggregate_column(part: StoredAggregate, name: str) -> str:
    """Return the quoted column of a field's aggregate."""
    return quoted(f"{part}_{encoded(name)}")


def rollup_columns(
    table: Table, resolution: Resolution, details: Mapping[str, Detail]
) -> dict[str, str]:
    """Return the quoted columns of the roll-up of a table's numbers, with their SQL types.

    Args:
        table: the tags and fields.
        resolution: the width of the windows.
        details: how much of each field is rolled up.
    """
    columns = {_TIME: "BIGINT", _NEWEST: "BIGINT"}
    columns |= {quoted(tag_column(tag)): "VARCHAR" for tag in sorted(table.tags)}
    for name, kind in table.fields.items():
        for part, sql_type in _aggregates_of(kind).items():
            least = _LEAST_DETAILS[resolution].get(part)
            if least is not None and details.get(name, Detail.NONE) >= least:
                columns[aggregate_column(part, name)] = sql_type
    return columns


def numeric_column(name: str, kind: FieldType) -> str:
    """Return a field's column, booleans as a number."""
    column = quoted(field_column(name))
    return f"CAST({column} AS BIGINT)" if kind is FieldType.BOOLEAN else column


def time_range_sql(spans: Sequence[Span]) -> str:
    """Return the condition for some time spans, given in order."""
    if len(spans) == 1:
        return _bounds(spans[0])
    outer = _bounds((spans[0][0], spans[-1][1]))
    return f"{outer} AND ({' OR '.join(f'({_bounds(span)})' for span in spans)})"


def _bounds(span: Span) -> str:
    """Return the condition for a span, without bounds outside the range of 64 bits."""
    bounds = [f"{_TIME} >= {int(span[0])}"] if span[0] > MIN_INT64 else []
    bounds += [f"{_TIME} < {int(span[1])}"] if span[1] <= MAX_INT64 else []
    return " AND ".join(bounds) or "TRUE"


def build_sql(
    source: str,
    resolution: Resolution,
    *,
    table: Table,
    types: Mapping[str, str],
    with_gaps: Collection[str],
) -> str:
    """Return the statement that aggregates the samples of a source, sorted by series and time.

    Args:
        source: the samples.
        resolution: the width of the windows.
        table: the tags of the samples, and the fields to aggregate.
        types: the columns of the roll-up, of these fields and perhaps others, with their types.
        with_gaps: the fields that some samples lack; for the others the newest sample is the last.
    """
    width = WIDTHS_NS[resolution]
    columns = {
        _TIME: f"{_TIME} - {_TIME} % {width}",
        _NEWEST: f"max({_TIME})",
    }
    tags = [quoted(tag_column(tag)) for tag in sorted(table.tags)]
    columns |= dict(zip(tags, tags, strict=True))
    for name, kind in table.fields.items():
        for part in StoredAggregate:
            is_newest = part is StoredAggregate.LAST_AT and name not in with_gaps
            value = "NULL" if is_newest else _aggregate_sql(part, numeric_column(name, kind))
            if (column := aggregate_column(part, name)) in types:
                columns[column] = value
    listed = [f"CAST({value} AS {types[name]}) AS {name}" for name, value in columns.items()]
    by = ", ".join(map(str, [1, *range(3, 3 + len(tags))]))
    return f"SELECT {', '.join(listed)} FROM {source} GROUP BY {by}"  # noqa: S608 - own identifiers only


def sample_partials(aggregate: Aggregate, column: str) -> tuple[str, str]:
    """Return the partials a and b of a field's samples."""
    newest = f"max({_TIME}) FILTER (WHERE {column} IS NOT NULL)"
    return {
        Aggregate.AVG: (f"sum(CAST({column} AS DOUBLE))", f"count({column})"),
        Aggregate.SUM: (f"sum(CAST({column} AS DOUBLE))", "NULL"),
        Aggregate.COUNT: (f"count({column})", "NULL"),
        Aggregate.MIN: (f"min({column})", "NULL"),
        Aggregate.MAX: (f"max({column})", "NULL"),
        Aggregate.LAST: (f"arg_max({column}, {_TIME})", newest),
    }[aggregate]


def rollup_partials(aggregate: Aggregate, name: str) -> tuple[str, str]:
    """Return the partials a and b of a field's roll-ups."""
    count, total = (
        aggregate_column(StoredAggregate.COUNT, name),
        aggregate_column(StoredAggregate.SUM, name),
    )
    last, last_at = aggregate_column(StoredAggregate.LAST, name), last_at_sql(name)
    return {
        Aggregate.AVG: (f"sum({total})", f"sum({count})"),
        Aggregate.SUM: (f"sum({total})", "NULL"),
        Aggregate.COUNT: (f"sum({count})", "NULL"),
        Aggregate.MIN: (f"min({aggregate_column(StoredAggregate.MIN, name)})", "NULL"),
        Aggregate.MAX: (f"max({aggregate_column(StoredAggregate.MAX, name)})", "NULL"),
        Aggregate.LAST: (
            f"arg_max({last}, {last_at})",
            f"max({last_at}) FILTER (WHERE {last} IS NOT NULL)",
        ),
    }[aggregate]


def last_at_sql(name: str) -> str:
    """Return the time of the last value of a field in a roll-up's row."""
    return f"coalesce({aggregate_column(StoredAggregate.LAST_AT, name)}, {_NEWEST})"


def bucket_key_sql(number_text: str) -> str:
    """Return the key of a number's bucket; see `timeseries.sketch`."""
    value = f"CAST({number_text} AS DOUBLE)"
    key = f"ceil(ln(abs({value})) / {LOG_GAMMA!r}) + {KEY_OFFSET}"
    return (
        f"CAST(CASE WHEN {value} IS NULL THEN NULL WHEN abs({value}) < {SMALLEST!r} THEN 0 "
        f"ELSE sign({value}) * ({key}) END AS INTEGER)"
    )


def _aggregates_of(kind: FieldType) -> Mapping[StoredAggregate, str]:
    """Return the aggregates of a type of field, with their SQL types."""
    value = "DOUBLE" if kind is FieldType.FLOAT else "BIGINT"
    return {
        StoredAggregate.COUNT: "BIGINT",
        StoredAggregate.SUM: "DOUBLE",
        StoredAggregate.MIN: value,
        StoredAggregate.MAX: value,
        StoredAggregate.LAST: value,
        StoredAggregate.LAST_AT: "BIGINT",
        StoredAggregate.SKETCH: "MAP(INTEGER, UINTEGER)",
    }


def _aggregate_sql(part: StoredAggregate, value: str) -> str:
    newest = f"max({_TIME}) FILTER (WHERE {value} IS NOT NULL)"
    return {
        StoredAggregate.COUNT: f"nullif(count({value}), 0)",
        # That of decimals is exact.
        StoredAggregate.SUM: f"sum({value})",
        StoredAggregate.MIN: f"min({value})",
        StoredAggregate.MAX: f"max({value})",
        StoredAggregate.LAST: f"arg_max({value}, {_TIME})",
        StoredAggregate.LAST_AT: f"nullif({newest}, max({_TIME}))",
        # Counting a list at the end takes a third of the time of histogram().
        StoredAggregate.SKETCH: f"list_histogram(list({bucket_key_sql(value)}) "
        f"FILTER (WHERE {value} IS NOT NULL))",
    }[part]
