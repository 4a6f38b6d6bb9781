"""The kernel's ring of messages, for hosts and containers without systemd's journal.

Source: Documentation/ABI/testing/dev-kmsg of Linux: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`.
"""

import os
import select
import time
from collections.abc import Sequence
from pathlib import Path

from collector.logs.journal import KERNEL, host_line, is_wanted
from collector.logs.settings import LogSettings
from protocol.lines import ApplianceLine

PATH = Path("/dev/kmsg")
RECORD_BYTES = 8192
MAX_RECORDS = 1000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Facilities are above it: the kernel's own is 0, others come from programs that write to the ring.
_FACILITY = 8


class KernelRing:
    """Follows the ring. For one thread.

    Args:
        settings: which lines.
        cursor: boot and number of the last record that was read before.
        path: of the ring.

    Attributes:
        cursor: the same of the last that was read.
    """

    def __init__(self, settings: LogSettings, *, cursor: str = "", path: Path = PATH) -> None:
        self._settings = settings
        self._path = path
        self._boot = _BOOT_ID.read_text("ascii").strip()
        boot, _, number = cursor.partition(":")
        self._number = int(number) if boot == self._boot and number.isdecimal() else -1
        self._descriptor: int | None = None

    @property
    def cursor(self) -> str:
        """Boot and number of the last record that was read."""
        return f"{self._boot}:{self._number}"

    @staticmethod
    def is_available() -> bool:
        """Return whether this user may read the ring."""
        return os.access(PATH, os.R_OK)

    def read(self, timeout_seconds: float) -> Sequence[ApplianceLine]:
        """Return new lines, after waiting for the first of them.

        Raises:
            OSError: the ring can't be read.
        """
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        if not select.select([self._descriptor], [], [], timeout_seconds)[0]:
            return []
        lines = []
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(self._descriptor, RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten; the next read has the oldest that is left
            if not record:
                break
            line = self._line(record)
            if line is not None and is_wanted(line, self._settings):
                lines.append(line)
        return lines

    def close(self) -> None:
        """Close the ring; the next `read` goes on from the cursor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _line(self, record: bytes) -> ApplianceLine | None:
        head, _, text = record.decode(errors="replace").partition(";")
        priority, number, microseconds, *_ = head.split(",")
        if int(number) <= self._number or int(priority) >= _FACILITY:
            return None
        self._number = int(number)
        booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return host_line(
            at_ns=booted_ns + int(microseconds) * 1000,
            text=text.partition("\n")[0],
            priority=int(priority),
            unit=KERNEL,
        )
