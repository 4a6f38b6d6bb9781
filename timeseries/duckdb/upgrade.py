"""Upgrading the files of earlier versions, when they are opened.

Roll-ups were tables by minute and by hour, `r1m_<measurement>` and `r1h_<measurement>`, with a
STRUCT of aggregates per field. Those of samples that have expired become segments, one for each
tenant, measurement and month, in a transaction that deletes their rows: after a crash the next
start continues. The others are dropped, because sealing the samples makes them again. Samples stay
in their tables until they are sealed. Staged samples were Arrow streams.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from core.ids import new_id
from timeseries.declared import DECLARED
from timeseries.duckdb.parquet import BATCH_ROWS, ROLLUP_LEVEL, write_parquet
from timeseries.duckdb.rollup_sql import (
    NEWEST_COLUMN,
    StoredAggregate,
    aggregate_column,
    rollup_columns,
)
from timeseries.duckdb.rows import rows_of, serialize
from timeseries.duckdb.schema import (
    COLUMNS_SQL,
    SQL_TYPES,
    TIME_COLUMN,
    WIDTHS_NS,
    Key,
    Table,
    field_column,
    parse_schema,
    quoted,
    table_name,
    tag_column,
)
from timeseries.duckdb.segments import Manifest, Segment
from timeseries.duckdb.sql import select
from timeseries.duckdb.staging import STAGING_TABLE
from timeseries.points import Batch, Point
from timeseries.store import (
    APPLIANCE_TAG,
    DAY_NS,
    TENANT_TAG,
    Detail,
    Resolution,
    StoreUnavailableError,
)
from timeseries.validation import FIELD_TYPES, FieldType

_log = logging.getLogger(__name__)
_ARROW_STREAM = b"\xff\xff\xff\xff"
_PREFIXES = {Resolution.FIVE_MINUTES: "r1m_", Resolution.HOUR: "r1h_"}
_STATE_TABLES = ("rollup_progress", "rollup_late")
_PERIOD_NS = 30 * DAY_NS
_COUNT = StoredAggregate.COUNT
_TIME, _NEWEST = quoted(TIME_COLUMN), quoted(NEWEST_COLUMN)
_TENANT = f"coalesce({quoted(tag_column(TENANT_TAG))}, '')"
_APPLIANCE = f"coalesce({quoted(tag_column(APPLIANCE_TAG))}, '')"


def upgrade(cursor: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
    """Bring a file to the present layout.

    Raises:
        StoreUnavailableError: it is of a version that can't be upgraded.
    """
    columns = cursor.execute(COLUMNS_SQL).fetchall()
    if any(_is_flat(table, column) for table, column, _ in columns):
        raise StoreUnavailableError(
            "The time series file is of an earlier development version; its roll-ups can't be "
            "read. Move the file away: a new one is created."
        )
    schema = parse_schema(columns)
    for key, table in schema.items():
        if not key.owner and key.measurement in DECLARED:
            _make_numbers(cursor, key, table)
    tables = {table for table, _, _ in columns}
    if STAGING_TABLE in tables:
        _convert_staged(cursor)
    old = [
        key
        for key in schema
        if any(_rollup_table(key, resolution) in tables for resolution in _PREFIXES)
    ]
    for number, key in enumerate(old, 1):
        _log.info("moving roll-ups of %r into files (%d of %d)", key.measurement, number, len(old))
        _move(cursor, manifest, key, [column for column in columns if column[0] in tables])
    for name in _STATE_TABLES:
        cursor.execute(f"DROP TABLE IF EXISTS {name}")


def _is_flat(table: str, column: str) -> bool:
    return table.startswith(tuple(_PREFIXES.values())) and column.startswith("count_")


def _make_numbers(cursor: duckdb.DuckDBPyConnection, key: Key, table: Table) -> None:
    """Make the columns of declared fields numbers; what was no number is NULL."""
    double = SQL_TYPES[FieldType.FLOAT]
    for name in DECLARED[key.measurement].fields & table.fields.keys():
        if table.fields[name] is not FieldType.FLOAT:
            column = quoted(field_column(name))
            cursor.execute(
                f"ALTER TABLE {quoted(table_name(key))} ALTER COLUMN {column} "
                f"TYPE {double} USING TRY_CAST({column} AS {double})"
            )


def _convert_staged(cursor: duckdb.DuckDBPyConnection) -> None:
    """Rewrite staged Arrow streams as rows."""
    found = cursor.execute(
        f"SELECT rowid, measurement, columns FROM {STAGING_TABLE} WHERE columns[1:4] = ?",  # noqa: S608 - ours
        [_ARROW_STREAM],
    ).fetchall()
    for rowid, measurement, value in found:
        data = pa.ipc.open_stream(value).read_all()
        points = [
            Point(
                measurement,
                _named(row, tag_column("")),
                _named(row, field_column("")),
                row[TIME_COLUMN],
            )
            for row in data.to_pylist()
        ]
        rows = []
        for block in Batch.of(points).blocks:
            kinds = map(FIELD_TYPES.__getitem__, block.kinds)
            table = Table(fields=dict(zip(block.fields, kinds, strict=True)))
            rows.append(rows_of(block, {}, table, is_stamped=True))
        cursor.execute(
            f"UPDATE {STAGING_TABLE} SET columns = ? WHERE rowid = ?",  # noqa: S608 - ours
            [serialize(rows), rowid],
        )


def _named(row: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the values of the columns with a prefix by what follows it, without NULLs."""
    return {
        unquote(column.removeprefix(prefix)): value
        for column, value in row.items()
        if column.startswith(prefix) and value is not None
    }


