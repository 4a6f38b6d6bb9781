"""Lines that a server will never take: kept aside with the reason, bounded, for people to read."""

import logging
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

log = logging.getLogger(__name__)

KEPT_BYTES = 1024 * 1024


class UndeliverableLines:
    """Appends to a file, and to a new one when that is half of `max_bytes`; the old one is kept.

    Args:
        path: the file; the one before it ends in `.1`.
        max_bytes: how much the two may hold together.
    """

    def __init__(self, path: Path, *, max_bytes: int = KEPT_BYTES) -> None:
        self._path = path
        self._half_bytes = max_bytes // 2

    def add(self, lines: Sequence[bytes], *, reason: str, refused_at: datetime) -> None:
        """Keep lines under a heading with the time and the reason."""
        heading = f"# {refused_at.isoformat(timespec='seconds')} {reason}".replace("\n", " ")
        content = b"\n".join([heading.encode(), *lines, b""])[-self._half_bytes :]
        try:
            self._make_room(len(content))
            with self._path.open("ab") as file:
                file.write(content)
        except OSError as error:
            log.warning("%s can't be written, refused lines are lost: %s", self._path, error)

    def _make_room(self, size: int) -> None:
        if self._path.exists() and self._path.stat().st_size + size > self._half_bytes:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
