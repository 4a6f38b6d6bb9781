"""Laying an appliance's samples together, so that a query for one passes by those of the others.

Samples come in the order of time, those of all appliances mixed, and a query for one appliance
would read them all. DuckDB knows the least and the greatest value of every column in each row
group: once samples for some row groups have come, they are written anew, ordered by a number made
of the appliance's name, the *cluster*. A sample that lies where it came is *loose*.

This is done beside the writer, in a transaction of its own.
"""

import logging

import duckdb

from timeseries.duckdb.database import Database, is_fatal
from timeseries.duckdb.rollups_coverage import MINUTE_NS, Span
from timeseries.duckdb.schema import (
    CLUSTER_COLUMN,
    LOOSE_COLUMN,
    TIME_COLUMN,
    quoted,
    table_name,
)
from timeseries.store import StoreUnavailableError

ROW_GROUP_ROWS = 122_880
BATCH_ROWS = 4 * ROW_GROUP_ROWS
"""So many samples are laid together at a time: whole row groups are written once."""

_TIME, _CLUSTER = quoted(TIME_COLUMN), quoted(CLUSTER_COLUMN)
_IS_LOOSE = f"{quoted(LOOSE_COLUMN)} IS NOT NULL"
_COLUMNS = (
    "SELECT column_name FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND table_name = ? ORDER BY column_index"
)

_log = logging.getLogger(__name__)


class Compaction:
    """Lays together what lies where it came.

    Nobody else may delete samples meanwhile, or whoever is second fails.

    Args:
        database: where it takes a cursor of its own.
        batch_rows: how many samples make a batch.
    """

    def __init__(self, database: Database, *, batch_rows: int = BATCH_ROWS) -> None:
        self._database = database
        self._batch_rows = batch_rows

    def run(self, measurement: str, *, before_ns: int) -> int:
        """Lay the oldest batch of a measurement together, if there is a whole one.

        Args:
            measurement: whose samples; the store has them.
            before_ns: samples before this are taken, a whole minute.

        Returns:
            How many samples there were; 0 where there was no batch, or when it could not be done
            now.

        Raises:
            StoreUnavailableError: the database has shut itself down.
        """
        with self._database.cursor() as cursor:
            try:
                return self._in_transaction(cursor, measurement, before_ns)
            except duckdb.Error as error:
                if is_fatal(error):
                    raise StoreUnavailableError(
                        f"The time series store could not lay samples together: {error}"
                    ) from error
                # Such as a column that was added meanwhile: the samples stay where they are.
                _log.info("%r is laid together later: %s", measurement, error)
                return 0

    def _in_transaction(
        self, cursor: duckdb.DuckDBPyConnection, measurement: str, before_ns: int
    ) -> int:
        table = quoted(table_name(measurement))
        cursor.begin()
        try:
            span = self._next_span(cursor, table, before_ns)
            moved = self._lay_together(cursor, measurement, span) if span else 0
        except BaseException:
            cursor.rollback()
            raise
        cursor.commit()
        return moved

    def _next_span(
        self, cursor: duckdb.DuckDBPyConnection, table: str, before_ns: int
    ) -> Span | None:
        """Return the whole minutes whose samples fit into a batch; at least one."""
        counts = cursor.execute(
            f"SELECT {_TIME} // {MINUTE_NS}, count(*) FROM {table} "  # noqa: S608 - own identifiers only
            f"WHERE {_IS_LOOSE} AND {_TIME} < ? GROUP BY 1 ORDER BY 1",
            [before_ns],
        ).fetchall()
        if sum(rows for _, rows in counts) < self._batch_rows:
            return None
        first, taken = counts[0]
        last = first
        for minute, rows in counts[1:]:
            taken += rows
            if taken > self._batch_rows:
                break
            last = minute
        return first * MINUTE_NS, (last + 1) * MINUTE_NS

    def _lay_together(self, cursor: duckdb.DuckDBPyConnection, measurement: str, span: Span) -> int:
        name = table_name(measurement)
        table = quoted(name)
        condition = f"{_IS_LOOSE} AND {_TIME} >= {span[0]} AND {_TIME} < {span[1]}"
        # Read here and not from the schema in memory, which may be of another moment.
        columns = [column for (column,) in cursor.execute(_COLUMNS, [name]).fetchall()]
        listed = ", ".join(quoted(column) for column in columns if column != LOOSE_COLUMN)
        cursor.execute(
            f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {table} "  # noqa: S608 - own identifiers only
            f"WHERE {condition} ORDER BY {_CLUSTER}, {_TIME}"
        )
        deleted = cursor.execute(f"DELETE FROM {table} WHERE {condition}")  # noqa: S608 - own identifiers only
        return int(deleted.fetchall()[0][0])
