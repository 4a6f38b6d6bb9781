"""Moves lines into files: those of appliances from the database, those of jobs from their logs.

A row names a file only when it is complete: after a crash the same lines are written again, and a
sweep deletes what no row names. Age and size of each tenant's files are bounded.
"""

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from uuid import UUID

import pyarrow as pa
from sqlalchemy import delete, func, or_, select
from sqlalchemy.exc import IntegrityError

from core.clock import from_ns, to_ns
from core.db import SessionFactory, transaction
from core.errors import UnavailableError
from core.ids import new_id
from jobqueue.logs.log_files import APPLIANCES, LogFiles
from jobqueue.logs.logs import LogPage, file_name
from jobqueue.models import Attempt
from jobqueue.states import LogState
from logs.files import BLOCK_BYTES, FileSummary, split_blocks, write_lines
from logs.lines import lines_of_batch, lines_of_log
from logs.models import LogBatch, LogFile

logger = logging.getLogger(__name__)

# A tenant's lines move to a file when the oldest is this old, or there are so many bytes.
PACK_AFTER = timedelta(hours=1)
PACK_BYTES = 8 * 1024 * 1024
ATTEMPTS = 100
# A file without a row may be one that is being written.
ORPHAN_AFTER = timedelta(hours=1)


def pack_lines(sessions: SessionFactory, files: LogFiles, *, now: datetime) -> int:
    """Move the lines of appliances that are due to files; return how many."""
    oldest, size = func.min(LogBatch.received_at), func.sum(LogBatch.size_bytes)
    due = (
        select(LogBatch.tenant_id)
        .group_by(LogBatch.tenant_id)
        .having(or_(oldest <= now - PACK_AFTER, size >= PACK_BYTES))
    )
    with transaction(sessions) as session:
        tenant_ids = list(session.scalars(due))
    return sum(_pack_tenant(sessions, files, tenant_id, now=now) for tenant_id in tenant_ids)


def _pack_tenant(
    sessions: SessionFactory, files: LogFiles, tenant_id: str, *, now: datetime
) -> int:
    statement = (
        select(LogBatch.id, LogBatch.appliance_id, LogBatch.data, LogBatch.size_bytes)
        .where(LogBatch.tenant_id == tenant_id)
        .order_by(LogBatch.received_at, LogBatch.id)
    )
    ids, tables, total_bytes = [], [], 0
    with transaction(sessions) as session:
        for row in session.execute(statement, execution_options={"yield_per": 100}):
            ids.append(row.id)
            tables.append(lines_of_batch(row.appliance_id, row.data))
            total_bytes += row.size_bytes
            if total_bytes >= 2 * PACK_BYTES:
                break
    if not tables:
        return 0
    file_id = new_id()
    name = f"{tenant_id}/{APPLIANCES}/{file_id}.parquet"
    summary = write_lines(files, name, split_blocks(pa.concat_tables(tables)))
    with transaction(sessions) as session:
        session.add(_row(summary, name, tenant_id=tenant_id, file_id=file_id, now=now))
        for start in range(0, len(ids), 500):
            session.execute(delete(LogBatch).where(LogBatch.id.in_(ids[start : start + 500])))
    return summary.line_count


