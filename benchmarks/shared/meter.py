"""The usage of a process and its children: CPU time, memory and context switches.

CPU time comes from each process's own CPU clock, which counts nanoseconds and includes threads that
have ended: ticks of 10 ms, which most tools show, are as much as an agent spends in seconds. Only
children that have ended are counted in ticks.
"""

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import psutil

from benchmarks.shared.document import rounded
from core.clock import NS_PER_SECOND

MEBIBYTE = 2**20
_PER_PROCESS_SCHEDULED = 2  # CPUCLOCK_SCHED of include/linux/posix-timers.h
_SWITCHES = re.compile(r"^(voluntary|nonvoluntary)_ctxt_switches:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counters of a process and its descendants at an instant of the monotonic clock.

    Attributes:
        switches: context switches of the threads that live, voluntary and not.
    """

    at_seconds: float
    cpu_seconds: float
    switches: tuple[int, int]
    resident_bytes: int
    proportional_bytes: int


def read_usage(*pids: int) -> Usage:
    """Return what processes and their descendants have used until now, together.

    Raises:
        psutil.NoSuchProcess: one has ended.
    """
    processes = [psutil.Process(pid) for pid in pids]
    descendants = [process.children(recursive=True) for process in processes]
    family = [*processes, *chain.from_iterable(descendants)]
    memory = [member.memory_full_info() for member in family]
    switches = [_switches(member.pid) for member in family]
    return Usage(
        at_seconds=time.monotonic(),
        cpu_seconds=sum(cpu_seconds(member.pid) for member in family),
        switches=(sum(pair[0] for pair in switches), sum(pair[1] for pair in switches)),
        resident_bytes=sum(member.rss for member in memory),
        proportional_bytes=sum(member.pss for member in memory),
    )


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, ended threads and waited-for children included."""
    # clock_getcpuclockid(3) computes the clock's number in the same way.
    own_ns = time.clock_gettime_ns((~pid << 3) | _PER_PROCESS_SCHEDULED)
    times = psutil.Process(pid).cpu_times()
    return own_ns / NS_PER_SECOND + float(times.children_user + times.children_system)


@contextmanager
def watched(*pids: int, every_seconds: float = 0.5) -> Iterator[list[Usage]]:
    """Read the usage at the begin and the end of the block, and in a thread meanwhile."""
    readings, is_done = [read_usage(*pids)], threading.Event()

    def watch() -> None:
        while not is_done.wait(every_seconds):
            readings.append(read_usage(*pids))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield readings
    finally:
        is_done.set()
        thread.join()
    readings.append(read_usage(*pids))


def spent(readings: Sequence[Usage]) -> dict[str, float]:
    """Return the figures of the time between the first and the last reading."""
    first, last = readings[0], readings[-1]
    seconds = last.at_seconds - first.at_seconds
    voluntary, involuntary = (
        (after - before) / seconds
        for before, after in zip(first.switches, last.switches, strict=True)
    )
    most_bytes = max(reading.resident_bytes for reading in readings)
    return {
        "cpu_percent_of_a_core": rounded(100 * (last.cpu_seconds - first.cpu_seconds) / seconds),
        "voluntary_switches_per_second": rounded(voluntary),
        "involuntary_switches_per_second": rounded(involuntary),
        "resident_mebibytes": rounded(last.resident_bytes / MEBIBYTE),
        "most_resident_mebibytes": rounded(most_bytes / MEBIBYTE),
        "proportional_mebibytes": rounded(last.proportional_bytes / MEBIBYTE),
    }


def server_figures(readings: Sequence[Usage]) -> dict[str, float]:
    """Return a server's CPU time and memory, which most benchmarks report of it."""
    figures = spent(readings)
    names = ("cpu_percent_of_a_core", "resident_mebibytes", "most_resident_mebibytes")
    return {f"server_{name}": figures[name] for name in names}


def _switches(pid: int) -> tuple[int, int]:
    """Return the voluntary and involuntary context switches of a process's threads."""
    counts = {"voluntary": 0, "nonvoluntary": 0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            for kind, count in _SWITCHES.findall((task / "status").read_text(encoding="utf-8")):
                counts[kind] += int(count)
    return counts["voluntary"], counts["nonvoluntary"]
