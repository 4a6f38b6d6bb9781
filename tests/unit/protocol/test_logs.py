"""Records of logs: every byte of output comes back, with the time and stream of its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.logs import MAX_RECORD_BYTES, LogLine, Stream, log_lines, plain_log, record
from protocol.logs import whole_records as whole

AT = b"2026-03-01T12:00:00.5Z"
OUT, ERR = Stream.STDOUT, Stream.STDERR


def test_a_line_has_its_time_and_stream() -> None:
    data = record(AT, OUT, b"step 1\n") + record(AT, ERR, b"warning: \xff\n")
    at = AT.decode()
    assert list(log_lines(data)) == [
        LogLine(at=at, stream=OUT, text="step 1"),
        LogLine(at=at, stream=ERR, text="warning: \N{REPLACEMENT CHARACTER}"),
    ]


def test_the_parts_of_a_long_line_are_one_line_again() -> None:
    data = record(AT, OUT, b"a" * 5) + record(AT, ERR, b"!\n") + record(AT, OUT, b"b\n")
    assert [line.is_open for line in log_lines(data)] == [True, False, False]
    assert plain_log(data, stream=OUT) == b"aaaaab\n"
    assert plain_log(data, stream=OUT, with_times=True) == AT + b" aaaaab\n"


def test_output_without_records_is_of_both_streams_and_unchanged() -> None:
    data = b"hello\n2026-03-01 world\r\nlast"
    assert [line.stream for line in log_lines(data)] == [Stream.OUTPUT] * 3
    assert plain_log(data, stream=ERR) == plain_log(data) == data


@given(st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.binary().map(lambda line: line + b"\n"))))
def test_each_stream_comes_back_byte_by_byte(pieces: list[tuple[Stream, bytes]]) -> None:
    lines = [(stream, piece.replace(b"\n", b"\r")[:-1] + b"\n") for stream, piece in pieces]
    data = b"".join(record(AT, stream, piece) for stream, piece in pieces)
    assert len(list(log_lines(data))) == len(pieces)
    for stream in (OUT, ERR):
        assert plain_log(data, stream=stream) == b"".join(
            line for of, line in lines if of is stream
        )


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (b"", 0),
        (b"one", 0),
        (b"one\ntw", 4),
        (b"x" * MAX_RECORD_BYTES, MAX_RECORD_BYTES),
    ],
)
def test_a_page_ends_with_a_whole_record(data: bytes, length: int) -> None:
    assert whole(data) == length
