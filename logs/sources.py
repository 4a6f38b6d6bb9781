"""Where lines are, for a search in a scope: the blocks of all sources in its time range."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Row, Select, delete, select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.db import SessionFactory, transaction
from jobqueue.jobs.gangs import with_gang
from jobqueue.logs.log_files import LogFiles
from jobqueue.logs.logs import LogPage, file_name, read_chunks
from jobqueue.models import OWN_APPLIANCE_ID, Attempt, Job
from jobqueue.states import LogState
from logs.blocks import Block, PlainLog, block_of_file, block_of_log
from logs.events import EVENT_TABLES, event_block
from logs.files import DamagedFileError
from logs.lines import Source, lines_of_batch
from logs.models import LogBatch, LogFile
from logs.query import LogQuery
from tenants.models import Appliance
from tenants.permissions import Permission
from tenants.scope import Scope

# Of each kind that overlap a time range; the newest count, and the search says so.
MAX_FILES = 50_000
# Clocks of appliances and of the portal differ by less.
CLOCK_SLACK_NS = 60 * 10**9
_COLUMNS_OF_ATTEMPTS: list[Any] = [
    Attempt.id,
    Attempt.tenant_id,
    Attempt.job_id,
    OWN_APPLIANCE_ID.label("appliance_id"),
    Attempt.number,
    Attempt.log_bytes,
    Attempt.log_state,
    Attempt.assigned_at,
    Attempt.finished_at,
    LogFile.name,
    LogFile.first_ns,
    LogFile.last_ns,
]
_COLUMNS_OF_BATCHES: list[Any] = [
    LogBatch.id,
    LogBatch.appliance_id,
    LogBatch.first_ns,
    LogBatch.last_ns,
]


class LogSources:
    """The sources of one search.

    Args:
        sessions: of the database.
        files: of logs.
        scope: whose logs are searched.
        now: the time.
    """

    def __init__(
        self, sessions: SessionFactory, files: LogFiles, scope: Scope, *, now: datetime
    ) -> None:
        self._sessions = sessions
        self._files = files
        self._scope = scope
        self._now = now

    def blocks(self, query: LogQuery) -> list[Block]:
        """Return the blocks that may have matching lines.

        Raises:
            NotFoundError: the scope has no such appliance or job.
        """
        scope = self._scope
        scope.require(Permission.VIEW)
        with transaction(self._sessions) as session:
            if query.appliance_id:
                scope.get(session, Appliance, query.appliance_id, kind="appliance")
            if query.job_id:
                scope.get(session, Job, query.job_id, kind="job")
            blocks: list[Block] = []
            if Source.JOB in query.sources:
                blocks += self._job_blocks(session, query)
            if Source.APPLIANCE in query.sources and not query.job_id:
                blocks += self._appliance_blocks(session, query)
        for source in EVENT_TABLES.keys() & query.sources:
            blocks += event_block(self._sessions, scope, source, query)
        return blocks

    def _job_blocks(self, session: Session, query: LogQuery) -> Iterator[Block]:
        start_at = from_ns(query.start_ns - CLOCK_SLACK_NS)
        end_at = from_ns(query.end_ns + CLOCK_SLACK_NS)
        statement: Select[Any] = (
            select(*_COLUMNS_OF_ATTEMPTS)
            .outerjoin(LogFile, LogFile.attempt_id == Attempt.id)
            .where(Attempt.log_state != LogState.DELETED, Attempt.log_bytes > 0)
            .where(Attempt.assigned_at < end_at)
            .where((Attempt.finished_at >= start_at) | Attempt.finished_at.is_(None))
        )
        if query.job_id:
            statement = statement.where(
                Attempt.job_id.in_(with_gang(query.job_id, rank=query.rank))
            )
        if query.appliance_id:
            statement = statement.where(Attempt.appliance_id == query.appliance_id)
        newest = self._scope.select(statement, Attempt).order_by(Attempt.assigned_at.desc())
        rows = session.execute(newest.limit(MAX_FILES)).all()
        yield from _left_out(query, len(rows), "logs of jobs")
        for row in rows:
            if row.name is None or row.log_state is LogState.LIVE:
                yield block_of_log(self._plain_log(row))
            elif row.last_ns >= query.start_ns and row.first_ns < query.end_ns:
                span = (row.first_ns, row.last_ns)
                yield block_of_file(
                    self._files, row.name, query, span, on_damage=partial(self._forget, row.id)
                )

    def _forget(self, attempt_id: str) -> None:
        """Forget a damaged file of lines: it is written again from the log itself."""
        with transaction(self._sessions) as session:
            session.execute(delete(LogFile).where(LogFile.attempt_id == attempt_id))

    def _plain_log(self, row: Row[Any]) -> PlainLog:
        read = self._read_database if row.log_state is LogState.LIVE else self._read_file
        finished_at = row.finished_at or self._now
        constants = {"job": row.job_id, "attempt": row.number, "appliance": row.appliance_id or ""}
        return PlainLog(
            read=partial(read, row),
            size_bytes=row.log_bytes,
            first_ns=to_ns(row.assigned_at) - CLOCK_SLACK_NS,
            last_ns=to_ns(finished_at) + CLOCK_SLACK_NS,
            constants=constants,
        )

    def _read_database(self, row: Row[Any], offset: int, limit: int) -> bytes:
        with transaction(self._sessions) as session:
            return read_chunks(session, row.id, offset=offset, limit=limit)

    def _read_file(self, row: Row[Any], offset: int, limit: int) -> bytes:
        page = LogPage(
            row.number,
            offset,
            offset,
            b"",
            is_complete=False,
            file=file_name(row.tenant_id, row.job_id, row.number),
            limit=limit,
        )
        return self._files.filled(page).data

    def _appliance_blocks(self, session: Session, query: LogQuery) -> Iterator[Block]:
        yield from self._of_files(session, query)
        statement: Select[Any] = select(*_COLUMNS_OF_BATCHES).where(
            LogBatch.last_ns >= query.start_ns, LogBatch.first_ns < query.end_ns
        )
        if query.appliance_id:
            statement = statement.where(LogBatch.appliance_id == query.appliance_id)
        for row in session.execute(self._scope.select(statement, LogBatch)):
            yield Block(row.first_ns, row.last_ns, partial(self._read_batch, row))

    def _of_files(self, session: Session, query: LogQuery) -> Iterator[Block]:
        columns: list[Any] = [LogFile.name, LogFile.first_ns, LogFile.last_ns]
        statement: Select[Any] = select(*columns).where(
            LogFile.attempt_id.is_(None),
            LogFile.last_ns >= query.start_ns,
            LogFile.first_ns < query.end_ns,
        )
        newest = self._scope.select(statement, LogFile).order_by(LogFile.last_ns.desc())
        rows = session.execute(newest.limit(MAX_FILES)).all()
        yield from _left_out(query, len(rows), "files with logs of appliances")
        for name, first_ns, last_ns in rows:
            yield block_of_file(self._files, name, query, (first_ns, last_ns))

    def _read_batch(self, row: Row[Any], _columns: Sequence[str]) -> Any:  # noqa: ANN401 - a table
        with transaction(self._sessions) as session:
            data = session.scalar(select(LogBatch.data).where(LogBatch.id == row.id))
        # It is in a file since the search began; the next page has its lines.
        return [] if data is None else lines_of_batch(row.appliance_id, data)


def _left_out(query: LogQuery, count: int, what: str) -> Iterator[Block]:
    """Yield a block that reports that older logs are not searched, if there are too many."""
    if count < MAX_FILES:
        return

    def load(_columns: Sequence[str]) -> Sequence[Block]:
        raise DamagedFileError(
            f"only the newest {MAX_FILES:,} {what} were searched. Choose a shorter time range."
        )

    yield Block(query.start_ns, query.end_ns, load)
