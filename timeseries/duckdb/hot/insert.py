"""Inserting Arrow tables into DuckDB by prepared statements.

Parsing and planning an INSERT costs several times as much as running it for the points of a few
senders, so each set of columns has a prepared statement that reads whatever is passed to it.
"""

from contextlib import suppress
from itertools import count

import duckdb
import pyarrow as pa

from timeseries.duckdb.schema import quoted

MAX_STATEMENTS = 256


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
