"""Arrow tables into DuckDB by statements that are prepared once.

To parse and plan an INSERT costs several times as much as to run it for the points of a few
senders, so a statement is kept for each set of columns; what it reads is handed to it each time.
"""

from collections.abc import Sequence
from itertools import count

import duckdb
import pyarrow as pa

from timeseries.duckdb.schema import quoted

MAX_STATEMENTS = 256


class Inserter:
    """Inserts through one cursor, which nobody else uses at that moment."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._statements: dict[tuple[str, ...], tuple[str, _Incoming]] = {}
        self._numbers = count()

    def insert(self, table: str, data: pa.Table) -> None:
        """Insert rows; the data's columns are named as the table's."""
        key = (table, *data.column_names)
        if key not in self._statements:
            if len(self._statements) >= MAX_STATEMENTS:
                self.forget()
            self._statements[key] = self._prepared(table, data)
        name, incoming = self._statements[key]
        incoming.data = data
        try:
            self._cursor.execute(f"EXECUTE {name}")
        finally:
            incoming.data = data.slice(0, 0)

    def forget(self) -> None:
        """Drop every statement: a transaction that rolled back may have taken some along."""
        for name, _ in self._statements.values():
            for drop in (f"DEALLOCATE {name}", f"DROP VIEW IF EXISTS {_view(name)}"):
                _try(self._cursor, drop)
        self._statements.clear()

    def _prepared(self, table: str, data: pa.Table) -> "tuple[str, _Incoming]":
        name = f"insert_{next(self._numbers)}"
        incoming = _Incoming(data)
        self._cursor.register(_view(name), incoming)
        columns = _listed(data.column_names)
        self._cursor.execute(
            f"PREPARE {name} AS INSERT INTO {quoted(table)} ({columns}) "  # noqa: S608 - ours
            f"SELECT {columns} FROM {_view(name)}"
        )
        return name, incoming


class _Incoming:
    """What a statement reads: whatever is in `data` when it runs."""

    def __init__(self, data: pa.Table) -> None:
        self.data = data

    def __arrow_c_schema__(self) -> object:
        return self.data.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


def _view(name: str) -> str:
    return f"incoming_for_{name}"


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(quoted, columns))


def _try(cursor: duckdb.DuckDBPyConnection, statement: str) -> None:
    try:
        cursor.execute(statement)
    except duckdb.Error:
        return
