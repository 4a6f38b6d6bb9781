"""The SQL of an extent: how many points a scan would yield, and from when to when."""

from timeseries.duckdb.condition import visible
from timeseries.duckdb.schema import TIME_COLUMN, Table, quoted, table_name
from timeseries.duckdb.sql import clamped, select
from timeseries.store import ScanQuery

_TIME = quoted(TIME_COLUMN)


def extent_sql(query: ScanQuery, table: Table) -> tuple[str, list[object]]:
    """Return the statement whose one row is count, oldest and newest instant; "" for nothing."""
    condition = visible(table, tenants=query.tenants, filters=query.filters)
    condition.add(f"{_TIME} >= ?", clamped(query.start_ns))
    condition.add(f"{_TIME} < ?", clamped(query.end_ns))
    if condition.is_never:
        return "", []
    source = f"{quoted(table_name(query.measurement))} {condition.sql}"
    return select(["count(*)", f"min({_TIME})", f"max({_TIME})"], source), condition.values