def _rollup_table(key: Key, resolution: Resolution) -> str:
    return _PREFIXES[resolution] + table_name(key).removeprefix("m_")


def _move(
    cursor: duckdb.DuckDBPyConnection,
    manifest: Manifest,
    key: Key,
    columns: Sequence[tuple[str, str, str]],
) -> None:
    names = {resolution: _rollup_table(key, resolution) for resolution in _PREFIXES}
    tables = {
        resolution: table
        for resolution, name in names.items()
        if (table := _table(columns, name)) is not None
    }
    rows = cursor.execute(
        "SELECT raw_since FROM rollup_progress WHERE measurement = ?", [key.measurement]
    ).fetchall()
    expired_ns = max((since for (since,) in rows if since is not None), default=None)
    if expired_ns is not None:
        for tenant, period in _units(cursor, [names[one] for one in tables], expired_ns):
            cursor.begin()
            span = (period * _PERIOD_NS, min((period + 1) * _PERIOD_NS, expired_ns))
            condition = f"{_TENANT} = ? AND {_TIME} >= {span[0]} AND {_TIME} < {span[1]}"
            added = _write(cursor, manifest, key, tables, (tenant, condition))
            for resolution in tables:
                name = quoted(names[resolution])
                cursor.execute(f"DELETE FROM {name} WHERE {condition}", [tenant])  # noqa: S608 - ours
            manifest.commit(cursor, key.measurement, add=[added] if added.sizes else [])
    for resolution in tables:
        cursor.execute(f"DROP TABLE {quoted(names[resolution])}")


def _table(columns: Sequence[tuple[str, str, str]], name: str) -> Table | None:
    """Return the tags and numbers of a roll-up's table; None without the table."""
    tags, fields, prefix = set[str](), dict[str, FieldType](), field_column("")
    mine = [(column, sql_type) for table, column, sql_type in columns if table == name]
    for column, sql_type in mine:
        if column.startswith(tag_column("")):
            tags.add(unquote(column.removeprefix(tag_column(""))))
        elif column.startswith(prefix) and "sum" in sql_type:
            is_float = "min DOUBLE" in sql_type.replace('"', "")
            kind = FieldType.FLOAT if is_float else FieldType.INTEGER
            fields[unquote(column.removeprefix(prefix))] = kind
    return Table(frozenset(tags), fields) if mine else None


def _units(
    cursor: duckdb.DuckDBPyConnection, names: Sequence[str], expired_ns: int
) -> Iterator[tuple[str, int]]:
    read = " UNION ".join(
        f"SELECT {_TENANT}, {_TIME} // {_PERIOD_NS} FROM {quoted(name)} "  # noqa: S608 - ours
        f"WHERE {_TIME} < {expired_ns}"
        for name in names
    )
    yield from cursor.execute(f"{read} ORDER BY 1, 2").fetchall()


