"""Logs: an attempt's output, uploaded by its agent in chunks and read by users.

A log has the records of `protocol.logs`. Offsets count bytes. A chunk is stored only at the end of
the stored log, so a repeated upload changes nothing and there are no gaps.
"""

from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.guarded_update import changed_one
from jobqueue.models import Attempt, LogChunk
from jobqueue.service import get_job
from protocol.attempts import LogAck
from protocol.logs import MAX_RECORD_BYTES
from tenants.scope import Scope

MAX_LOG_BYTES = 8 * 1024 * 1024
DEFAULT_LIMIT_BYTES = 64 * 1024
MAX_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogPage:
    """A part of a log; continue at `next_offset` until it `is_complete`.

    `attempt_number` is 0 while the job has no attempt.
    """

    attempt_number: int
    offset: int
    next_offset: int
    data: bytes
    is_complete: bool


def append_log(
    session: Session, appliance_id: str, attempt_id: str, *, offset: int, data: bytes
) -> LogAck:
    """Append a chunk to an attempt's log if it begins where the stored log ends.

    After `MAX_LOG_BYTES` the log is full and the rest is not stored.

    Raises:
        NotFoundError: the appliance has no such attempt.
    """
    stored = session.scalar(
        select(Attempt.log_bytes).where(
            Attempt.id == attempt_id, Attempt.appliance_id == appliance_id
        )
    )
    if stored is None:
        raise NotFoundError.of("attempt", attempt_id)
    chunk = data[: MAX_LOG_BYTES - stored]
    if offset != stored or not chunk:
        return _acknowledge(stored)
    end = stored + len(chunk)
    # Of two concurrent uploads of a chunk, the second finds the log longer.
    growth = (
        update(Attempt)
        .where(Attempt.id == attempt_id, Attempt.log_bytes == stored)
        .values(log_bytes=end)
    )
    if changed_one(session, growth, synchronize_session=False):
        session.add(LogChunk(attempt_id=attempt_id, offset=stored, data=chunk))
        session.flush()
    return _acknowledge(end)


def read_log(
    session: Session,
    scope: Scope,
    job_id: str,
    *,
    offset: int = 0,
    limit: int = DEFAULT_LIMIT_BYTES,
    attempt_number: int | None = None,
    tail_bytes: int | None = None,
) -> LogPage:
    """Return up to `limit` bytes of a job's log from `offset`; of its latest attempt by default.

    With `tail_bytes` instead of an offset, it begins with the first line this long before the end.

    Raises:
        NotFoundError: there is no such job, or it has no such attempt.
    """
    job = get_job(session, scope, job_id)
    offset = max(0, offset)
    if attempt_number is None:
        if job.attempt is None:
            return LogPage(0, offset, offset, b"", job.state.is_final)
        attempt_number = job.attempt.number
    if tail_bytes is not None:
        size = next((a.log_bytes for a in job.attempts if a.number == attempt_number), 0)
        offset = line_start(session, job.id, attempt_number, max(0, size - tail_bytes))
    return read_attempt_log(session, job.id, attempt_number, offset=offset, limit=limit)


def read_attempt_log(
    session: Session, job_id: str, number: int, *, offset: int, limit: int
) -> LogPage:
    """Return up to `limit` bytes of the log of an attempt from `offset`, of a job in scope.

    Raises:
        NotFoundError: the job has no such attempt.
    """
    statement = select(Attempt.id, Attempt.state, Attempt.log_bytes)
    found = session.execute(
        statement.where(Attempt.job_id == job_id, Attempt.number == number)
    ).one_or_none()
    if found is None:
        raise NotFoundError.of("attempt", str(number))
    data = _read(session, found.id, offset=offset, limit=max(1, min(limit, MAX_LIMIT_BYTES)))
    next_offset = offset + len(data)
    is_complete = found.state.is_final and next_offset >= found.log_bytes
    return LogPage(number, offset, next_offset, data, is_complete)


def line_start(session: Session, job_id: str, number: int, offset: int) -> int:
    """Return the offset of the first line that begins at or behind an offset."""
    if offset == 0:
        return 0
    before = offset - 1
    page = read_attempt_log(session, job_id, number, offset=before, limit=MAX_RECORD_BYTES)
    return before + page.data.find(b"\n") + 1


def _acknowledge(stored: int) -> LogAck:
    return LogAck(next_offset=stored, is_full=stored >= MAX_LOG_BYTES)


def _read(session: Session, attempt_id: str, *, offset: int, limit: int) -> bytes:
    first = session.scalar(
        select(func.max(LogChunk.offset)).where(
            LogChunk.attempt_id == attempt_id, LogChunk.offset <= offset
        )
    )
    if first is None:
        return b""
    chunks = session.scalars(
        select(LogChunk.data)
        .where(
            LogChunk.attempt_id == attempt_id,
            LogChunk.offset >= first,
            LogChunk.offset < offset + limit,
        )
        .order_by(LogChunk.offset)
    )
    return b"".join(chunks)[offset - first : offset - first + limit]
