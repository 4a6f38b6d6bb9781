"""The tables of the roll-ups: `r1m_<measurement>` and `r1h_<measurement>`.

A row stands for one series in one window: `time` is the window's start, `newest` the time of its
newest sample, then come the tags as in the samples' table and some columns for each field. Rows of
one series and window add up: samples that come when the others are deleted make a row of their own.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from urllib.parse import unquote

from timeseries.duckdb.schema import (
    TIME_COLUMN,
    FieldType,
    Schema,
    Table,
    field_column,
    quoted,
    table_name,
    tag_column,
)
from timeseries.store import Resolution

NEWEST_COLUMN = "newest"
PROGRESS_TABLE = "rollup_progress"
LATE_TABLE = "rollup_late"

_STATE_COLUMNS = {
    PROGRESS_TABLE: "measurement VARCHAR NOT NULL, minute_until BIGINT, hour_until BIGINT, "
    "raw_since BIGINT, minute_since BIGINT, hour_since BIGINT",
    LATE_TABLE: "measurement VARCHAR NOT NULL, hour BIGINT NOT NULL, appliance VARCHAR NOT NULL",
}
STATE_DDL = tuple(
    f"CREATE TABLE IF NOT EXISTS {name} ({columns})" for name, columns in _STATE_COLUMNS.items()
)

_PREFIXES = {Resolution.MINUTE: "r1m_", Resolution.HOUR: "r1h_"}
_TAG_PREFIX = tag_column("")


class Part(StrEnum):
    """What is kept of a field; the name begins its column."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    LAST = "last"
    LAST_AT = "at"  # NULL where it is the row's newest time, as it nearly always is
    SKETCH = "sketch"


def rollup_table(measurement: str, resolution: Resolution) -> str:
    """Return the unquoted identifier of a roll-up's table."""
    return _PREFIXES[resolution] + table_name(measurement).removeprefix(table_name(""))


def part_column(part: Part, name: str) -> str:
    """Return the quoted identifier of a part of a field."""
    return quoted(f"{part}_" + field_column(name).removeprefix(field_column("")))


def parts_of(kind: FieldType, resolution: Resolution) -> dict[Part, str]:
    """Return the parts that are kept of a field of some type, and their SQL types."""
    if kind is FieldType.STRING:
        return {Part.COUNT: "UINTEGER"}
    value = "DOUBLE" if kind is FieldType.FLOAT else "BIGINT"
    parts = {
        Part.COUNT: "UINTEGER",
        Part.SUM: "DOUBLE",
        Part.MIN: value,
        Part.MAX: value,
        Part.LAST: value,
        Part.LAST_AT: "BIGINT",
    }
    if resolution is Resolution.HOUR:
        parts[Part.SKETCH] = "MAP(INTEGER, UINTEGER)"
    return parts


def columns_of(table: Table, resolution: Resolution) -> dict[str, str]:
    """Return quoted column to SQL type, but for the times."""
    columns = {quoted(tag_column(tag)): "VARCHAR" for tag in sorted(table.tags)}
    for name, kind in table.fields.items():
        for part, sql_type in parts_of(kind, resolution).items():
            columns[part_column(part, name)] = sql_type
    return columns


def rollup_ddl(
    measurement: str, resolution: Resolution, *, before: Table | None, after: Table
) -> list[str]:
    """Return the statements that bring a roll-up's table from `before` to `after`."""
    name = quoted(rollup_table(measurement, resolution))
    columns = columns_of(after, resolution)
    if before is None:
        times = [f"{quoted(column)} BIGINT NOT NULL" for column in (TIME_COLUMN, NEWEST_COLUMN)]
        rest = [f"{column} {sql_type}" for column, sql_type in columns.items()]
        return [f"CREATE TABLE {name} ({', '.join([*times, *rest])})"]
    known = columns_of(before, resolution)
    return [
        f"ALTER TABLE {name} ADD COLUMN {column} {sql_type}"
        for column, sql_type in columns.items()
        if column not in known
    ]


def rollup_tables_from(
    columns: Sequence[tuple[str, str, str]], schema: Schema
) -> dict[str, dict[Resolution, Table]]:
    """Return the roll-ups' tables by measurement, from (table, column, type) of all columns."""
    by_table: dict[str, set[str]] = {}
    for table, column, _ in columns:
        by_table.setdefault(table, set()).add(column)
    found: dict[str, dict[Resolution, Table]] = {}
    for measurement, samples in schema.items():
        for resolution in _PREFIXES:
            known = by_table.get(rollup_table(measurement, resolution))
            if known is not None:
                found.setdefault(measurement, {})[resolution] = _table(known, samples.fields)
    return found


def _table(columns: set[str], fields: Mapping[str, FieldType]) -> Table:
    tags = {unquote(name.removeprefix(_TAG_PREFIX)) for name in columns if _is_tag(name)}
    kept = {
        name: kind
        for name, kind in fields.items()
        if part_column(Part.COUNT, name)[1:-1] in columns
    }
    return Table(frozenset(tags), kept)


def _is_tag(column: str) -> bool:
    return column.startswith(_TAG_PREFIX)
