"""Files under `/proc` and `/sys` that are read repeatedly, and rates from their counters.

The kernel regenerates such a file whenever it is read from the start, so it stays open.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from core.clock import to_ns
from plugins.base import (
    BasePlugin,
    PluginContext,
    PluginError,
    PluginUnavailableError,
    matches_any,
)
from timeseries.points import Point

CHUNK_BYTES = 32 * 1024
KNOWN_NAMES_LIMIT = 4096
KIBIBYTE = 1024
_CLOSED = -1


class ProcFile:
    """One file, opened at the first reading and read completely each time."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _CLOSED

    def read(self) -> bytes:
        """Return the content; on an error, reopen the file once.

        Raises:
            PluginUnavailableError: there is no such file.
            PluginError: the file can't be read.
        """
        try:
            if self._descriptor != _CLOSED:
                try:
                    return _whole(self._descriptor)
                except OSError:  # the device was removed and may be back
                    self.close()
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return _whole(self._descriptor)
        except FileNotFoundError:
            raise PluginUnavailableError(f"{self._path} does not exist") from None
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
    """Turns device names of the kernel into tag values; None for excluded ones.

    Caches results: a host with many containers has many interfaces.
    """

    def __init__(self, skipped_patterns: Iterable[str]) -> None:
        self._patterns = tuple(skipped_patterns)
        self._known: dict[bytes, str | None] = {}

    def tag(self, name: bytes) -> str | None:
        """Return the tag value of a device, or None if it is excluded."""
        try:
            return self._known[name]
        except KeyError:
            pass
        if len(self._known) >= KNOWN_NAMES_LIMIT:  # container names are not reused
            self._known.clear()
        text = name.decode(errors="replace")
        answer = self._known[name] = text if self.is_wanted(text) else None
        return answer

    def is_wanted(self, name: str) -> bool:
        """Return whether no pattern excludes the device."""
        return not matches_any(name, self._patterns)


def kibibytes(meminfo: bytes, name: bytes) -> int | None:
    """Return bytes from a line such as `MemTotal: 24684084 kB`; None if absent.

    Args:
        meminfo: the content of `/proc/meminfo`.
        name: with its colon, such as `b"MemTotal:"`.
    """
    start = (b"\n" + meminfo).find(b"\n" + name)
    if start < 0:
        return None
    start += len(name)
    return int(meminfo[start : meminfo.index(b"kB", start)]) * KIBIBYTE


def named_numbers(text: bytes, fields: Mapping[bytes, str]) -> dict[str, int]:
    """Return the numbers of lines such as `ctxt 1234`, by field.

    Args:
        fields: what precedes the number, such as `b"\\nctxt "`, to the name of its field.
    """
    numbers = {}
    for name, field in fields.items():
        if (start := text.find(name)) >= 0:
            numbers[field] = int(text[start + len(name) : text.index(b"\n", start + 1)])
    return numbers


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted; none if it can't be listed."""
    try:
        return sorted(folder.iterdir(), key=lambda path: path.name.lower())
    except OSError:
        return []


def _whole(descriptor: int) -> bytes:
    # A read returns whole records of about a page.
    data = os.pread(descriptor, CHUNK_BYTES, 0)
    while chunk := os.pread(descriptor, CHUNK_BYTES, len(data)):
        data += chunk
    return data


DECIMALS = 3


class CounterRates:
    """Returns the increase of counters per second since the last reading of each key.

    Rates have three decimals, to save space.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[datetime, Mapping[str, float]]] = {}

    def rates(
        self, key: str, counters: Mapping[str, float], *, now: datetime
    ) -> dict[str, float] | None:
        """Return the growth per second of each counter, in the order given.

        None on the first reading of a key, when time did not move forward, and when any counter
        went back: then the device was reset and the difference says nothing. `counters` is kept
        until the next reading: do not change it.
        """
        before = self._last.get(key)
        self._last[key] = (now, counters)
        if before is None:
            return None
        read_at, previous = before
        elapsed_seconds = (now - read_at).total_seconds()
        if elapsed_seconds <= 0:
            return None
        rates = {}
        for name, value in counters.items():
            growth = value - previous.get(name, value)
            if growth < 0:
                return None
            rates[name] = round(growth / elapsed_seconds, DECIMALS) if growth else 0.0
        return rates

    def per_second(self, key: str, count: int | None, *, now: datetime) -> int | None:
        """Return the growth of one counter in whole units per second; None as for `rates`."""
        rates = None if count is None else self.rates(key, {key: count}, now=now)
        return None if rates is None else round(rates[key])

    def points(
        self,
        measurement: str,
        tag: str,
        counters: Mapping[str, Mapping[str, float]],
        *,
        now: datetime,
    ) -> list[Point]:
        """Return a point of rates for each device that was read before; forget those gone.

        Args:
            tag: the tag that names the device.
            counters: device to its counters, each under the name of its rate's field.
        """
        points, time_ns = [], to_ns(now)
        for device in sorted(counters):
            fields = self.rates(device, counters[device], now=now)
            if fields:
                points.append(Point(measurement, {tag: device}, fields, time_ns))
        if len(self._last) > len(counters):
            self.keep_only(set(counters))
        return points

    def keep_only(self, keys: set[str]) -> None:
        """Forget devices that are gone, so that one that comes back starts afresh."""
        for key in self._last.keys() - keys:
            del self._last[key]


class ProcPlugin(BasePlugin):
    """A plugin that reads files under `/proc`, which stay open until it is closed.

    Attributes:
        paths: the files, relative to `/proc`.
    """

    paths: ClassVar[Sequence[str]]

    def __init__(self, _config: object, context: PluginContext) -> None:
        self._files = {path: ProcFile(context.proc / path) for path in self.paths}
        self._rates = CounterRates()

    def read(self, path: str) -> bytes:
        """Return the content of one of the files."""
        return self._files[path].read()

    def close(self) -> None:
        """Close the files; reading opens them again."""
        for file in self._files.values():
            file.close()
