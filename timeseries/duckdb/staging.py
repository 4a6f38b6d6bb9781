"""Samples that are durable and not in their tables yet.

To insert into the tables of ten measurements costs as much for one sender's few points as for a
thousand senders'. Few points are therefore *staged* first: their columns go as one value into one
table, and are acknowledged with that commit. From there they are *poured* into their tables, what
gathered within a second at once, in a transaction that also takes them off the stage. A crash
between the two leaves them on the stage, where they are found when the file is opened again.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from timeseries.duckdb.schema import (
    TIME_COLUMN,
    FieldType,
    Schema,
    Table,
    field_column,
    tag_column,
)

STAGE_TABLE = "staged"
STAGE_DDL = (
    f"CREATE TABLE IF NOT EXISTS {STAGE_TABLE} "
    "(number BIGINT NOT NULL, measurement VARCHAR NOT NULL, columns BLOB NOT NULL)"
)

_TAG_PREFIX, _FIELD_PREFIX = tag_column(""), field_column("")
_FIELD_TYPES = {
    pa.float64(): FieldType.FLOAT,
    pa.int64(): FieldType.INTEGER,
    pa.bool_(): FieldType.BOOLEAN,
    pa.string(): FieldType.STRING,
}
_ONE_DICTIONARY = pa.ipc.IpcWriteOptions(unify_dictionaries=True)

Columns = Mapping[str, pa.Table]
"""Measurement to columns that are named like its table's."""


class Stage:
    """What is staged, in the database and in memory alike. For the writer's thread.

    Args:
        cursor: the writing cursor; used only here and within the transactions of its owner.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute(STAGE_DDL)
        self._pieces: dict[str, list[pa.Table]] = {}
        self._points = 0
        self._number = 0
        rows = cursor.execute(
            f"SELECT number, measurement, columns FROM {STAGE_TABLE} ORDER BY number"  # noqa: S608 - ours
        ).fetchall()
        for number, measurement, value in rows:
            self._number = number
            self.inserted({measurement: unpacked(value)})

    @property
    def points(self) -> int:
        """How many points are on the stage; any thread may ask."""
        return self._points

    @property
    def measurements(self) -> list[str]:
        """Those that have points on the stage."""
        return list(self._pieces)

    def insert(self, cursor: duckdb.DuckDBPyConnection, columns: Columns) -> None:
        """Put columns on the stage, which commits them."""
        self._number += 1
        places = ", ".join(["(?, ?, ?)"] * len(columns))
        values = [
            value
            for measurement, data in columns.items()
            for value in (self._number, measurement, packed(data))
        ]
        cursor.execute(f"INSERT INTO {STAGE_TABLE} VALUES {places}", values)  # noqa: S608 - ours

    def inserted(self, columns: Columns) -> None:
        """Note that they are on the stage."""
        for measurement, data in columns.items():
            self._pieces.setdefault(measurement, []).append(data)
            self._points += data.num_rows

    def whole(self, measurements: Iterable[str]) -> Columns:
        """Return what is staged of some measurements, each in one piece."""
        found = {}
        for measurement in measurements:
            whole = pa.concat_tables(self._pieces[measurement], promote_options="default")
            # Every piece that DuckDB reads costs it something.
            found[measurement] = whole.unify_dictionaries().combine_chunks()
        return found

    def remove(self, cursor: duckdb.DuckDBPyConnection, measurements: Iterable[str]) -> None:
        """Take some measurements off the stage in the open transaction."""
        for measurement in measurements:
            cursor.execute(f"DELETE FROM {STAGE_TABLE} WHERE measurement = ?", [measurement])  # noqa: S608 - ours

    def removed(self, measurements: Iterable[str]) -> None:
        """Note that the transaction was committed."""
        for measurement in measurements:
            self._points -= sum(data.num_rows for data in self._pieces.pop(measurement))

    def schema(self, tables: Schema) -> dict[str, Table]:
        """Return the schema once everything is in its tables.

        Args:
            tables: the schema now.
        """
        after = dict(tables)
        for measurement, pieces in self._pieces.items():
            for data in pieces:
                after[measurement] = _widened(after.get(measurement, Table()), data.schema)
        return after


def packed(data: pa.Table) -> memoryview:
    """Return columns as one value."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema, options=_ONE_DICTIONARY) as stream:
        stream.write_table(data)
    return memoryview(sink.getvalue())


def unpacked(value: bytes) -> pa.Table:
    """Return the columns of a value that `packed` has made."""
    return pa.ipc.open_stream(value).read_all()


def _widened(table: Table, columns: Iterable[pa.Field]) -> Table:
    tags, fields = set(table.tags), dict(table.fields)
    for column in columns:
        if column.name.startswith(_TAG_PREFIX):
            tags.add(unquote(column.name.removeprefix(_TAG_PREFIX)))
        elif column.name != TIME_COLUMN:
            name = unquote(column.name.removeprefix(_FIELD_PREFIX))
            fields.setdefault(name, _FIELD_TYPES[column.type])
    return Table(frozenset(tags), fields)
