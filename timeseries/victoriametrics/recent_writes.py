"""What VictoriaMetrics has acknowledged and may not have on its disk yet, in files of our own.

A server that is killed loses the samples of its last seconds, although it has acknowledged them. So
each process that writes appends the same lines to a file, and writes them again when the server has
been started anew; a sample that is written twice is stored once. A process that is killed itself
leaves its file to the one that starts next.

A record is a line with account, length and CRC-32, and then the lines that were written. Lines with
the *mark* of a tenant that was deleted are not written again; each mark is a file, which stays,
because the id of a tenant is never used again.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from hashlib import sha256
from io import BytesIO, FileIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from core.atomic_files import replace_file
from core.ids import new_id

SUFFIX, MARK_SUFFIX = ".lines", ".deleted"
# The server of version 1.79.5 loses the last 9 seconds.
RECENT_SECONDS = 30.0
MAX_HEAD_BYTES = 100
_HEAD = re.compile(rb"(\S+) (\d{1,12}) (\d{1,10})\n")


class _File(NamedTuple):
    path: Path
    stream: FileIO


class RecentWrites:
    """The files of one process; used by one thread.

    Args:
        folder: for the files of all processes; created if it is missing.
        monotonic: measures their age.

    Raises:
        OSError: the folder can't be written.
    """

    def __init__(self, folder: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._monotonic = monotonic
        self._old = [file for path in sorted(folder.glob(f"*{SUFFIX}")) if (file := _claim(path))]
        self._began = monotonic()
        self._current = self._begin()

    def add(self, account: str, lines: bytes) -> None:
        """Append what was written to an account; it survives a power failure.

        Raises:
            OSError: it can't be written.
        """
        stream = self._current.stream
        record = f"{account} {len(lines)} {crc32(lines)}\n".encode() + lines
        end = stream.seek(0, os.SEEK_END)
        try:
            _append(stream, record)
        except OSError:
            stream.truncate(end)
            raise

    def records(self) -> Iterator[tuple[str, bytes]]:
        """Yield account and lines of everything that may not be on the server's disk.

        Raises:
            OSError: a file can't be read.
        """
        marks = [path.read_bytes() for path in self._folder.glob(f"*{MARK_SUFFIX}")]
        for file in (*self._old, self._current):
            for account, lines in _records(file.path):
                if remaining := _without(lines, marks):
                    yield account, remaining

    def forget_old(self) -> None:
        """Forget what a server that has not been restarted since has on its disk.

        Raises:
            OSError: a new file can't be made.
        """
        now = self._monotonic()
        if now < self._began + RECENT_SECONDS:
            return
        old, self._current, self._began = [self._current], self._begin(), now
        for file in self._old:
            file.path.unlink(missing_ok=True)
            file.stream.close()
        self._old = old

    def close(self) -> None:
        """Leave the files to the process that starts next."""
        for file in (*self._old, self._current):
            file.stream.close()

    def _begin(self) -> _File:
        """Create a file that is locked before another process can see it."""
        path = self._folder / f"{new_id()}{SUFFIX}"
        draft = path.with_suffix(".new")
        stream = draft.open("x+b", buffering=0)
        fcntl.flock(stream, fcntl.LOCK_EX)
        draft.rename(path)
        return _File(path, stream)


def write_mark(folder: Path, mark: bytes) -> None:
    """Let no process of this folder write lines again that have a mark.

    Raises:
        OSError: it can't be noted.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(folder / f"{sha256(mark).hexdigest()}{MARK_SUFFIX}", mark)


def _claim(path: Path) -> _File | None:
    """Open and lock a file of an earlier process; None if its process runs."""
    try:
        stream = path.open("r+b", buffering=0)
    except FileNotFoundError:  # its process has removed it
        return None
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return _File(path, stream)


def _append(stream: FileIO, record: bytes) -> None:
    if stream.write(record) < len(record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fdatasync(stream.fileno())


def _without(lines: bytes, marks: Collection[bytes]) -> bytes:
    if not any(mark in lines for mark in marks):
        return lines
    return b"".join(line for line in BytesIO(lines) if not any(mark in line for mark in marks))


def _records(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the records up to the first one that is not whole: that was not acknowledged."""
    if not path.exists():  # its process removed it just before it was claimed, or somebody did
        return
    with path.open("rb") as reader:
        while match := _HEAD.fullmatch(reader.readline(MAX_HEAD_BYTES)):
            account, length, checksum = match.groups()
            lines = reader.read(int(length))
            if crc32(lines) != int(checksum):
                return
            yield account.decode(), lines
