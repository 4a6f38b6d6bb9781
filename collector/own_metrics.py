"""The agent's own metrics: measurement `agent`, and `plugin` for each plugin."""

import os
import time
from collections.abc import Callable, Iterable, Mapping

from collector.buffering.buffer import DiskBuffer
from collector.reading.plugin_host import PluginHost
from collector.samples import EARLY_RATIO, SampleWriter
from collector.sending.access_points import AccessPoints
from collector.sending.sender import Sender
from core.clock import Clock, to_ns
from plugins.base import present
from timeseries.points import Point

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Columns of /proc/PID/stat, after the name in parentheses.
_USER_TICKS, _SYSTEM_TICKS = 11, 12


class OwnMetrics:
    """Adds the agent's own points to the samples at an interval.

    Args:
        extra_metrics: returns further fields of measurement `agent`; None is left out.
    """

    def __init__(
        self,
        host: PluginHost,
        buffer: DiskBuffer,
        sender: Sender,
        *,
        access_points: AccessPoints,
        samples: SampleWriter,
        clock: Clock,
        extra_metrics: Callable[[], Mapping[str, float | int | None]] = dict,
    ) -> None:
        self._extra_metrics = extra_metrics
        self._host = host
        self._buffer = buffer
        self._sender = sender
        self._access_points = access_points
        self._samples = samples
        self._clock = clock
        self._usage = ProcessUsage(lambda: host.worker_pids)
        self._due_seconds: float | None = None

    def add_when_due(self, interval_seconds: float) -> float:
        """Add the points if they are due; return the seconds until the next ones."""
        now = time.monotonic()
        if self._due_seconds is not None:
            left_seconds = self._due_seconds - now
            if EARLY_RATIO * interval_seconds < left_seconds <= interval_seconds:
                return left_seconds
        self._due_seconds = now + interval_seconds
        at = self._clock()
        self._samples.add([self._agent_point(to_ns(at)), *self._host.own_points(at)])
        return interval_seconds

    def _agent_point(self, time_ns: int) -> Point:
        buffer, counters, losses = self._buffer, self._sender.counters, self._buffer.losses
        fields = present(
            {
                "buffered_bytes": buffer.size_bytes,
                "buffered_points": buffer.points,
                "backlog_points": buffer.backlog_points,
                "dropped_points": losses.dropped_points,
                "dropped_by_age_points": losses.dropped_by_age_points,
                "dropped_by_size_points": losses.dropped_by_size_points,
                "damaged_bytes": losses.damaged_bytes,
                "sent_points": counters.sent_points,
                "send_failures": counters.failures,
                "undeliverable_lines": counters.undeliverable_lines,
                "gather_failures": self._host.gather_failures,
                "implausible_readings": self._samples.implausible.count,
                "access_point_latency_seconds": self._access_points.latency_seconds,
                "access_point_moves": self._access_points.state.moves,
                "access_point_failovers": self._access_points.state.failovers,
                **self._extra_metrics(),
                **self._usage.fields(),
            }
        )
        return Point("agent", {}, fields, time_ns)


class ProcessUsage:
    """CPU time and memory of the agent, from the kernel.

    Args:
        worker_pids: worker processes, whose CPU time is included.
    """

    def __init__(self, worker_pids: Callable[[], Iterable[int]]) -> None:
        self._worker_pids = worker_pids
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
        return sum(os.times()[:4]) + sum(process_cpu_seconds(pid) for pid in self._worker_pids())


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - read often
        return int(file.read().split()[1]) * _PAGE_BYTES


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - read often
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / _TICKS_PER_SECOND
