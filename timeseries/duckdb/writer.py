"""The one thread that writes to a DuckDB database: group commits and other changes, in turn."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import duckdb
import pyarrow as pa

from core.errors import VedetteError
from timeseries.batch import Batch
from timeseries.duckdb.database import Database, is_fatal
from timeseries.duckdb.ingest import parts_by_measurement, plan_insert
from timeseries.duckdb.insert import Inserter
from timeseries.duckdb.rollups_state import RollUpState
from timeseries.duckdb.schema import READ_COLUMNS, Schema, Table, ddl, schema_from, table_name
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.write_queue import Chore, Linger, Submission, WriteQueue

MAX_GROUP_POINTS = 50_000
LINGER = Linger(gap_seconds=0.005, max_seconds=0.1)

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class DuckDBWriter:
    """Owns the writing cursor of a database, and the schema as of the last commit.

    Args:
        database: opened anew by the writer when it shut itself down.
        max_queued_points: how many points may wait before `submit` refuses.
    """

    def __init__(self, database: Database, *, max_queued_points: int) -> None:
        self._database = database
        self._use(database.cursor())
        self._queue = WriteQueue(
            max_points=max_queued_points, max_group_points=MAX_GROUP_POINTS, linger=LINGER
        )
        self._thread = threading.Thread(target=self._run, name="duckdb-writer", daemon=True)
        self._thread.start()

    @property
    def schema(self) -> Schema:
        """The tables that readers can see; replaced as a whole, never changed."""
        return self._schema

    @property
    def roll_ups(self) -> RollUpState:
        """How far the roll-ups are; written to in the same transactions as the samples."""
        return self._roll_ups

    def submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next commit."""
        submission = Submission(batch, dict(identity))
        self._queue.put(submission)
        return submission.future

    def run(self, work: Callable[[duckdb.DuckDBPyConnection, Schema], _Result]) -> _Result:
        """Do something on the writer's thread in a transaction of its own, and wait for it."""

        def run() -> None:
            with self._transaction():
                results.append(work(self._cursor, self._schema))

        results: list[_Result] = []
        self._do(run)
        return results[0]

    def checkpoint(self) -> None:
        """Fold the log into the file, which returns the space of what was deleted."""

        def run() -> None:
            self._cursor.execute("CHECKPOINT")

        self._do(run)

    def mend(self) -> None:
        """Have the database opened anew; for a reader that found it has shut itself down."""
        self._queue.put(Chore(self._probe))

    def close(self) -> None:
        """Write what is queued and stop."""
        self._queue.close()
        self._thread.join()
        self._cursor.close()

    def _do(self, run: Callable[[], None]) -> None:
        chore = Chore(run)
        self._queue.put(chore)
        chore.future.result()

    def _use(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._inserter = Inserter(cursor)
        self._schema: Schema = schema_from(cursor.execute(READ_COLUMNS).fetchall())
        self._roll_ups = RollUpState(cursor)
        self._is_broken = False

    def _run(self) -> None:
        while (work := self._queue.take()) is not None:
            if isinstance(work, Chore):
                self._do_chore(work)
            else:
                self._commit([item for item in work if item.future.set_running_or_notify_cancel()])

    def _do_chore(self, chore: Chore) -> None:
        try:
            with self._mending():
                chore.run()
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must go on
            chore.future.set_exception(_as_store_error(error))
        else:
            chore.future.set_result(None)

    def _commit(self, group: list[Submission]) -> None:
        """Commit a group; where that fails, each alone, so that one can't fail the others."""
        try:
            with self._mending():
                answers = self._insert(group)
        except Exception as error:  # noqa: BLE001 - handed to the senders; the thread must go on
            if len(group) > 1 and not self._is_broken:
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
        written: dict[str, pa.Table] = {}
        schema = dict(self._schema)
        parts = parts_by_measurement((one.batch, one.identity) for one in group)
        with self._transaction():
            for measurement, some in parts.items():
                insert = plan_insert(measurement, some, schema=schema)
                for (submission, position), reason in insert.refused.items():
                    rejected[submission].append(RejectedPoint(position, reason))
                if insert.data is not None:
                    self._insert_rows(measurement, insert.table, insert.data, schema)
                    written[measurement] = insert.data
            self._roll_ups.in_transaction(self._cursor, written)
        self._schema = schema
        return [sorted(answer, key=lambda point: point.position) for answer in rejected]

    def _insert_rows(
        self, measurement: str, table: Table, data: pa.Table, schema: dict[str, Table]
    ) -> None:
        for statement in ddl(measurement, schema.get(measurement), table):
            self._cursor.execute(statement)
        schema[measurement] = table
        self._inserter.insert(table_name(measurement), data)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN, then COMMIT, or ROLLBACK on an error."""
        self._roll_ups.begin()
        self._cursor.begin()
        try:
            yield
        except BaseException:
            self._roll_back()
            raise
        try:
            self._cursor.commit()
        except duckdb.Error:
            self._inserter.forget()
            raise
        self._roll_ups.committed()

    def _roll_back(self) -> None:
        try:
            self._cursor.rollback()
        except duckdb.Error as error:
            # A database that has shut itself down can't roll back; the first error says why.
            _log.warning("could not roll back: %s", error)
        self._inserter.forget()

    def _probe(self) -> None:
        try:
            self._cursor.execute("SELECT 1")
        except duckdb.Error as error:
            self._is_broken = is_fatal(error)
            self._reopen_if_broken()

    @contextmanager
    def _mending(self) -> Iterator[None]:
        """Open the database anew before a piece of work, and again if that broke it."""
        self._reopen_if_broken()
        try:
            yield
        except duckdb.Error as error:
            self._is_broken = self._is_broken or is_fatal(error)
            raise

    def _reopen_if_broken(self) -> None:
        if not self._is_broken:
            return
        self._cursor.close()
        self._use(self._database.reopen())
        _log.warning("the time series store was opened again")


def _as_store_error(error: Exception) -> Exception:
    if isinstance(error, VedetteError):
        return error
    return StoreUnavailableError(f"The time series store could not write: {error}")
