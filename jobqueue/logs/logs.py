"""Logs: an attempt's output, uploaded by its agent in chunks and read by users.

A log has the records of `protocol.logs`. Offsets count bytes. A chunk is stored only at the end of
the stored log, so a repeated upload changes nothing and there are no gaps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Integer, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session, aliased

from core.changes import Topic, note_change
from core.errors import NotFoundError, UnavailableError
from core.secretbox import SecretBox
from jobqueue.jobs.job_secrets import decrypt_secrets
from jobqueue.jobs.transitions import note_attempt
from jobqueue.logs.masking import Masker
from jobqueue.models import Attempt, Job, LogChunk
from jobqueue.queue.service import get_job
from jobqueue.states import LogState
from protocol.attempts import LogAck
from protocol.attempts import LogChunk as Piece
from tenants.scope import Scope

MAX_LOG_BYTES = 16 * 1024 * 1024
DEFAULT_LIMIT_BYTES = 64 * 1024
MAX_LIMIT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogPage:
    """A part of a log; continue at `next_offset` until it `is_complete`.

    `attempt_number` is 0 while the job has no attempt. With a `file`, its data is there: see
    `jobqueue.logs.log_files`.
    """

    attempt_number: int
    offset: int
    next_offset: int
    data: bytes
    is_complete: bool
    file: str = ""
    limit: int = 0
    log_bytes: int = 0
    begins_line: bool = True
    """Whether the data begins with a line, and not with the byte before one."""

    def with_data(self, data: bytes) -> "LogPage":
        """Return the page with the data of an ended attempt from its file."""
        next_offset = self.offset + len(data)
        is_complete = next_offset >= self.log_bytes
        page = replace(self, data=data, next_offset=next_offset, is_complete=is_complete, file="")
        return page.aligned()

    def aligned(self) -> "LogPage":
        """Return the page from its first whole line, if it is to begin with one."""
        if self.begins_line:
            return self
        skipped = self.data.find(b"\n") + 1
        data, offset = self.data[skipped:], self.offset + skipped
        return replace(self, data=data, offset=offset, begins_line=True)


def file_name(tenant_id: str, job_id: str, number: int) -> str:
    """Return the name of the file of a log, once it is in one."""
    return f"{tenant_id}/{job_id}/{number}.log"


def append_logs(
    session: Session,
    appliance_id: str,
    pieces: Sequence[Piece],
    *,
    max_bytes: int = MAX_LOG_BYTES,
    box: SecretBox,
) -> list[LogAck]:
    """Append chunks, one of each attempt, that begin where the stored logs end.

    A job has `max_bytes` for the logs of all attempts: those of earlier attempts are deleted for
    later ones. When there is no more room, the log is full and the rest is not stored. Secrets of
    the job are masked.

    Raises:
        UnavailableError: another upload of a chunk was quicker, or the key of the job's secrets is
            missing.
    """
    columns = (Attempt.id, Attempt.job_id, Attempt.number, Attempt.log_bytes, Attempt.log_state)
    statement = (
        select(*columns, Job.secret_env)
        .join(Job, Job.id == Attempt.job_id)
        .where(
            Attempt.id.in_({piece.attempt_id for piece in pieces}),
            Attempt.appliance_id == appliance_id,
        )
    )
    attempts = {row.id: row for row in session.execute(statement)}
    acks, grown = [], dict[str, dict[str, object]]()
    for piece in pieces:
        row = attempts.get(piece.attempt_id)
        if row is None:
            acks.append(LogAck(next_offset=0, is_unknown=True))
            continue
        stored: int = row.log_bytes
        is_full = stored >= max_bytes or row.log_state is not LogState.LIVE
        if piece.offset != stored or is_full or not piece.data or row.id in grown:
            acks.append(LogAck(next_offset=stored, is_full=is_full))
            continue
        secrets = decrypt_secrets(box, row.secret_env)
        data = Masker(secrets.values()).masked(piece.data)[: max_bytes - stored]
        end = stored + len(data)
        if row.number > 1:
            _make_room(session, row.job_id, row.number, max_bytes - end)
        note_change(session, Topic.JOB, row.job_id)
        grown[row.id] = {"ident": row.id, "stored": stored, "end": end, "data": data}
        acks.append(LogAck(next_offset=end, is_full=end >= max_bytes))
    if grown:
        _store(session, list(grown.values()), max_bytes)
    return acks


def _store(session: Session, grown: list[dict[str, object]], max_bytes: int) -> None:
    """Store chunks; of two concurrent uploads, the second finds the log longer."""
    end = bindparam("end", type_=Integer)
    growth = (
        update(Attempt)
        .where(Attempt.id == bindparam("ident"), Attempt.log_bytes == bindparam("stored"))
        .values(log_bytes=end, log_is_full=end >= max_bytes)
    )
    # Not the ORM's bulk update by primary key, which has no other conditions.
    result = session.connection().execute(growth, grown)
    if result.rowcount != len(grown):
        raise UnavailableError("Another upload of this log was quicker. Send it again.")
    rows = [
        {
            "attempt_id": growth_row["ident"],
            "offset": growth_row["stored"],
            "data": growth_row["data"],
        }
        for growth_row in grown
    ]
    session.execute(insert(LogChunk), rows)


def delete_log(session: Session, attempt_id: str) -> None:
    """Delete the log of an attempt, which says so from now on; a sweep deletes its file."""
    session.execute(delete(LogChunk).where(LogChunk.attempt_id == attempt_id))
    session.execute(
        update(Attempt).where(Attempt.id == attempt_id).values(log_state=LogState.DELETED)
    )
    note_attempt(session, attempt_id)


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
        offset = max(0, size - tail_bytes)
    return read_attempt_log(
        session,
        job.id,
        attempt_number,
        offset=offset,
        limit=limit,
        from_line=tail_bytes is not None,
    )


def read_attempt_log(
    session: Session,
    job_id: str,
    number: int,
    *,
    offset: int,
    limit: int,
    from_line: bool = False,
) -> LogPage:
    """Return up to `limit` bytes of the log of an attempt from `offset`, of a job in scope.

    With `from_line`, it begins with the first line that begins at or behind the offset.

    Raises:
        NotFoundError: the job has no such attempt.
    """
    statement = select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number)
    columns = (Attempt.id, Attempt.state, Attempt.log_bytes, Attempt.log_state, Attempt.tenant_id)
    attempt = session.execute(statement.with_only_columns(*columns)).one_or_none()
    if attempt is None:
        raise NotFoundError.of("attempt", str(number))
    limit = max(1, min(limit, MAX_LIMIT_BYTES))
    start = offset - 1 if from_line and offset else offset
    data = b""
    if attempt.log_state is LogState.LIVE:
        data = read_chunks(session, attempt.id, offset=start, limit=limit)
    is_read = attempt.log_state is LogState.DELETED or start + len(data) >= attempt.log_bytes
    is_in_file = attempt.log_state is LogState.FILE and not is_read
    page = LogPage(
        number,
        start,
        start + len(data),
        data,
        attempt.state.is_final and is_read,
        file=file_name(attempt.tenant_id, job_id, number) if is_in_file else "",
        limit=limit,
        log_bytes=attempt.log_bytes,
        begins_line=start == offset,
    )
    return page if page.file else page.aligned()


def _make_room(session: Session, job_id: str, number: int, room: int) -> None:
    """Delete the logs of earlier attempts, the oldest first, until the others fit."""
    statement = select(Attempt.id, Attempt.log_bytes).where(
        Attempt.job_id == job_id,
        Attempt.number < number,
        Attempt.log_state != LogState.DELETED,
        Attempt.log_bytes > 0,
    )
    earlier = session.execute(statement.order_by(Attempt.number)).all()
    total = sum(attempt.log_bytes for attempt in earlier)
    for attempt in earlier:
        if total <= room:
            return
        delete_log(session, attempt.id)
        total -= attempt.log_bytes


def read_chunks(session: Session, attempt_id: str, *, offset: int, limit: int) -> bytes:
    """Return up to `limit` bytes of a log that is in the database."""
    values = {"ident": attempt_id, "begin": offset, "end": offset + limit}
    chunks = session.execute(_CHUNKS, values).all()
    if not chunks:
        return b""
    begins_at: int = chunks[0].offset
    return b"".join(chunk.data for chunk in chunks)[offset - begins_at : offset - begins_at + limit]


# Made once: followers read several times a second. Aliased, so that it is not correlated.
_EARLIER = aliased(LogChunk)
_FIRST = select(func.max(_EARLIER.offset)).where(
    _EARLIER.attempt_id == bindparam("ident"), _EARLIER.offset <= bindparam("begin")
)
_CHUNKS = (
    select(LogChunk.offset, LogChunk.data)
    .where(
        LogChunk.attempt_id == bindparam("ident"),
        LogChunk.offset >= _FIRST.scalar_subquery(),
        LogChunk.offset < bindparam("end"),
    )
    .order_by(LogChunk.offset)
)
