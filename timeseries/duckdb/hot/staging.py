"""The staging table: small commits, which are on disk before they are in their tables.

An insert into the tables of ten measurements costs as much for a few points as for thousands.
Small commits therefore go to the *staging table*, as one value per table, and are acknowledged
with that commit. About every ten seconds the rows of all commits become columns together, and are
flushed into their tables in a transaction that also deletes them from the staging table; after a
crash they are still staged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import duckdb
import pyarrow as pa

from timeseries.duckdb.hot.ingest import widened
from timeseries.duckdb.hot.insert import Inserter
from timeseries.duckdb.hot.rows import Rows, deserialize, serialize
from timeseries.duckdb.schema import Key, Schema, Table
from timeseries.validation import FieldType

STAGING_TABLE = "staged"
_DDL = (
    f"CREATE TABLE IF NOT EXISTS {STAGING_TABLE} (number BIGINT NOT NULL, "
    "measurement VARCHAR NOT NULL, columns BLOB NOT NULL); "
    f"ALTER TABLE {STAGING_TABLE} ADD COLUMN IF NOT EXISTS owner VARCHAR DEFAULT ''"
)
_COLUMNS = pa.schema(
    {
        "number": pa.int64(),
        "measurement": pa.string(),
        "columns": pa.binary(),
        "owner": pa.string(),
    }
)
RowsByTable = Mapping[Key, Sequence[Rows]]


class StagingTable:
    """The staged rows, in the database and in memory; used by the writer's thread only."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute(_DDL)
        self._rows: dict[Key, list[Rows]] = {}
        self._points = 0
        self._number = 0
        staged = cursor.execute(
            f"SELECT number, owner, measurement, columns FROM {STAGING_TABLE} ORDER BY number"  # noqa: S608 - ours
        ).fetchall()
        for number, owner, measurement, value in staged:
            self._number = number
            self.inserted({Key(owner, measurement): deserialize(value)})

    @property
    def points(self) -> int:
        """The number of staged points; safe to read from any thread."""
        return self._points

    @property
    def keys(self) -> list[Key]:
        """The tables that have staged points."""
        return list(self._rows)

    def insert(self, inserter: Inserter, rows: RowsByTable) -> None:
        """Stage rows in the database, which commits them; `inserted` follows."""
        self._number += 1
        staged = zip(
            *[
                (self._number, key.measurement, serialize(table_rows), key.owner)
                for key, table_rows in rows.items()
            ],
            strict=True,
        )
        arrays = [pa.array(of, kind) for of, kind in zip(staged, _COLUMNS.types, strict=True)]
        inserter.insert(STAGING_TABLE, pa.Table.from_arrays(arrays, schema=_COLUMNS))

    def inserted(self, rows: RowsByTable) -> None:
        """Add committed rows to those in memory."""
        for key, table_rows in rows.items():
            self._rows.setdefault(key, []).extend(table_rows)
            self._points += _points(table_rows)

    def rows(self, keys: Iterable[Key]) -> RowsByTable:
        """Return the staged rows of some tables."""
        return {key: self._rows[key] for key in keys}

    def remove(self, cursor: duckdb.DuckDBPyConnection, keys: Iterable[Key]) -> None:
        """Delete the staged rows of some tables in the open transaction."""
        text = f"DELETE FROM {STAGING_TABLE} WHERE owner = ? AND measurement = ?"  # noqa: S608 - ours
        for key in keys:
            cursor.execute(text, key)

    def removed(self, keys: Iterable[Key]) -> None:
        """Remove them from memory once that transaction is committed."""
        for key in keys:
            self._points -= _points(self._rows.pop(key))

    def schema(self, tables: Schema) -> dict[Key, Table]:
        """Return the schema that `tables` has once every staged row is flushed."""
        after = dict(tables)
        for key, table_rows in self._rows.items():
            table = after.get(key, Table())
            # Earlier versions staged integers and floats of one field.
            floats = {
                name: FieldType.FLOAT
                for chunk in table_rows
                for name, kind in zip(chunk.fields, chunk.kinds, strict=True)
                if kind is float
            }
            table = replace(table, fields={**table.fields, **floats})
            shapes = {((), chunk.tags, chunk.fields, chunk.kinds): None for chunk in table_rows}
            after[key] = widened(table, shapes, key.measurement)
        return after


def _points(rows: Iterable[Rows]) -> int:
    return sum(len(chunk.times_ns) for chunk in rows)
