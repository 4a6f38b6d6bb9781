"""Output of pods, from any cursor."""

import random

from jobqueue.executors.kubernetes.logs import PART_BYTES, LogReader
from protocol.logs import log_lines, plain_log

AT = "2026-11-27T12:00:{second:02d}.{fraction:09d}Z "


def line(second: int, fraction: int, text: str) -> bytes:
    return AT.format(second=second, fraction=fraction).encode() + text.encode() + b"\n"


def after(stream: bytes, second: int) -> bytes:
    """Return what the API gives from a second on."""
    from_at = f"2026-11-27T12:00:{second:02d}".encode()
    lines = stream.splitlines(keepends=True)
    return b"".join(item for item in lines if item[: len(from_at)] >= from_at)


def test_lines_become_records_with_their_times() -> None:
    records = LogReader({}).feed(line(1, 5, "hello") + line(2, 0, ""))
    assert [(item.at, item.text) for item in log_lines(records)] == [
        ("2026-11-27T12:00:01.000000005Z", "hello"),
        ("2026-11-27T12:00:02.000000000Z", ""),
    ]


def test_times_of_another_zone_are_utc() -> None:
    records = LogReader({}).feed(b"2026-11-27T14:00:01.5+02:00 hello\n")
    assert records == b"2026-11-27T12:00:01.500000000Z stdout F hello\n"


def test_words_of_the_kubelet_are_no_output() -> None:
    assert LogReader({}).feed(b"unable to retrieve container logs\n" + line(1, 0, "x")) == (
        b"2026-11-27T12:00:01.000000000Z stdout F x\n"
    )


def test_streams_that_are_cut_anywhere_give_each_byte_once() -> None:
    chance = random.Random(7)  # noqa: S311 - where streams are cut
    for _ in range(50):
        texts = ["x" * chance.choice((0, 3, 40, PART_BYTES + 9)) + str(n) for n in range(12)]
        # Lines of both streams may be out of order within a second.
        stream = b"".join(line(n // 5, chance.randrange(9), text) for n, text in enumerate(texts))
        cursor: dict[str, int] = {}
        output = b""
        while plain_log(output) != ("\n".join(texts) + "\n").encode():
            reader = LogReader(cursor)
            given = after(stream, cursor.get("at_ns", 0) // 10**9 % 60 if cursor else 0)
            cut = chance.choice((chance.randrange(1, len(given) + 1), len(given)))
            size = chance.choice((1, 7, 1000, 70_000))
            for begin in range(0, cut, max(size, cut // 50)):
                output += reader.feed(given[begin : min(cut, begin + max(size, cut // 50))])
            if chance.random() < 0.3:
                output += reader.end()
        assert plain_log(output).decode().splitlines() == texts


def test_a_rotated_file_gives_what_is_new_of_it() -> None:
    cursor: dict[str, int] = {}
    LogReader(cursor).feed(line(1, 1, "a") + line(1, 2, "b"))
    records = LogReader(cursor).feed(line(1, 3, "c"))
    assert [item.text for item in log_lines(records)] == ["c"]


def test_a_last_line_without_an_end_is_open() -> None:
    cursor: dict[str, int] = {}
    reader = LogReader(cursor)
    assert reader.feed(line(1, 1, "a")[:-1]) == b""
    assert reader.end() == b"2026-11-27T12:00:01.000000001Z stdout P a\n"
    assert LogReader(cursor).feed(line(1, 1, "ab")) == (
        b"2026-11-27T12:00:01.000000001Z stdout F b\n"
    )
