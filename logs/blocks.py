"""Blocks: parts of logs with a time range, which a search reads only if it needs them.

A *block* is either lines, or it is opened first: a file becomes the blocks that it has. A log that
is in no file of lines yet is read from its end, a part at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from jobqueue.logs.log_files import LogFiles
from logs.files import DamagedFileError, LinesFile
from logs.lines import lines_of_log
from logs.query import LogQuery

# The first part from the end is small: whoever follows logs reads nothing else.
FIRST_PART_BYTES = 64 * 1024
PART_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a log.

    Attributes:
        first_ns: no line is older.
        last_ns: no line is newer.
        load: returns the blocks that it consists of, or its lines with at least some columns.
    """

    first_ns: int
    last_ns: int
    load: Callable[[Sequence[str]], "Sequence[Block] | pa.Table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLog:
    """The log of an attempt as its agent has sent it.

    Attributes:
        read: returns up to a number of bytes from an offset.
        size_bytes: of the log.
        first_ns: when the attempt began.
        last_ns: when it ended, or now.
        constants: values of the columns `job`, `attempt` and `appliance`.
    """

    read: Callable[[int, int], bytes]
    size_bytes: int
    first_ns: int
    last_ns: int
    constants: Mapping[str, Any]


def block_of_file(
    files: LogFiles,
    name: str,
    query: LogQuery,
    span: tuple[int, int],
    *,
    on_damage: Callable[[], None] = lambda: None,
) -> Block:
    """Return the block that a file of lines is.

    Args:
        files: of logs.
        name: of the file.
        query: what to find.
        span: the times of its first and last line.
        on_damage: is called if it can't be read, before the error is raised.
    """

    @contextmanager
    def noting_damage() -> Iterator[None]:
        try:
            yield
        except DamagedFileError:
            on_damage()
            raise

    def read(opened: LinesFile, number: int, columns: Sequence[str]) -> pa.Table:
        with noting_damage():
            return opened.read(number, columns)

    def load(_columns: Sequence[str]) -> Sequence[Block]:
        try:
            with noting_damage():
                opened = LinesFile(files, name)
        except FileNotFoundError:  # its job was deleted meanwhile
            return []
        return [
            Block(part.first_ns, part.last_ns, partial(read, opened, number))
            for number, part in enumerate(opened.index)
            if part.last_ns >= query.start_ns
            and part.first_ns < query.end_ns
            and query.terms.may_match(part.filter)
        ]

    return Block(*span, load)


def block_of_log(log: PlainLog, *, end: int | None = None, last_ns: int | None = None) -> Block:
    """Return the block that a log is, up to the offset `end` with lines until `last_ns`."""
    until = log.size_bytes if end is None else end
    newest_ns = log.last_ns if last_ns is None else last_ns
    size = FIRST_PART_BYTES if end is None else PART_BYTES

    def load(_columns: Sequence[str]) -> Sequence[Block]:
        start = max(0, until - size)
        data = log.read(start, until - start)
        if start:
            begin = data.find(b"\n") + 1
            start, data = start + begin, data[begin:]
        if not data:
            return []
        lines = lines_of_log(data, offset=start, default_ns=log.first_ns, constants=log.constants)
        oldest_ns = lines["at"][0].value if lines.num_rows else newest_ns
        # A program may print old times; the executor's, which these are, only grow.
        newest = Block(oldest_ns, newest_ns, lambda _columns: lines)
        return [newest, block_of_log(log, end=start, last_ns=oldest_ns)] if start else [newest]

    return Block(log.first_ns, newest_ns, load)


def block_of_lines(lines: pa.Table) -> Block | None:
    """Return lines as a block; None without any."""
    if not lines.num_rows:
        return None
    times = lines["at"].cast(pa.int64()).to_pylist()
    return Block(min(times), max(times), lambda _columns: lines)
