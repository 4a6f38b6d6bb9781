"""Files of the kernel under `/proc` and `/sys`, read again and again at little cost.

The kernel writes such a file anew whenever it is read from its start, so one open descriptor
serves for good.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from plugins.base import PluginError, PluginUnavailableError, matches_any

CHUNK_BYTES = 32 * 1024
KNOWN_NAMES_LIMIT = 4096
KIBIBYTE = 1024
_CLOSED = -1


class ProcFile:
    """One file, opened at the first reading and read whole each time."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _CLOSED

    def read(self) -> bytes:
        """Return what the file says now; one that fails is opened again before giving up.

        Raises:
            PluginUnavailableError: there is no such file.
            PluginError: the file can't be read.
        """
        try:
            if self._descriptor != _CLOSED:
                try:
                    return _whole(self._descriptor)
                except OSError:  # the device behind it went away, and may be back
                    self.close()
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return _whole(self._descriptor)
        except FileNotFoundError:
            raise PluginUnavailableError(f"{self._path} does not exist here") from None
        except OSError as error:
            self.close()
            raise PluginError(f"{self._path} can't be read: {error.strerror}") from error

    def fileno(self) -> int:
        """Return the descriptor of a file that has been read, to poll it."""
        return self._descriptor

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED


class NameFilter:
    """Turns the kernel's device names into tag values, None for those to leave out.

    Remembers its answers: a host with many containers has many interfaces, and few that count.
    """

    def __init__(self, skipped_patterns: Iterable[str]) -> None:
        self._patterns = tuple(skipped_patterns)
        self._known: dict[bytes, str | None] = {}

    def tag(self, name: bytes) -> str | None:
        """Return the tag's value for a device, or None when it is left out."""
        try:
            return self._known[name]
        except KeyError:
            pass
        if len(self._known) >= KNOWN_NAMES_LIMIT:  # names of containers never come back
            self._known.clear()
        text = name.decode(errors="replace")
        answer = self._known[name] = text if self.is_wanted(text) else None
        return answer

    def is_wanted(self, name: str) -> bool:
        """Return whether no pattern leaves the device out."""
        return not matches_any(name, self._patterns)


def kibibytes(meminfo: bytes, name: bytes) -> int | None:
    """Return bytes from a line such as `MemTotal: 24684084 kB`; None where there is none.

    Args:
        meminfo: the content of `/proc/meminfo`.
        name: with its colon, such as `b"MemTotal:"`.
    """
    start = (b"\n" + meminfo).find(b"\n" + name)
    if start < 0:
        return None
    start += len(name)
    return int(meminfo[start : meminfo.index(b"kB", start)]) * KIBIBYTE


def _whole(descriptor: int) -> bytes:
    # A file of many records comes in pieces of about a page, each as long as whole records fit.
    data = os.pread(descriptor, CHUNK_BYTES, 0)
    while more := os.pread(descriptor, CHUNK_BYTES, len(data)):
        data += more
    return data
