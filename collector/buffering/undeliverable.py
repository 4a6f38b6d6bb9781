"""Lines that the portal does not store: which they are, and a file with the latest of them."""

import logging
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from timeseries.lineprotocol.grammar import logical_lines

log = logging.getLogger(__name__)

MAX_UNDELIVERABLE_BYTES = 1024 * 1024


class UndeliverableLines:
    """A log of lines that the server rejects. At `max_bytes / 2` it is rotated to `NAME.1`."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_UNDELIVERABLE_BYTES) -> None:
        self._path = path
        self._older = path.with_name(f"{path.name}.1")
        self._half_bytes = max_bytes // 2

    @property
    def size_bytes(self) -> int:
        """The size of both files."""
        return sum(path.stat().st_size for path in (self._path, self._older) if path.exists())

    def add(self, lines: Sequence[bytes], *, reason: str, rejected_at: datetime) -> None:
        """Append lines, after a comment with the time and the reason.

        Raises:
            OSError: the file can't be written.
        """
        heading = f"# {rejected_at.isoformat(timespec='seconds')} {reason}".replace("\n", " ")
        content = b"\n".join([heading.encode(), *lines, b""])[-self._half_bytes :]
        if self._path.exists() and self._path.stat().st_size + len(content) > self._half_bytes:
            if self._older.exists():
                log.warning("%s is full, its oldest lines are deleted", self._path)
            self._path.replace(self._older)
        with self._path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def rejected_lines(body: bytes) -> dict[int, str]:
    """Return the numbers of the lines that the portal rejected, with the reasons."""
    try:
        errors = msgspec.json.decode(body)["errors"]
        return {int(error["line"]): str(error["reason"]) for error in errors}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return {}


def numbered_lines(text: bytes) -> list[tuple[int, bytes]]:
    """Return the logical lines of line protocol with their numbers, from 1."""
    decoded = text.decode(errors="surrogateescape")
    return [
        (number, line.encode(errors="surrogateescape")) for number, line in logical_lines(decoded)
    ]
