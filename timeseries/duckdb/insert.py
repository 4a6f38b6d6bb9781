"""Inserting Arrow tables into DuckDB: prepared statements, and a staging table for small commits.

Parsing and planning an INSERT costs several times as much as running it for the points of a few
senders, so each set of columns has a prepared statement that reads whatever is passed to it.

An insert into the tables of ten measurements costs as much for a few points as for thousands.
Small commits therefore go to the *staging table*, as one serialized value per measurement, and are
acknowledged with that commit. About once a second they are flushed into their tables, in a
transaction that also deletes them from the staging table; after a crash they are still staged.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from timeseries.duckdb.schema import (
    TIME_COLUMN,
    Key,
    Schema,
    Table,
    common_type,
    field_column,
    quoted,
    tag_column,
)
from timeseries.validation import FieldType

MAX_STATEMENTS = 256
STAGING_TABLE = "staged"
STAGING_DDL = (
    f"CREATE TABLE IF NOT EXISTS {STAGING_TABLE} (number BIGINT NOT NULL, "
    "measurement VARCHAR NOT NULL, columns BLOB NOT NULL); "
    f"ALTER TABLE {STAGING_TABLE} ADD COLUMN IF NOT EXISTS owner VARCHAR DEFAULT ''"
)
_STAGED = pa.schema(
    {
        "number": pa.int64(),
        "measurement": pa.string(),
        "columns": pa.binary(),
        "owner": pa.string(),
    }
)
_TAG_PREFIX, _FIELD_PREFIX = tag_column(""), field_column("")
_FIELD_TYPES = {
    pa.float64(): FieldType.FLOAT,
    pa.int64(): FieldType.INTEGER,
    pa.bool_(): FieldType.BOOLEAN,
    pa.string(): FieldType.STRING,
}
_ONE_DICTIONARY = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
Columns = Mapping[Key, pa.Table]
"""Rows by table, whose columns are named as those of the table."""


class Inserter:
    """Inserts through one cursor, which nothing else uses at the same time."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._statements: dict[tuple[object, ...], tuple[str, _Incoming]] = {}
        self._numbers = count()

    def insert(self, table: str, data: pa.Table) -> None:
        """Insert rows, whose columns are named as those of the table."""
        key = (table, *zip(data.column_names, data.schema.types, strict=True))
        if key not in self._statements:
            if len(self._statements) >= MAX_STATEMENTS:
                self.clear()
            self._statements[key] = self._prepare(table, data)
        name, incoming = self._statements[key]
        incoming.data = data
        try:
            self._cursor.execute(f"EXECUTE {name}")
        finally:
            incoming.data = data.slice(0, 0)

    def clear(self) -> None:
        """Drop every statement: a rollback may have dropped some of them."""
        for name, _ in self._statements.values():
            for drop in (f"DEALLOCATE {name}", f"DROP VIEW IF EXISTS {_view(name)}"):
                with suppress(duckdb.Error):
                    self._cursor.execute(drop)
        self._statements.clear()

    def _prepare(self, table: str, data: pa.Table) -> "tuple[str, _Incoming]":
        name = f"insert_{next(self._numbers)}"
        incoming = _Incoming(data)
        self._cursor.register(_view(name), incoming)
        columns = ", ".join(map(quoted, data.column_names))
        self._cursor.execute(
            f"PREPARE {name} AS INSERT INTO {quoted(table)} ({columns}) "  # noqa: S608 - ours
            f"SELECT {columns} FROM {_view(name)}"
        )
        return name, incoming


class _Incoming:
    """The input of a prepared statement: `data` at the time it runs."""

    def __init__(self, data: pa.Table) -> None:
        self.data = data

    def __arrow_c_schema__(self) -> object:
        return self.data.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


def _view(name: str) -> str:
    return f"incoming_for_{name}"


