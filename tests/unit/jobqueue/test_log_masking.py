"""Secrets of a job are masked in its log, however its lines and chunks are cut."""

import pytest
from sqlalchemy.orm import Session

from core.ids import new_secret
from jobqueue.logs.logs import read_log
from jobqueue.logs.masking import Masker
from protocol.logs import Stream, plain_log, record
from tests.cast import Cast, scope_of
from tests.unit.jobqueue.builders import append_log, start

SECRET = "hunter2-hunter2"
AT = b"2026-03-01T12:00:00.5Z"


def parts(text: bytes, size: int, stream: Stream = Stream.STDOUT) -> bytes:
    """A line as an engine cuts it: all parts but the last are open."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return b"".join(record(AT, stream, piece) for piece in pieces)


def stored(masker: Masker, log: bytes, chunk_bytes: int) -> bytes:
    """What the portal has after an agent has sent a log in chunks, again where it was not taken."""
    done = b""
    while len(done) < len(log):
        chunk = log[len(done) : len(done) + chunk_bytes]
        # Executors return whole records.
        whole = chunk[: chunk.rfind(b"\n") + 1] or chunk
        taken = masker.masked(whole)
        assert taken
        done += taken
    return done


def test_a_secret_becomes_as_many_asterisks() -> None:
    log = record(AT, Stream.STDOUT, b"token=" + SECRET.encode() + b"\n")
    masked = Masker([SECRET]).masked(log)
    assert plain_log(masked) == b"token=" + b"*" * len(SECRET) + b"\n"
    assert len(masked) == len(log)


@pytest.mark.parametrize("size", [1, 4, 7, 16])
@pytest.mark.parametrize("chunk_bytes", [600, 1500, 10_000])
def test_a_line_in_parts_is_masked_across_them_and_across_chunks(
    size: int, chunk_bytes: int
) -> None:
    line = b"a" * 3 + SECRET.encode() + b"b" * 3 + b"\n"
    before = record(AT, Stream.STDERR, b"fine\n")
    log = (before + parts(line, size)) * 4
    masked = stored(Masker([SECRET]), log, max(chunk_bytes, len(parts(line, size)) + 100))
    shown = b"aaa" + b"*" * len(SECRET) + b"bbb\n"
    assert plain_log(masked, stream=Stream.STDOUT) == shown * 4
    assert plain_log(masked, stream=Stream.STDERR) == b"fine\n" * 4
    assert len(masked) == len(log)


def test_streams_between_the_parts_do_not_hide_a_secret() -> None:
    log = (
        record(AT, Stream.STDOUT, SECRET[:5].encode())
        + record(AT, Stream.STDERR, b"between\n")
        + record(AT, Stream.STDOUT, SECRET[5:].encode() + b"\n")
    )
    assert SECRET.encode() not in plain_log(Masker([SECRET]).masked(log), stream=Stream.STDOUT)


def test_each_line_of_a_secret_and_tokens_of_the_portal_are_masked() -> None:
    token = new_secret("vdt")
    masker = Masker(["-----BEGIN KEY-----\nMIIEowIBAAKC\n"])
    masked = masker.masked(f"MIIEowIBAAKC {token}\n".encode())
    assert masked == b"*" * 12 + b" " + b"*" * len(token) + b"\n"


def test_what_is_no_secret_stays(session: Session, cast: Cast) -> None:
    log = record(AT, Stream.STDOUT, b"stdout P a1 vdt_short\n")
    assert Masker(["a1", "stdout"]).masked(log) == log.replace(b"F stdout", b"F ******")
    attempt = start(session, cast, secrets={"TOKEN": SECRET}, env={"PLAIN": "visible-value"})
    append_log(session, attempt, f"{SECRET} visible-value\n".encode())
    page = read_log(session, scope_of(cast.alice), attempt.job_id)
    assert page.data == b"*" * len(SECRET) + b" visible-value\n"


def test_a_last_line_without_an_end_is_taken_when_nothing_follows(
    session: Session, cast: Cast
) -> None:
    attempt = start(session, cast, secrets={"TOKEN": SECRET})
    whole = record(AT, Stream.STDOUT, b"done\n")
    rest = record(AT, Stream.STDOUT, b"killed mid" + SECRET.encode())
    ack = append_log(session, attempt, whole + rest)
    assert ack.next_offset == len(whole)
    ack = append_log(session, attempt, rest, offset=ack.next_offset)
    assert ack.next_offset == len(whole + rest)
    assert SECRET.encode() not in read_log(session, scope_of(cast.alice), attempt.job_id).data
