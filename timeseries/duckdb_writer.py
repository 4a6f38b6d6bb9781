"""The one thread that writes to a DuckDB database: group commits and deletions, in turn."""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import duckdb

from core.errors import VedetteError
from timeseries.duckdb_ingest import Insert, plan_insert, rows_by_measurement
from timeseries.duckdb_schema import (
    READ_COLUMNS,
    Schema,
    Table,
    ddl,
    quoted,
    schema_from,
    table_name,
)
from timeseries.duckdb_sql import delete_sql
from timeseries.points import Point
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.write_queue import Chore, Submission, WriteQueue

MAX_GROUP_POINTS = 50_000

_BATCH = "incoming_batch"
_log = logging.getLogger(__name__)


class DuckDBWriter:
    """Owns the writing cursor of a database, and the schema as of the last commit.

    Args:
        cursor: a cursor that nobody else uses; closed with the writer.
        max_queued_points: how many points may wait before `submit` refuses.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection, *, max_queued_points: int) -> None:
        self._cursor = cursor
        self._schema: Schema = schema_from(cursor.execute(READ_COLUMNS).fetchall())
        self._queue = WriteQueue(max_points=max_queued_points, max_group_points=MAX_GROUP_POINTS)
        self._thread = threading.Thread(target=self._run, name="duckdb-writer", daemon=True)
        self._thread.start()

    @property
    def schema(self) -> Schema:
        """The tables that readers can see; replaced as a whole, never changed."""
        return self._schema

    def submit(
        self, points: Sequence[Point], identity: Mapping[str, str]
    ) -> Future[list[RejectedPoint]]:
        """Queue points for the next commit."""
        submission = Submission(points, dict(identity))
        self._queue.put(submission)
        return submission.future

    def delete(self, condition: str, value: object) -> None:
        """Delete the samples of all measurements that meet a condition, and wait for it."""
        chore = Chore(lambda: self._delete(condition, value))
        self._queue.put(chore)
        chore.future.result()

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.close()
        self._thread.join()
        self._cursor.close()

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Chore):
                self._do_chore(work)
            else:
                self._commit([item for item in work if item.future.set_running_or_notify_cancel()])

    def _do_chore(self, chore: Chore) -> None:
        try:
            chore.run()
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must go on
            chore.future.set_exception(_as_store_error(error))
        else:
            chore.future.set_result(None)

    def _commit(self, group: list[Submission]) -> None:
        """Commit a group; where that fails, each alone, so that one can't fail the others."""
        try:
            answers = self._insert(group)
        except Exception as error:  # noqa: BLE001 - handed to the senders; the thread must go on
            if len(group) > 1:
                for submission in group:
                    self._commit([submission])
                return
            _log.warning("points were not written: %s", error)
            for submission in group:
                submission.future.set_exception(_as_store_error(error))
            return
        for submission, answer in zip(group, answers, strict=True):
            submission.future.set_result(answer)

    def _insert(self, group: list[Submission]) -> list[list[RejectedPoint]]:
        rejected: list[list[RejectedPoint]] = [[] for _ in group]
        schema = dict(self._schema)
        with _Transaction(self._cursor):
            batches = [(submission.points, submission.identity) for submission in group]
            for measurement, rows in rows_by_measurement(batches).items():
                insert = plan_insert(measurement, rows, schema=schema)
                self._insert_rows(measurement, insert, schema)
                for (batch, index), reason in insert.refused.items():
                    rejected[batch].append(RejectedPoint(index, reason))
        self._schema = schema
        return [sorted(answer, key=lambda point: point.index) for answer in rejected]

    def _insert_rows(self, measurement: str, insert: Insert, schema: dict[str, Table]) -> None:
        if insert.data is None:
            return
        for statement in ddl(measurement, schema.get(measurement), insert.table):
            self._cursor.execute(statement)
        schema[measurement] = insert.table
        columns = ", ".join(map(quoted, insert.data.column_names))
        self._cursor.register(_BATCH, insert.data)
        try:
            self._cursor.execute(
                f"INSERT INTO {quoted(table_name(measurement))} ({columns}) "  # noqa: S608 - ours
                f"SELECT {columns} FROM {_BATCH}"
            )
        finally:
            self._cursor.unregister(_BATCH)

    def _delete(self, condition: str, value: object) -> None:
        with _Transaction(self._cursor):
            for measurement in self._schema:
                self._cursor.execute(delete_sql(measurement, condition), [value])


class _Transaction:
    """BEGIN, then COMMIT, or ROLLBACK on an error."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor

    def __enter__(self) -> None:
        self._cursor.begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._cursor.commit()
            return
        try:
            self._cursor.rollback()
        except duckdb.Error as error:
            # A database that has shut itself down can't roll back; the first error says why.
            _log.warning("could not roll back: %s", error)


def _as_store_error(error: Exception) -> Exception:
    if isinstance(error, VedetteError):
        return error
    return StoreUnavailableError(f"The time series store could not write: {error}")