class StagingTable:
    """The staged rows, in the database and in memory; used by the writer's thread only."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute(STAGING_DDL)
        self._pieces: dict[Key, list[pa.Table]] = {}
        self._points = 0
        self._number = 0
        rows = cursor.execute(
            f"SELECT number, owner, measurement, columns FROM {STAGING_TABLE} ORDER BY number"  # noqa: S608 - ours
        ).fetchall()
        for number, owner, measurement, value in rows:
            self._number = number
            self.inserted({Key(owner, measurement): deserialize(value)})

    @property
    def points(self) -> int:
        """How many points are staged; safe to read from any thread."""
        return self._points

    @property
    def keys(self) -> list[Key]:
        """The tables that have staged points."""
        return list(self._pieces)

    def insert(self, inserter: Inserter, columns: Columns) -> None:
        """Stage rows in the database, which commits them; `inserted` follows."""
        self._number += 1
        rows = [
            (self._number, key.measurement, serialize(data), key.owner)
            for key, data in columns.items()
        ]
        staged = zip(*rows, strict=True)
        arrays = [pa.array(of, kind) for of, kind in zip(staged, _STAGED.types, strict=True)]
        inserter.insert(STAGING_TABLE, pa.Table.from_arrays(arrays, schema=_STAGED))

    def inserted(self, columns: Columns) -> None:
        """Add committed rows to those in memory."""
        for key, data in columns.items():
            self._pieces.setdefault(key, []).append(data)
            self._points += data.num_rows

    def combined(self, keys: Iterable[Key]) -> Columns:
        """Return the staged rows of some tables, each as one."""
        found = {}
        for key in keys:
            whole = pa.concat_tables(
                _with_common_types(self._pieces[key]), promote_options="default"
            )
            # Each chunk has a cost for DuckDB.
            found[key] = whole.unify_dictionaries().combine_chunks()
        return found

    def remove(self, cursor: duckdb.DuckDBPyConnection, keys: Iterable[Key]) -> None:
        """Delete the staged rows of some tables in the open transaction."""
        text = f"DELETE FROM {STAGING_TABLE} WHERE owner = ? AND measurement = ?"  # noqa: S608 - ours
        for key in keys:
            cursor.execute(text, key)

    def removed(self, keys: Iterable[Key]) -> None:
        """Remove them from memory once that transaction is committed."""
        for key in keys:
            self._points -= sum(data.num_rows for data in self._pieces.pop(key))

    def schema(self, tables: Schema) -> dict[Key, Table]:
        """Return the schema that `tables` has once every staged row is flushed."""
        after = dict(tables)
        for key, pieces in self._pieces.items():
            for data in pieces:
                after[key] = _widened(after.get(key, Table()), data.schema)
        return after


def serialize(data: pa.Table) -> memoryview:
    """Return rows as one Arrow IPC value."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=_ONE_DICTIONARY) as stream:
        stream.write_table(data)
    return memoryview(sink.getvalue())


def deserialize(value: bytes) -> pa.Table:
    """Return the rows of a value made by `serialize`."""
    return pa.ipc.open_stream(value).read_all()


def _with_common_types(pieces: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Return pieces with floats where only some have integers."""
    floats = {one.name for data in pieces for one in data.schema if one.type == pa.float64()}
    return [
        data.cast(
            pa.schema(
                one.with_type(pa.float64()) if one.name in floats else one for one in data.schema
            )
        )
        if any(one.type == pa.int64() and one.name in floats for one in data.schema)
        else data
        for data in pieces
    ]


def _widened(table: Table, columns: Iterable[pa.Field]) -> Table:
    tags, fields = set(table.tags), dict(table.fields)
    for column in columns:
        if column.name.startswith(_TAG_PREFIX):
            tags.add(unquote(column.name.removeprefix(_TAG_PREFIX)))
        elif column.name != TIME_COLUMN:
            name = unquote(column.name.removeprefix(_FIELD_PREFIX))
            kind = _FIELD_TYPES[column.type]
            fields[name] = common_type(fields.get(name, kind), kind)
    return Table(frozenset(tags), fields)
