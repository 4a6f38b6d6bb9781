"""The SQL of the roll-ups: how they are made from samples, and what a query takes of them.

A *partial* is what one source knows of a group and window; partials of several sources are united
and merged into the answer.
"""

from collections.abc import Collection, Iterable, Sequence

from timeseries.duckdb.rollups_coverage import WIDTHS_NS, Span
from timeseries.duckdb.rollups_schema import (
    NEWEST_COLUMN,
    Part,
    columns_of,
    part_column,
    parts_of,
    rollup_table,
)
from timeseries.duckdb.schema import (
    TIME_COLUMN,
    FieldType,
    Table,
    field_column,
    quoted,
    table_name,
    tag_column,
)
from timeseries.sketch import KEY_OFFSET, LOG_GAMMA, SMALLEST
from timeseries.store import APPLIANCE_TAG, Aggregate, Resolution

_TIME = quoted(TIME_COLUMN)
_NEWEST = quoted(NEWEST_COLUMN)
APPLIANCE = f"coalesce({quoted(tag_column(APPLIANCE_TAG))}, '')"
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


def number(name: str, kind: FieldType) -> str:
    """Return a field's column as a number, where it is one."""
    column = quoted(field_column(name))
    return f"CAST({column} AS BIGINT)" if kind is FieldType.BOOLEAN else column


def within(spans: Sequence[Span]) -> str:
    """Return the condition that keeps to some spans of time, in order."""
    each = [f"({_TIME} >= {int(start)} AND {_TIME} < {int(end)})" for start, end in spans]
    if len(each) == 1:
        return each[0]
    outer = f"{_TIME} >= {int(spans[0][0])} AND {_TIME} < {int(spans[-1][1])}"
    return f"{outer} AND ({' OR '.join(each)})"


def gaps_sql(source: str, fields: Iterable[str]) -> str:
    """Return the statement that tells of each field whether some samples lack it."""
    counts = [f"count({quoted(field_column(name))}) < count(*)" for name in fields]
    return f"SELECT {', '.join(counts)} FROM {source}"  # noqa: S608 - own identifiers only


def build_sql(
    measurement: str,
    resolution: Resolution,
    *,
    table: Table,
    source: str,
    with_gaps: Collection[str],
) -> str:
    """Return the statement that rolls up the samples of a source into a roll-up's table.

    Args:
        with_gaps: the fields that some of the samples lack; the others' last value is the newest.
    """
    tags = [quoted(tag_column(tag)) for tag in sorted(table.tags)]
    width = WIDTHS_NS[resolution]
    values = [
        "NULL"
        if part is Part.LAST_AT and name not in with_gaps
        else _built(part, number(name, kind))
        for name, kind in table.fields.items()
        for part in parts_of(kind, resolution)
    ]
    columns = [_TIME, _NEWEST, *columns_of(table, resolution)]
    return (
        f"INSERT INTO {quoted(rollup_table(measurement, resolution))} ({', '.join(columns)}) "  # noqa: S608 - own identifiers only
        f"SELECT {_TIME} - {_TIME} % {width} AS w, max({_TIME}), {', '.join([*tags, *values])} "
        f"FROM {source} GROUP BY w, {', '.join(tags)}"
    )


def samples(measurement: str, condition: str) -> str:
    """Return the source of the samples that meet a condition."""
    return f"{quoted(table_name(measurement))} WHERE {condition}"


def once(measurement: str, condition: str, table: Table) -> str:
    """Return the source of the same samples with one row for each series and instant."""
    keys = ", ".join([_TIME, *(quoted(tag_column(tag)) for tag in sorted(table.tags))])
    values = [
        f"any_value({column}) AS {column}"
        for column in map(quoted, map(field_column, table.fields))
    ]
    return (
        f"(SELECT {', '.join([keys, *values])} "  # noqa: S608 - own identifiers only
        f"FROM {samples(measurement, condition)} GROUP BY {keys})"
    )


def repeated_sql(measurement: str, condition: str, table: Table) -> str:
    """Return the statement that finds whether some series has two rows at one instant.

    It compares hashes, which takes less than half the time; if two were ever the same by chance,
    that would cost time and change nothing.
    """
    keys = ", ".join([_TIME, *(quoted(tag_column(tag)) for tag in sorted(table.tags))])
    return (
        f"SELECT 1 FROM (SELECT hash({keys}) AS h FROM {samples(measurement, condition)}) "  # noqa: S608 - own identifiers only
        "GROUP BY h HAVING count(*) > 1 LIMIT 1"
    )


def delete_repeated_sql(measurement: str, condition: str, table: Table) -> str:
    """Return the statement that deletes samples that are the same as another in everything."""
    columns = [*map(tag_column, sorted(table.tags)), *map(field_column, table.fields)]
    same = ", ".join([_TIME, *map(quoted, columns)])
    return (
        f"DELETE FROM {quoted(table_name(measurement))} WHERE rowid IN ("  # noqa: S608 - own identifiers only
        f"SELECT unnest(list(rowid)[2:]) FROM {samples(measurement, condition)} "
        f"GROUP BY {same} HAVING count(*) > 1)"
    )


def raw_partials(aggregate: Aggregate, column: str) -> tuple[str, str]:
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


def rolled_partials(aggregate: Aggregate, name: str) -> tuple[str, str]:
    """Return the partials a and b of a field's roll-ups."""
    count, total = part_column(Part.COUNT, name), part_column(Part.SUM, name)
    last = part_column(Part.LAST, name)
    last_at = f"coalesce({part_column(Part.LAST_AT, name)}, {_NEWEST})"
    return {
        Aggregate.AVG: (f"sum({total})", f"sum({count})"),
        Aggregate.SUM: (f"sum({total})", "NULL"),
        Aggregate.COUNT: (f"sum({count})", "NULL"),
        Aggregate.MIN: (f"min({part_column(Part.MIN, name)})", "NULL"),
        Aggregate.MAX: (f"max({part_column(Part.MAX, name)})", "NULL"),
        Aggregate.LAST: (
            f"arg_max({last}, {last_at})",
            f"max({last_at}) FILTER (WHERE {last} IS NOT NULL)",
        ),
    }[aggregate]


def key_sql(number_text: str) -> str:
    """Return the key of a number's bucket; see `timeseries.sketch`."""
    value = f"CAST({number_text} AS DOUBLE)"
    key = f"ceil(ln(abs({value})) / {LOG_GAMMA!r}) + {KEY_OFFSET}"
    return (
        f"CAST(CASE WHEN {value} IS NULL THEN NULL WHEN abs({value}) < {SMALLEST!r} THEN 0 "
        f"ELSE sign({value}) * ({key}) END AS INTEGER)"
    )


def _built(part: Part, value: str) -> str:
    newest = f"max({_TIME}) FILTER (WHERE {value} IS NOT NULL)"
    return {
        Part.COUNT: f"nullif(count({value}), 0)",
        Part.SUM: f"sum(CAST({value} AS DOUBLE))",
        Part.MIN: f"min({value})",
        Part.MAX: f"max({value})",
        Part.LAST: f"arg_max({value}, {_TIME})",
        Part.LAST_AT: f"nullif({newest}, max({_TIME}))",
        # A list that is counted at the end takes a third of the time of histogram() itself.
        Part.SKETCH: f"list_histogram(list({key_sql(value)}) FILTER (WHERE {value} IS NOT NULL))",
    }[part]