def _write(
    cursor: duckdb.DuckDBPyConnection,
    manifest: Manifest,
    key: Key,
    tables: Mapping[Resolution, Table],
    unit: tuple[str, str],
) -> Segment:
    """Write the files of a tenant's roll-ups that meet a condition."""
    tenant, condition = unit
    surveys, fields = {}, dict[str, FieldType]()
    for resolution, table in tables.items():
        source = f"{quoted(_rollup_table(key, resolution))} WHERE {condition}"
        bounds = [f"min({_TIME})", f"max({_NEWEST})", f"min({_APPLIANCE})", f"max({_APPLIANCE})"]
        bounds += ["count(*)", *(f"count({_part(name, _COUNT)})" for name in table.fields)]
        *survey, rows = cursor.execute(select(bounds[:5], source), [tenant]).fetchall()[0]
        if rows:
            surveys[resolution] = (*survey, rows)
            counts = cursor.execute(select(bounds[4:], source), [tenant]).fetchall()[0][1:]
            found = zip(table.fields.items(), counts, strict=True)
            fields |= dict(field for field, count in found if count)
    oldest, newest, first, last, rows = zip(*surveys.values(), strict=True)
    segment = Segment(
        name=new_id(),
        tenant=tenant,
        measurement=key.measurement,
        oldest_ns=min(oldest),
        newest_ns=max(newest),
        first_appliance=min(first),
        last_appliance=max(last),
        rows=max(rows),
        table=Table(frozenset(tag for table in tables.values() for tag in table.tags), fields),
        rolled=dict.fromkeys(fields, Detail.ALL),
        sizes={},
    )
    sizes = {}
    for resolution in surveys:
        source = f"{quoted(_rollup_table(key, resolution))} WHERE {condition}"
        text = _rolled_up_sql(source, resolution, segment.table, known=tables[resolution])
        file = manifest.files.create(segment.path(resolution))
        reader = cursor.sql(text, params=[tenant]).to_arrow_reader(BATCH_ROWS)
        sizes[resolution] = write_parquet(file, reader, level=ROLLUP_LEVEL)
        manifest.files.publish(file, segment.path(resolution))
    return replace(segment, sizes=sizes)


def _rolled_up_sql(source: str, resolution: Resolution, table: Table, *, known: Table) -> str:
    """Return the statement of a roll-up's rows, those of minutes added up."""
    width = WIDTHS_NS[resolution]
    types = rollup_columns(table, resolution, dict.fromkeys(table.fields, Detail.ALL))
    columns = {_TIME: f"{_TIME} - {_TIME} % {width}", _NEWEST: f"max({_NEWEST})"}
    tags = [quoted(tag_column(tag)) for tag in sorted(table.tags)]
    present = {quoted(tag_column(tag)) for tag in known.tags}
    columns |= {tag: tag if tag in present else "NULL" for tag in tags}
    for name in table.fields:
        at = f"coalesce({_part(name, StoredAggregate.LAST_AT)}, {_NEWEST})"
        last = _part(name, StoredAggregate.LAST)
        values = {
            StoredAggregate.COUNT: f"sum({_part(name, _COUNT)})",
            StoredAggregate.SUM: f"sum({_part(name, StoredAggregate.SUM)})",
            StoredAggregate.MIN: f"min({_part(name, StoredAggregate.MIN)})",
            StoredAggregate.MAX: f"max({_part(name, StoredAggregate.MAX)})",
            StoredAggregate.LAST: f"arg_max({last}, {at})",
            StoredAggregate.LAST_AT: f"max({at}) FILTER (WHERE {last} IS NOT NULL)",
        }
        if resolution is Resolution.HOUR:
            # Its rows are not added up: each keeps its sketch.
            values[StoredAggregate.SKETCH] = f"any_value({_part(name, StoredAggregate.SKETCH)})"
        for part, value in values.items():
            if (column := aggregate_column(part, name)) in types:
                columns[column] = value if name in known.fields else "NULL"
    listed = [f"CAST({value} AS {types[name]}) AS {name}" for name, value in columns.items()]
    places = [1, *range(3, 3 + len(tags))]
    by = ", ".join(map(str, places)) + (", rowid" if resolution is Resolution.HOUR else "")
    order = ", ".join(map(str, [*places[1:], 1]))
    return f"{select(listed, source)} GROUP BY {by} ORDER BY {order}"


def _part(name: str, part: StoredAggregate) -> str:
    return f"{quoted(field_column(name))}.{quoted(part)}"
