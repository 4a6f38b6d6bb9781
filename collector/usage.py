"""What the agent itself costs: CPU time and memory, as the kernel counts them."""

import os
import time
from collections.abc import Callable, Iterable, Mapping

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat, behind the name in brackets.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


class OwnUsage:
    """Shares of CPU time between two calls of `fields`.

    Args:
        child_pids: the processes that count as the agent's own.
    """

    def __init__(self, child_pids: Callable[[], Iterable[int]]) -> None:
        self._child_pids = child_pids
        self._last = (time.monotonic(), self._cpu_seconds())

    def fields(self) -> Mapping[str, float | int]:
        """Return `cpu_percent` (100 is one core) since the last call, and `resident_bytes`."""
        at_seconds, cpu_seconds = time.monotonic(), self._cpu_seconds()
        last_at_seconds, last_cpu_seconds = self._last
        self._last = (at_seconds, cpu_seconds)
        elapsed_seconds = at_seconds - last_at_seconds
        fields: dict[str, float | int] = {"resident_bytes": resident_bytes()}
        if elapsed_seconds > 0:
            used_seconds = max(0.0, cpu_seconds - last_cpu_seconds)
            fields["cpu_percent"] = 100 * used_seconds / elapsed_seconds
        return fields

    def _cpu_seconds(self) -> float:
        ended = os.times()
        of_children = sum(process_cpu_seconds(pid) for pid in self._child_pids())
        return sum(ended[:4]) + of_children


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read often
        return int(file.read().split()[1]) * _PAGE_BYTES


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - read often
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_SECOND
