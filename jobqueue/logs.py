"""Logs: an attempt's output, uploaded by its agent in chunks and read by users.

Offsets count bytes. A chunk is stored only at the end of the stored log, so a repeated upload
changes nothing and there are no gaps.
"""

from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from core.guarded_update import changed_one
from jobqueue.models import Attempt, LogChunk
from jobqueue.service import get_job
from protocol.attempts import LogAck
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
) -> LogPage:
    """Return up to `limit` bytes of a job's log from `offset`; of its latest attempt by default.

    Raises:
        NotFoundError: there is no such job, or it has no such attempt.
    """
    job = get_job(session, scope, job_id)
    offset = max(0, offset)
    attempt = job.attempt
    if attempt_number is not None:
        attempt = next((a for a in job.attempts if a.number == attempt_number), None)
        if attempt is None:
            raise NotFoundError.of("attempt", str(attempt_number))
    if attempt is None:
        return LogPage(0, offset, offset, b"", job.state.is_final)
    limit = max(1, min(limit, MAX_LIMIT_BYTES))
    data = _read(session, attempt.id, offset=offset, limit=limit)
    next_offset = offset + len(data)
    is_complete = attempt.state.is_final and next_offset >= attempt.log_bytes
    return LogPage(attempt.number, offset, next_offset, data, is_complete)


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
