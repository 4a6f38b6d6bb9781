"""Following a job: its state and the log of its attempts, one after the other, from a position.

A *position* is an attempt and an offset in its log. A follower reads from it, and waits for the
next *version* of the job when there is nothing to read. All followers share the *tails*: what the
logs have grown by, read with the versions.
"""

import json
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from sqlalchemy import Row, Select, Text, func, select, type_coerce
from sqlalchemy.orm import Session

from core.errors import InvalidInputError, NotFoundError
from jobqueue.logs.logs import LogPage, read_attempt_log, read_chunks
from jobqueue.models import Attempt, Job
from jobqueue.states import AttemptState, LogState
from tenants.permissions import Permission
from tenants.scope import Scope

PIECE_BYTES = 128 * 1024
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Position:
    """The next byte to read; attempt 0 is before the first attempt."""

    attempt_number: int = 0
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the position of its text form, `2:4096`.

        Raises:
            InvalidInputError: it is not one.
        """
        number, colon, offset = text.partition(":")
        digits = number + offset
        # These fit into 64 bits.
        if not (colon and digits.isascii() and digits.isdecimal() and len(digits) <= 18):  # noqa: PLR2004
            problem = f"{text[:50]!r} is not ATTEMPT:OFFSET, such as 1:4096"
            raise InvalidInputError(f"after: {problem}.", errors={"after": [problem]})
        return cls(int(number), int(offset or 0))

    def __str__(self) -> str:
        return f"{self.attempt_number}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Progress:
    """A job as a follower sees it.

    Attributes:
        state: what is shown; a follower reports it when it differs from the last one.
        page: the log at the position; None while there is no attempt.
        position: where `page` begins.
        has_ended: neither the state nor the log of its attempts will change.
        version: the one of `versions` that this was read at.
    """

    state: Mapping[str, Any]
    page: LogPage | None
    position: Position
    has_ended: bool
    version: Hashable


def read_progress(
    session: Session,
    scope: Scope,
    job_id: str,
    position: Position | None,
    *,
    tail_bytes: int | None = None,
) -> Progress:
    """Return a job's state and its log from a position.

    Without a position that is the log of the latest attempt; of its last `tail_bytes` if given.

    Raises:
        NotFoundError: there is no such job.
    """
    scope.require(Permission.VIEW)
    row = session.execute(scope.select(_statement([job_id]), Job)).one_or_none()
    if row is None:
        raise NotFoundError.of("job", job_id)
    number = row.attempt_number or 0
    if position is None:
        start = 0 if tail_bytes is None else max(0, (row.log_bytes or 0) - tail_bytes)
        position = Position(number, start)
    elif position.attempt_number == 0 and number:
        position = Position(1, 0)
    page = None
    if position.attempt_number:
        page = read_attempt_log(
            session,
            job_id,
            position.attempt_number,
            offset=position.offset,
            limit=PIECE_BYTES,
            from_line=tail_bytes is not None,
        )
        position = Position(position.attempt_number, page.offset)
    if page is not None and page.is_complete and not page.data and position.attempt_number < number:
        # The next attempt has a log of its own.
        following = Position(position.attempt_number + 1, 0)
        return read_progress(session, scope, job_id, following)
    has_ended = row.state.is_final and (
        position.attempt_number == number and (page is None or page.is_complete)
    )
    return Progress(_state(row), page, position, has_ended, tuple(row))


@dataclass(frozen=True, slots=True)
class Tail:
    """A version of a job, and the end of its running attempt's log from an offset."""

    version: Row[Any]
    offset: int
    data: bytes = b""

    def goes_on_at(self, position: Position) -> bool:
        """Return whether only the log of the attempt that a follower reads may have grown."""
        return (
            not self.version.state.is_final
            and self.version.attempt_number == position.attempt_number
            and self.version.log_state is LogState.LIVE
        )

    def has(self, position: Position) -> bool:
        """Return whether all of the log from a position is in `data`."""
        return self.offset <= position.offset <= self.offset + len(self.data)

    def progress(self, position: Position, data: bytes) -> Progress:
        """Return what `read_progress` does, with the data at a position."""
        page = LogPage(
            position.attempt_number,
            position.offset,
            position.offset + len(data),
            data,
            is_complete=False,
        )
        version = tuple(self.version)
        return Progress(_state(self.version), page, position, has_ended=False, version=version)


def read_on(session: Session, tail: Tail, position: Position) -> Progress:
    """Return what `read_progress` does where a tail goes on, by reading the log only.

    The caller has checked that the job is in scope.
    """
    ident = tail.version.attempt_id
    data = read_chunks(session, ident, offset=position.offset, limit=PIECE_BYTES)
    return tail.progress(position, data)


def read_tails(
    session: Session, job_ids: Collection[str], before: Mapping[str, Tail]
) -> dict[str, Tail]:
    """Return the versions of jobs, with what their logs have grown by since the tails before."""
    rows = session.execute(_statement(job_ids)).all()
    return {row.id: _grown(session, row, before.get(row.id)) for row in rows}


def _grown(session: Session, row: Row[Any], before: Tail | None) -> Tail:
    size = row.log_bytes or 0
    if (
        before is None
        or before.version.attempt_id != row.attempt_id
        or row.log_state is not LogState.LIVE
    ):
        return Tail(row, size)
    end = before.offset + len(before.data)
    if size == end:
        return Tail(row, before.offset, before.data)
    new = read_chunks(session, row.attempt_id, offset=end, limit=PIECE_BYTES)
    if end + len(new) != size:
        return Tail(row, size)  # more than a tail: followers read it themselves
    data = before.data + new
    return Tail(row, end, new) if len(data) > TAIL_BYTES else Tail(row, before.offset, data)


def _statement(job_ids: Collection[str]) -> Select[Any]:
    """Select jobs with their latest attempts, without loading objects."""
    latest = (
        select(Attempt.job_id, func.max(Attempt.number).label("number"))
        .where(Attempt.job_id.in_(job_ids))
        .group_by(Attempt.job_id)
        .subquery()
    )
    statement = (
        select(
            Job.id,
            Job.state,
            Job.reason,
            Job.message,
            Job.exit_code,
            Job.priority,
            Job.stop_requested_at,
            Attempt.id.label("attempt_id"),
            Attempt.number.label("attempt_number"),
            Attempt.state.label("attempt_state"),
            Attempt.log_bytes,
            Attempt.log_state,
            Attempt.log_is_full,
            type_coerce(Attempt.staging, Text).label("staging"),
        )
        .outerjoin(latest, latest.c.job_id == Job.id)
        .outerjoin(
            Attempt, (Attempt.job_id == latest.c.job_id) & (Attempt.number == latest.c.number)
        )
        .where(Job.id.in_(job_ids))
    )
    return cast("Select[Any]", statement)


def _state(row: Row[Any]) -> dict[str, Any]:
    attempt_state: AttemptState | None = row.attempt_state
    return {
        "state": row.state.value,
        "reason": row.reason.value,
        "message": row.message,
        "exit_code": row.exit_code,
        "priority": row.priority,
        "is_stopping": row.stop_requested_at is not None and not row.state.is_final,
        "attempt_number": row.attempt_number or 0,
        "attempt_state": attempt_state.value if attempt_state else "",
        "staging": json.loads(row.staging) if row.staging else None,
        "log_is_full": bool(row.log_is_full),
        "log_is_deleted": row.log_state is LogState.DELETED,
    }
