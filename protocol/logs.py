"""The log of an attempt: one *record* for each line, with its time and stream.

    2026-03-01T12:00:00.123456789Z stdout F epoch 1 done

`P` instead of `F` is a part of a line that the next record of this stream continues. A line without
time and stream is output whose executor does not know them.

Source: the CRI log format, kubernetes/design-proposals-archive, node/kubelet-cri-logging.md.
"""

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec


class Stream(StrEnum):
    """Where a container wrote a line; `output` is not known which."""

    STDOUT = "stdout"
    STDERR = "stderr"
    OUTPUT = "output"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line for a reader.

    Attributes:
        at: time in UTC (RFC 3339); empty if it is not known.
        text: without the end of the line; invalid UTF-8 is replaced.
        is_open: the next line of this stream continues it.
    """

    at: str
    stream: Stream
    text: str
    is_open: bool = False


_HEAD = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z) (stdout|stderr) ([FP]) ")
# An engine cuts lines into parts of 16 KiB; no record is longer than this.
MAX_RECORD_BYTES = 64 * 1024


def record(at: bytes, stream: Stream, text: bytes) -> bytes:
    """Return the record of a line; without a newline at its end, it is a part of one.

    Args:
        at: RFC 3339 in UTC, such as `2026-03-01T12:00:00.5Z`.
        stream: stdout or stderr.
        text: a line with its newline, or a part of one.
    """
    kind, line = (b"F", text[:-1]) if text.endswith(b"\n") else (b"P", text)
    # A newline inside would begin a record that nobody wrote.
    return b"%s %s %s %s\n" % (at, stream.value.encode(), kind, line.replace(b"\n", b"\r"))


def whole_records(data: bytes) -> int:
    """Return the length of the records at the beginning of `data` that are complete.

    Data without any end of a record, longer than one may be, is whole.
    """
    end = data.rfind(b"\n") + 1
    return len(data) if not end and len(data) >= MAX_RECORD_BYTES else end


def log_lines(data: bytes) -> Iterator[LogLine]:
    """Yield the lines of complete records."""
    for at, stream, is_open, text in _records(data):
        shown = text.removesuffix(b"\n").decode(errors="replace")
        yield LogLine(at=at.decode(), stream=stream, text=shown, is_open=is_open)


def plain_log(data: bytes, *, stream: Stream | None = None, with_times: bool = False) -> bytes:
    """Return the output as the container wrote it, of one stream if one is given.

    Lines whose stream is not known are in both.
    """
    written: list[bytes] = []
    is_continued = dict.fromkeys(Stream, False)
    for at, source, is_open, text in _records(data):
        if stream in {None, source} or source is Stream.OUTPUT:
            has_time = with_times and at and not is_continued[source]
            written.append(b"%s %s" % (at, text) if has_time else text)
        is_continued[source] = is_open
    return b"".join(written)


def _records(data: bytes) -> Iterator[tuple[bytes, Stream, bool, bytes]]:
    """Yield time, stream, whether it continues, and text, with the newline that it had."""
    for line in _lines(data):
        head = _HEAD.match(line)
        if head is None:
            yield b"", Stream.OUTPUT, not line.endswith(b"\n"), line
            continue
        is_open = head[3] == b"P"
        text = line[head.end() :]
        yield head[1], Stream(head[2].decode()), is_open, text[:-1] if is_open else text


def _lines(data: bytes) -> list[bytes]:
    """Return the lines as they end with a newline alone: a carriage return is text."""
    parts = data.split(b"\n")
    ended = [part + b"\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended
