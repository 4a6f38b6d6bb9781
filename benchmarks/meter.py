"""Read the usage of a process and its children: CPU time, memory and context switches.

CPU time comes from the process's own CPU clock, which counts nanoseconds and keeps the time of
threads that have ended; `utime` and `stime` of `/proc/PID/stat` count in hundredths of a second,
which is as much as an agent spends in several seconds. Only children that have ended and been
waited for are known by those alone.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
KIBIBYTE = 1024
NS_PER_SECOND = 10**9
NS_PER_TICK = NS_PER_SECOND // os.sysconf("SC_CLK_TCK")
_PER_PROCESS_SCHEDULED = 2  # CPUCLOCK_SCHED of include/linux/posix-timers.h
_PARENT, _CHILDREN_USER, _CHILDREN_SYSTEM = 1, 13, 14  # in stat(5), counted behind the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counters of a process and its descendants at one instant.

    Attributes:
        at_seconds: of the monotonic clock.
        switches: context switches of the threads that live, voluntary and not.
    """

    at_seconds: float
    cpu_ns: int
    voluntary_switches: int
    involuntary_switches: int
    threads: int
    processes: int
    resident_bytes: int
    proportional_bytes: int


def read_usage(pid: int) -> Usage:
    """Return what a process and its descendants have used until now.

    Raises:
        ProcessLookupError: the process has ended.
    """
    if not (PROC / str(pid)).exists():
        raise ProcessLookupError(f"process {pid} has ended")
    pids = [pid, *descendants(pid)]
    tasks = [task for process_id in pids for task in _tasks(process_id)]
    memory = [_memory(process_id) for process_id in pids]
    return Usage(
        at_seconds=time.monotonic(),
        cpu_ns=sum(cpu_ns(process_id) for process_id in pids),
        voluntary_switches=sum(task["voluntary_ctxt_switches"] for task in tasks),
        involuntary_switches=sum(task["nonvoluntary_ctxt_switches"] for task in tasks),
        threads=len(tasks),
        processes=len(pids),
        resident_bytes=sum(resident for resident, _ in memory),
        proportional_bytes=sum(proportional for _, proportional in memory),
    )


def spent(before: Usage, after: Usage) -> dict[str, float]:
    """Return the figures of the time between two readings; memory is that of the second."""
    seconds = after.at_seconds - before.at_seconds
    cpu_seconds = (after.cpu_ns - before.cpu_ns) / NS_PER_SECOND
    return {
        "cpu_milliseconds_per_second": 1000 * cpu_seconds / seconds,
        "cpu_percent_of_a_core": 100 * cpu_seconds / seconds,
        "voluntary_switches_per_second": (after.voluntary_switches - before.voluntary_switches)
        / seconds,
        "involuntary_switches_per_second": (
            after.involuntary_switches - before.involuntary_switches
        )
        / seconds,
        "threads": after.threads,
        "processes": after.processes,
        "resident_mebibytes": after.resident_bytes / 2**20,
        "proportional_mebibytes": after.proportional_bytes / 2**20,
    }


def cpu_ns(pid: int) -> int:
    """Return the CPU time of a process, ended threads and waited-for children included."""
    # clock_getcpuclockid(3) computes the clock's number in the same way.
    own = time.clock_gettime_ns((~pid << 3) | _PER_PROCESS_SCHEDULED)
    columns = stat_columns((PROC / str(pid) / "stat").read_text(encoding="utf-8"))
    return own + NS_PER_TICK * (int(columns[_CHILDREN_USER]) + int(columns[_CHILDREN_SYSTEM]))


def stat_columns(stat: str) -> list[str]:
    """Return the columns of `/proc/PID/stat` behind the name, which may hold anything."""
    return stat[stat.rindex(")") + 2 :].split()


def descendants(pid: int) -> list[int]:
    """Return the children of a process that live, and theirs."""
    children: dict[int, list[int]] = {}
    for path in PROC.iterdir():
        if path.name.isdigit():
            try:
                columns = stat_columns((path / "stat").read_text(encoding="utf-8"))
            except (FileNotFoundError, ProcessLookupError):  # ended just now
                continue
            children.setdefault(int(columns[_PARENT]), []).append(int(path.name))
    descendant_ids, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        descendant_ids += below
        waiting += below
    return descendant_ids


def _tasks(pid: int) -> Iterator[dict[str, int]]:
    for path in (PROC / str(pid) / "task").iterdir():
        try:
            yield switches((path / "status").read_text(encoding="utf-8"))
        except (FileNotFoundError, ProcessLookupError):
            continue


def switches(status: str) -> dict[str, int]:
    """Return the context switches that `/proc/PID/task/TID/status` counts."""
    counts = {"voluntary_ctxt_switches": 0, "nonvoluntary_ctxt_switches": 0}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in counts:
            counts[name] = int(value)
    return counts


def _memory(pid: int) -> tuple[int, int]:
    return memory_bytes((PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8"))


def memory_bytes(smaps_rollup: str) -> tuple[int, int]:
    """Return resident bytes, and those counted by their share where pages are shared."""
    kibibytes = {
        name: int(value.split()[0])
        for name, separator, value in (
            line.partition(":") for line in smaps_rollup.splitlines()[1:]
        )
        if separator
    }
    return KIBIBYTE * kibibytes["Rss"], KIBIBYTE * kibibytes["Pss"]
