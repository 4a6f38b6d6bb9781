"""Logs: uploaded in order, once, up to a limit; read in pages by those who may see the job."""

import pytest
from sqlalchemy.orm import Session

from core.errors import NotFoundError
from jobqueue.logs.logs import MAX_LOG_BYTES, append_logs, read_log
from jobqueue.models import Attempt
from jobqueue.states import LogState
from protocol.attempts import LogAck, LogChunk, ObservedState
from tests.cast import BOX, Cast, scope_of
from tests.unit.jobqueue.builders import add_appliance, append_log, report, start, submit


def test_pieces_are_read_as_one_log(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    assert append_log(session, attempt, b"hello ").next_offset == 6
    assert append_log(session, attempt, b"world\n", offset=6).next_offset == 12
    page = read_log(session, scope_of(cast.bob), attempt.job_id)
    assert (page.data, page.offset, page.next_offset) == (b"hello world\n", 0, 12)
    assert page.attempt_number == 1


@pytest.mark.parametrize("offset", [0, 3, 7, 100, -1])
def test_a_piece_at_another_place_is_not_stored(session: Session, cast: Cast, offset: int) -> None:
    attempt = start(session, cast)
    append_log(session, attempt, b"hello ")
    assert append_log(session, attempt, b"HELLO ", offset=offset).next_offset == 6
    assert read_log(session, scope_of(cast.bob), attempt.job_id).data == b"hello "


def test_a_log_is_read_in_pages_across_its_pieces(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    for offset, piece in [(0, b"abc"), (3, b"defg"), (7, b"h")]:
        append_log(session, attempt, piece, offset=offset)
    offset, pages = 0, []
    while True:
        page = read_log(session, scope_of(cast.bob), attempt.job_id, offset=offset, limit=2)
        if not page.data:
            break
        pages.append(page.data)
        offset = page.next_offset
    assert pages == [b"ab", b"cd", b"ef", b"gh"]


def test_a_log_is_complete_once_its_attempt_has_ended_and_all_is_read(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast)
    append_log(session, attempt, b"hello")
    bob = scope_of(cast.bob)
    assert not read_log(session, bob, attempt.job_id).is_complete
    report(session, attempt, ObservedState.SUCCEEDED)
    assert not read_log(session, bob, attempt.job_id, limit=4).is_complete
    assert read_log(session, bob, attempt.job_id).is_complete


def test_a_full_log_stores_no_more(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    almost = MAX_LOG_BYTES - 2
    append_log(session, attempt, b"x" * almost)
    assert append_log(session, attempt, b"yyyy", offset=almost) == LogAck(
        next_offset=MAX_LOG_BYTES, is_full=True
    )
    assert append_log(session, attempt, b"z", offset=MAX_LOG_BYTES).is_full
    assert read_log(session, scope_of(cast.bob), attempt.job_id, offset=almost).data == b"yy"


def test_a_foreign_attempt_is_as_unknown_as_a_missing_one(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    foreign = add_appliance(session, cast.globex, "other")
    pieces = [
        LogChunk(attempt_id=ident, offset=0, data=b"x") for ident in (attempt.id, "no-such-id")
    ]
    unknown = LogAck(next_offset=0, is_unknown=True)
    assert append_logs(session, foreign.id, pieces, box=BOX) == [unknown, unknown]


def test_charlie_can_not_read_alices_log(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    with pytest.raises(NotFoundError):
        read_log(session, scope_of(cast.charlie), attempt.job_id)


def test_a_job_without_an_attempt_has_an_empty_log(session: Session, cast: Cast) -> None:
    job = submit(session, cast.alice)
    page = read_log(session, scope_of(cast.alice), job.id)
    assert (page.attempt_number, page.data, page.is_complete) == (0, b"", False)


def test_an_attempt_that_was_never_made_has_no_log(session: Session, cast: Cast) -> None:
    attempt = start(session, cast)
    with pytest.raises(NotFoundError):
        read_log(session, scope_of(cast.alice), attempt.job_id, attempt_number=2)


def test_a_later_attempt_takes_the_room_of_earlier_ones(session: Session, cast: Cast) -> None:
    first = start(session, cast)
    append_log(session, first, b"x" * 8)
    second = Attempt(
        job_id=first.job_id,
        tenant_id=first.tenant_id,
        appliance_id=first.appliance_id,
        number=2,
        state=first.state,
        bound_at=first.bound_at,
    )
    session.add(second)
    session.flush()

    def grow(offset: int, size: int) -> LogAck:
        return append_log(session, second, b"y" * size, offset=offset, max_bytes=12)

    assert not grow(0, 4).is_full
    session.refresh(first)
    assert first.log_state is LogState.LIVE
    assert grow(4, 9) == LogAck(next_offset=12, is_full=True)
    for attempt in (first, second):
        session.refresh(attempt)
    assert (first.log_state, second.log_state) == (LogState.DELETED, LogState.LIVE)
    assert second.log_is_full
    page = read_log(session, scope_of(cast.alice), first.job_id, attempt_number=1)
    assert page.data == b""