def index_job_logs(
    sessions: SessionFactory,
    files: LogFiles,
    *,
    now: datetime,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Write a file of lines for each log that moved to a file; return how many."""
    statement = (
        select(Attempt)
        .outerjoin(LogFile, LogFile.attempt_id == Attempt.id)
        .where(Attempt.log_state == LogState.FILE, LogFile.id.is_(None))
        .order_by(Attempt.finished_at.desc())
        .limit(ATTEMPTS)
    )
    with transaction(sessions) as session:
        attempts = list(session.scalars(statement))
    written = 0
    for attempt in attempts:
        if is_stopping():
            break
        name = file_name(attempt.tenant_id, attempt.job_id, attempt.number)
        name = name.removesuffix(".log") + ".parquet"
        try:
            summary = write_lines(files, name, _blocks_of(files, attempt))
        except UnavailableError as error:
            # One log that is missing must not keep the others from being indexed.
            logger.warning("%s is not indexed: %s", name, error.message)
            continue
        row = _row(summary, name, tenant_id=attempt.tenant_id, file_id=new_id(), now=now)
        row.attempt_id = attempt.id
        try:
            with transaction(sessions) as session:
                session.add(row)
        except IntegrityError:
            logger.debug("%s was deleted or is indexed already", name)
        else:
            written += 1
    return written


def bound_files(
    sessions: SessionFactory, files: LogFiles, *, max_bytes: int, max_age: timedelta, now: datetime
) -> int:
    """Delete the oldest files of appliances' lines above a tenant's bounds; return how many."""
    own = LogFile.attempt_id.is_(None)
    with transaction(sessions) as session:
        names = list(
            session.scalars(select(LogFile.name).where(own, LogFile.last_ns < to_ns(now - max_age)))
        )
        total = func.sum(LogFile.size_bytes)
        large = select(LogFile.tenant_id, total).where(own).group_by(LogFile.tenant_id)
        for tenant_id, size in session.execute(large.having(total > max_bytes)).all():
            excess = int(size) - max_bytes
            oldest = select(LogFile.name, LogFile.size_bytes).where(
                own, LogFile.tenant_id == tenant_id
            )
            for name, size_bytes in session.execute(oldest.order_by(LogFile.last_ns)):
                if excess <= 0:
                    break
                names.append(name)
                excess -= size_bytes
        for start in range(0, len(names), 500):
            session.execute(delete(LogFile).where(LogFile.name.in_(names[start : start + 500])))
    for name in names:
        files.delete(name)
    return len(names)


def sweep_lines(sessions: SessionFactory, files: LogFiles, *, now: datetime) -> int:
    """Delete files of appliances' lines that no row names, once they are old; return how many."""
    swept = 0
    for tenant_id in files.names():
        names = files.names(f"{tenant_id}/{APPLIANCES}")
        with transaction(sessions) as session:
            named = set(session.scalars(select(LogFile.name).where(LogFile.tenant_id == tenant_id)))
        for name in (f"{tenant_id}/{APPLIANCES}/{name}" for name in names):
            if name not in named and _written_at(name) < now - ORPHAN_AFTER:
                files.delete(name)
                swept += 1
    return swept


def _written_at(name: str) -> datetime:
    """Return when a file was begun; a name that is not ours is old."""
    try:
        return from_ns((UUID(PurePosixPath(name).stem).int >> 80) * 1_000_000)
    except ValueError:
        return from_ns(0)


def _row(
    summary: FileSummary, name: str, *, tenant_id: str, file_id: str, now: datetime
) -> LogFile:
    return LogFile(
        id=file_id,
        tenant_id=tenant_id,
        name=name,
        first_ns=summary.first_ns,
        last_ns=summary.last_ns,
        line_count=summary.line_count,
        size_bytes=summary.size_bytes,
        created_at=now,
    )


def _blocks_of(files: LogFiles, attempt: Attempt) -> Iterator[pa.Table]:
    """Yield the lines of a log in a file, a block at a time."""
    appliance_id = "" if attempt.contract_id else attempt.appliance_id
    constants = {"job": attempt.job_id, "attempt": attempt.number, "appliance": appliance_id}
    default_ns = to_ns(attempt.started_at or attempt.bound_at)
    offset = 0
    while offset < attempt.log_bytes:
        page = LogPage(
            attempt.number,
            offset,
            offset,
            b"",
            is_complete=False,
            file=file_name(attempt.tenant_id, attempt.job_id, attempt.number),
            limit=BLOCK_BYTES,
            log_bytes=attempt.log_bytes,
        )
        data = files.filled(page).data
        whole = data if offset + len(data) >= attempt.log_bytes else data[: data.rfind(b"\n") + 1]
        data = whole or data
        if not data:
            return
        lines = lines_of_log(data, offset=offset, default_ns=default_ns, constants=constants)
        default_ns = lines["at"][-1].value
        yield lines
        offset += len(data)
