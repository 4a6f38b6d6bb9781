"""Units: which samples of a table are sealed now, and which of them together.

An hour is *settled* some time after its end, when nearly all its samples have arrived. Settled
samples of one tenant, measurement and day are sealed once they are worth a file, or once their day
is settled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb

from core.clock import NS_PER_SECOND
from timeseries.duckdb.query.rollup_sql import time_range_sql
from timeseries.duckdb.schema import TIME_COLUMN, Key, Span, quoted, table_name, tag_column
from timeseries.store import APPLIANCE_TAG, DAY_NS, HOUR_NS, TENANT_TAG

GRACE_NS = 1_800 * NS_PER_SECOND
"""How long after its end an hour is settled."""
MIN_ROWS = 20_000
"""How many samples are worth a file before their day is settled."""
MAX_ROWS = 500_000
"""About how many samples are sealed in one transaction."""
APPLIANCE = f"coalesce({quoted(tag_column(APPLIANCE_TAG))}, '')"
"""The appliance of a sample in SQL, "" for one without."""
TENANT = f"coalesce({quoted(tag_column(TENANT_TAG))}, '')"
"""The tenant of a sample, likewise."""
_TIME = quoted(TIME_COLUMN)


@dataclass(frozen=True, slots=True)
class Unit:
    """Samples of one tenant and measurement to seal or merge at once.

    Attributes:
        key: the table that they are in.
        span: times within a day.
        appliances: the first and the last one; None for all.
    """

    tenant: str
    key: Key
    span: Span
    rows: int
    appliances: tuple[str, str] | None = None

    @property
    def condition(self) -> tuple[str, list[object]]:
        """The SQL condition and its values."""
        text, values = (
            f"{TENANT} = ? AND {time_range_sql([self.span])}",
            list[object]([self.tenant]),
        )
        if self.appliances:
            text += f" AND {APPLIANCE} BETWEEN ? AND ?"
            values += self.appliances
        return text, values


def settled_before(now_ns: int) -> int:
    """Return the end of the last settled hour."""
    return (now_ns - GRACE_NS) // HOUR_NS * HOUR_NS


def units_to_seal(cursor: duckdb.DuckDBPyConnection, key: Key, *, now_ns: int) -> list[Unit]:
    """Return what to seal of a table, the largest first."""
    until = settled_before(now_ns)
    table = quoted(table_name(key))
    counted = (
        f"SELECT {TENANT}, {_TIME} // {DAY_NS}, count(*) FROM {table} "  # noqa: S608 - ours
        f"WHERE {_TIME} >= 0 AND {_TIME} < ? GROUP BY ALL ORDER BY 3 DESC"
    )
    units = []
    for tenant, day, rows in cursor.execute(counted, [until]).fetchall():
        span = (day * DAY_NS, min((day + 1) * DAY_NS, until))
        if rows >= MIN_ROWS or (day + 1) * DAY_NS <= until:
            unit = Unit(tenant, key, span, rows)
            units += _by_hours(cursor, unit) if rows > MAX_ROWS else [unit]
    return units


def _by_hours(cursor: duckdb.DuckDBPyConnection, unit: Unit) -> list[Unit]:
    """Split a large unit by hours, and large hours by appliances."""
    source = quoted(table_name(unit.key))
    text, values = unit.condition
    counted = (
        f"SELECT {_TIME} // {HOUR_NS}, count(*) FROM {source} WHERE {text} GROUP BY 1 ORDER BY 1"  # noqa: S608 - ours
    )
    units: list[Unit] = []
    for hour, rows in cursor.execute(counted, values).fetchall():
        part = replace(unit, span=(hour * HOUR_NS, (hour + 1) * HOUR_NS), rows=rows)
        units += by_appliances(cursor, part, source, [], of_rows=MAX_ROWS)
    return units


def by_appliances(
    cursor: duckdb.DuckDBPyConnection,
    unit: Unit,
    source: str,
    values: Sequence[object],
    *,
    of_rows: int,
) -> list[Unit]:
    """Split a unit into ranges of appliances with about so many rows."""
    if unit.rows <= of_rows:
        return [unit]
    text, condition_values = unit.condition
    counted = f"SELECT {APPLIANCE}, count(*) FROM {source} WHERE {text} GROUP BY 1 ORDER BY 1"  # noqa: S608 - ours
    units: list[Unit] = []
    first, last, total = "", "", 0
    for name, rows in cursor.execute(counted, [*values, *condition_values]).fetchall():
        if total and total + rows > of_rows:
            units.append(replace(unit, appliances=(first, last), rows=total))
            total = 0
        first = first if total else name
        last = name
        total += rows
    units.append(replace(unit, appliances=(first, last), rows=total))
    return units
