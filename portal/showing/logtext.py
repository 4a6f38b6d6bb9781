"""A job's log as text: pieces cut between characters, and the whole of it as bytes."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from jobqueue.logs import read_log
from tenants.scope import Scope

PIECE_BYTES = 65536
_LONGEST_TAIL = 3  # bytes of a UTF-8 character that may be present while its last is not


@dataclass(frozen=True, slots=True)
class LogText:
    """A piece of the log; `next_offset` counts bytes of the log, not characters."""

    attempt_number: int
    offset: int
    next_offset: int
    text: str
    is_complete: bool


def text_page(
    session: Session, scope: Scope, job_id: str, *, offset: int, attempt_number: int | None = None
) -> LogText:
    """Return the log from `offset` on, ended at a whole character."""
    page = read_log(
        session, scope, job_id, offset=offset, limit=PIECE_BYTES, attempt_number=attempt_number
    )
    kept = page.data if page.is_complete else page.data[: whole_characters(page.data)]
    return LogText(
        attempt_number=page.attempt_number,
        offset=page.offset,
        next_offset=page.offset + len(kept),
        text=kept.decode(errors="replace"),
        is_complete=page.is_complete,
    )


def raw_log(
    session: Session, scope: Scope, job_id: str, *, attempt_number: int | None = None
) -> bytes:
    """Return the whole log; the queue bounds it to a few mebibytes."""
    pieces: list[bytes] = []
    offset = 0
    while True:
        page = read_log(
            session, scope, job_id, offset=offset, limit=1 << 20, attempt_number=attempt_number
        )
        if not page.data:
            return b"".join(pieces)
        pieces.append(page.data)
        offset = page.next_offset


def whole_characters(data: bytes) -> int:
    """Return how many bytes to take so that no UTF-8 character is cut; bad bytes count as whole."""
    for tail in range(1, min(_LONGEST_TAIL, len(data)) + 1):
        length = _length_of(data[-tail])
        if length:
            return len(data) - tail if length > tail else len(data)
    return len(data)


def _length_of(byte: int) -> int:
    """Return the length of the character that a byte begins; 0 when it continues one."""
    leading_ones = 8 - (byte ^ 0xFF).bit_length()
    return {0: 1, 1: 0, 2: 2, 3: 3, 4: 4}.get(leading_ones, 1)
