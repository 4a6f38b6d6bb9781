"""The one thread that writes to a DuckDB database: group commits and other changes, in turn."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import duckdb

from core.errors import VedetteError
from timeseries.batch import Batch
from timeseries.duckdb.clusters import numbered, upgrade
from timeseries.duckdb.database import Database, is_fatal
from timeseries.duckdb.group import planned_group
from timeseries.duckdb.insert import Inserter
from timeseries.duckdb.rollups_state import RollUpState
from timeseries.duckdb.schema import READ_COLUMNS, Schema, Table, ddl, schema_from, table_name
from timeseries.duckdb.staging import Columns, Stage
from timeseries.store import RejectedPoint, StoreUnavailableError
from timeseries.write_queue import Chore, Linger, Submission, WriteQueue

MAX_GROUP_POINTS = 50_000
# A large body takes the parser tens of milliseconds: so long the next one is waited for.
LINGER = Linger(gap_seconds=0.05, max_seconds=0.2)
# From so many points on, a commit into the tables costs less than to stage them first.
UNSTAGED_POINTS = 4_000
MAX_STAGED_POINTS = 50_000
POUR_EVERY_SECONDS = 1.0

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class DuckDBWriter:
    """Owns the writing cursor of a database, the schema as of the last commit, and the stage.

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
        """The tables, once everything that was acknowledged is in them; never changed in place."""
        if self._stage.points and threading.current_thread() is not self._thread:
            self._queue.put(chore := Chore(self._try_to_pour))
            chore.future.result()
        return self._schema

    def table(self, measurement: str) -> Table | None:
        """Return a measurement's table, as of `schema`; None where there is none.

        Raises:
            StoreUnavailableError: samples that were acknowledged can't be brought into it.
        """
        schema = self.schema
        if measurement in self._stuck:
            raise StoreUnavailableError(
                f"Samples of {measurement!r} are kept and can't be read yet, as they can't be "
                f"brought into their table: {self._stuck[measurement]}. It is tried again with "
                "each query; the log of the portal says since when."
            )
        return schema.get(measurement)

    @property
    def roll_ups(self) -> RollUpState:
        """How far the roll-ups are; written to in the same transactions as the samples."""
        return self._roll_ups

    @property
    def measurements(self) -> list[str]:
        """Those that have a table, or samples that can't be brought into one; sorted."""
        return sorted({*self.schema, *self._stuck})

    @property
    def staged_points(self) -> int:
        """How many points are durable and not in their tables yet."""
        return self._stage.points

    def submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next commit."""
        submission = Submission(batch, dict(identity))
        self._queue.put(submission)
        return submission.future

    def run(self, work: Callable[[duckdb.DuckDBPyConnection, Schema], _Result]) -> _Result:
        """Do something on the writer's thread in a transaction of its own, and wait for it."""

        def run() -> None:
            self._pour()
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
        columns = cursor.execute(READ_COLUMNS).fetchall()
        upgrade(cursor, columns)
        self._schema: Schema = schema_from(columns)
        self._stage = Stage(cursor)
        self._planned: Schema = self._stage.schema(self._schema)
        self._pour_at = 0.0
        self._due: list[str] = []
        self._stuck: Mapping[str, str] = {}
        self._roll_ups = RollUpState(cursor)
        self._is_broken = False

    def _run(self) -> None:
        while (work := self._queue.take(seconds=self._seconds_to_pour())) is not None:
            if isinstance(work, Chore):
                self._do_chore(work)
            else:
                self._commit([item for item in work if item.future.set_running_or_notify_cancel()])
            self._pour_one_if_due()
        self._try_to_pour()

    def _seconds_to_pour(self) -> float | None:
        """Return in how long something on the stage is due; None where the stage is empty."""
        if not self._stage.points:
            return None
        return 0.0 if self._due else max(0.0, self._pour_at - time.monotonic())

    def _pour_one_if_due(self) -> None:
        """Pour one measurement: senders wait no longer than that for their commit."""
        is_full = self._stage.points >= MAX_STAGED_POINTS
        if not self._due and (is_full or self._seconds_to_pour() == 0):
            self._pour_at = time.monotonic() + POUR_EVERY_SECONDS
            self._due = self._stage.measurements
        if self._due:
            self._try_to_pour([self._due.pop()])

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

    def _insert(self, submissions: list[Submission]) -> Sequence[list[RejectedPoint]]:
        group = planned_group(submissions, schema=self._planned)
        is_full = self._stage.points >= 2 * MAX_STAGED_POINTS
        if group.points >= UNSTAGED_POINTS or is_full:
            self._write(group.columns, group.schema)
        elif group.points:
            self._put_on_stage(group.columns)
        self._planned = group.schema
        return group.rejected

    def _put_on_stage(self, columns: Columns) -> None:
        self._stage.insert(self._cursor, columns)
        if not self._stage.points:
            self._pour_at = time.monotonic() + POUR_EVERY_SECONDS
        self._stage.inserted(columns)

    def _write(self, columns: Columns, planned: Schema, *, from_stage: Sequence[str] = ()) -> None:
        """Insert columns into their tables in one transaction.

        Args:
            columns: the rows to insert.
            planned: what their tables must look like first.
            from_stage: the measurements of which these rows are what is staged.
        """
        schema = dict(self._schema)
        with self._transaction():
            for measurement, data in columns.items():
                table = planned[measurement]
                for statement in ddl(measurement, schema.get(measurement), table):
                    self._cursor.execute(statement)
                schema[measurement] = table
                self._inserter.insert(table_name(measurement), numbered(data))
            self._roll_ups.in_transaction(self._cursor, columns)
            self._stage.remove(self._cursor, from_stage)
        self._schema = schema
        self._stage.removed(from_stage)

    def _pour(self, measurements: Sequence[str] | None = None) -> None:
        """Bring what is staged, or some of it, into its tables."""
        some = self._stage.measurements if measurements is None else measurements
        if some:
            self._write(self._stage.whole(some), self._planned, from_stage=some)

    def _try_to_pour(self, measurements: Sequence[str] | None = None) -> None:
        """Bring what is staged into its tables; what can't be written stays on the stage."""
        some = self._stage.measurements if measurements is None else measurements
        some = [one for one in some if one in self._stage.measurements]
        try:
            with self._mending():
                self._pour(some)
            self._stuck = {one: why for one, why in self._stuck.items() if one not in some}
        except Exception as error:  # noqa: BLE001 - it is durable, and tried again
            if len(some) > 1 and not self._is_broken:
                for measurement in some:
                    self._try_to_pour([measurement])
                return
            self._stuck = {**self._stuck, **dict.fromkeys(some, str(error))}
            _log.warning("samples of %s wait for their tables: %s", ", ".join(some), error)

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
