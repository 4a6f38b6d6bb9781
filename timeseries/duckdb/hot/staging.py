"""The staging table: small commits, which are on disk before they are in their tables.

An insert into the tables of ten measurements costs as much for a few points as for thousands.
Small commits therefore go to the *staging table*, as one value per table, and are acknowledged
with that commit. About every ten seconds the rows of all commits become columns together, and are
flushed into their tables in a transaction that also deletes them from the staging table; after a
crash they are still staged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import duckdb
import pyarrow as pa

from timeseries.duckdb.hot.ingest import widened
from timeseries.duckdb.hot.rows import Inserter, Rows, deserialize, oldest_ns, serialize
from timeseries.duckdb.hot.staged_series import Chunk, StagedSeries
from timeseries.duckdb.schema import Key, Schema, Table
from timeseries.series_batch import VALUE_FIELD
from timeseries.validation import FIELD_TYPES, FieldType

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
    """The staged rows, in the database and in memory; used by the writer's thread only.

    Attributes:
        series: the staged samples of numbered series.
        points: the number of other staged points; safe to read from any thread.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute(_DDL)
        self.points = 0
        self.series = StagedSeries(cursor)
        self._rows: dict[Key, list[tuple[int, Rows]]] = {}
        self._number = self.series.last_commit
        staged = cursor.execute(
            f"SELECT number, owner, measurement, columns FROM {STAGING_TABLE} ORDER BY number"  # noqa: S608 - ours
        ).fetchall()
        for number, owner, measurement, value in staged:
            self._add(number, Key(owner, measurement), deserialize(value))
            self._number = max(self._number, number)

    @property
    def keys(self) -> list[Key]:
        """The tables that have staged points; safe to read from any thread."""
        return list(dict.fromkeys([*self._rows, *self.series.pending]))

    @property
    def keys_of_rows(self) -> list[Key]:
        """Those that have others than samples of numbered series."""
        return list(self._rows)

    @property
    def keys_to_flush(self) -> list[Key]:
        """Those that are not flushed later with samples of numbered series: first ones are rows."""
        return [key for key in self._rows if key not in self.series.pending]

    def has(self, key: Key) -> bool:
        """Return whether a table has staged points."""
        return key in self._rows or key in self.series.pending

    def insert(self, inserter: Inserter, rows: RowsByTable) -> None:
        """Stage rows in the database, which commits them; `inserted` follows."""
        # Samples of commits are in order of writing.
        self.series.sort()
        number = self.next_number()
        staged = zip(
            *[
                (number, key.measurement, serialize(table_rows), key.owner)
                for key, table_rows in rows.items()
            ],
            strict=True,
        )
        arrays = [pa.array(of, kind) for of, kind in zip(staged, _COLUMNS.types, strict=True)]
        inserter.insert(STAGING_TABLE, pa.Table.from_arrays(arrays, schema=_COLUMNS))

    def next_number(self) -> int:
        """Return the number of the next commit."""
        self._number += 1
        return self._number

    def inserted(self, rows: RowsByTable) -> None:
        """Add committed rows to those in memory."""
        for key, table_rows in rows.items():
            self._add(self._number, key, table_rows)

    def rows(self, keys: Iterable[Key]) -> dict[Key, list[Rows]]:
        """Return the staged rows of some tables, in order of writing."""
        return {key: list(self._rows_of(key)) for key in keys}

    def names(self, key: Key) -> Iterator[tuple[set[str], dict[str, FieldType]]]:
        """Yield the tags and fields with values of a table's staged points; for any thread."""
        for _, rows in list(self._rows.get(key, ())):
            tags = {
                tag for tag, texts in zip(rows.tags, rows.tag_values, strict=True) if any(texts)
            }
            yield (
                tags,
                {
                    name: FIELD_TYPES[kind]
                    for name, kind in zip(rows.fields, rows.kinds, strict=True)
                },
            )
        if key in self.series.pending:
            for tag_names in self.series.series.tags(key):
                yield set(tag_names), {VALUE_FIELD: FieldType.FLOAT}

    def rows_only(self, key: Key) -> list[Rows]:
        """Return the staged rows of a table without the samples of numbered series."""
        return [rows for _, rows in self._rows.get(key, ())]

    def oldest_ns(self, key: Key) -> int:
        """Return the oldest time of a table's staged points, in nanoseconds since the epoch."""
        times = [oldest_ns([rows]) for _, rows in self._rows.get(key, ())]
        times += [int(chunk.times_ns.min()) for chunk in self.series.chunks(key)]
        return min(times)

    def remove(self, cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> None:
        """Delete the staged rows of some tables in the open transaction."""
        text = f"DELETE FROM {STAGING_TABLE} WHERE owner = ? AND measurement = ?"  # noqa: S608 - ours
        for key in keys:
            if key in self._rows:
                cursor.execute(text, key)
        self.series.remove(cursor, keys)

    def removed(self, keys: Sequence[Key]) -> None:
        """Remove them from memory once that transaction is committed."""
        for key in keys:
            self.points -= sum(len(rows.times_ns) for _, rows in self._rows.pop(key, ()))
        self.series.removed(keys)

    def schema(self, tables: Schema) -> dict[Key, Table]:
        """Return the schema that `tables` has once every staged row is flushed."""
        after = dict(tables)
        for key, staged in self._rows.items():
            table_rows = [rows for _, rows in staged]
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
        for key in self.series.pending:
            series_shapes = [
                ((), tags, (VALUE_FIELD,), (float,))
                for chunk in self.series.chunks(key)
                for tags in chunk.series.tags(key)
            ]
            after[key] = widened(after.get(key, Table()), series_shapes, key.measurement)
        return after

    def _add(self, number: int, key: Key, rows: Sequence[Rows]) -> None:
        self._rows.setdefault(key, []).extend((number, chunk) for chunk in rows)
        self.points += sum(len(chunk.times_ns) for chunk in rows)

    def _rows_of(self, key: Key) -> Iterator[Rows]:
        staged: list[tuple[int, Rows | Chunk]] = [*self._rows.get(key, ())]
        staged += [(chunk.number, chunk) for chunk in self.series.chunks(key)]
        staged.sort(key=lambda pair: pair[0])
        for series, group in groupby(
            staged, key=lambda pair: pair[1].series if isinstance(pair[1], Chunk) else None
        ):
            if series is None:
                yield from (rows for _, rows in group if isinstance(rows, Rows))
            else:
                chunk = Chunk.joined([part for _, part in group if isinstance(part, Chunk)])
                yield from series.rows(chunk.ids, chunk.times_ns, chunk.values)
