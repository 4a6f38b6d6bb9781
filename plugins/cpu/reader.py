"""CPU use of the host and of each core, from the kernel's CPU time counters (`/proc/stat`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from core.clock import to_ns
from plugins.base import PluginContext, gauges
from plugins.procfs import ProcPlugin
from timeseries.points import FieldValue, Point

HOST_LINE = b"cpu"
KINDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUConfig:
    """The values to read.

    Attributes:
        per_core: add a point for each core.
    """

    per_core: bool = True


class CPUPlugin(ProcPlugin):
    """Shares of CPU time since the last reading; none at the first."""

    name = "cpu"
    paths = ("stat",)
    config_class = CPUConfig
    metrics = gauges(
        usage_percent=("percent", "CPU time that is neither idle nor iowait"),
        user_percent=("percent", "CPU time in user space at normal priority"),
        nice_percent=("percent", "CPU time in user space at low priority (nice)"),
        system_percent=("percent", "CPU time in the kernel, excluding interrupts"),
        iowait_percent=("percent", "CPU time idle with disk I/O pending"),
        irq_percent=("percent", "CPU time in hardware interrupts"),
        softirq_percent=("percent", "CPU time in soft interrupts, such as network traffic"),
        steal_percent=("percent", "CPU time that the hypervisor gave to other guests"),
        guest_percent=("percent", "CPU time spent running virtual machines"),
        idle_percent=("percent", "CPU time idle"),
    )

    def __init__(self, config: CPUConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._per_core = config.per_core
        self._last: dict[bytes, list[int]] = {}
        self._tags: dict[bytes, dict[str, str]] = {}

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for the host and, with `per_core`, one for each online core."""
        time_ns, points = to_ns(now), []
        current: dict[bytes, list[int]] = {}
        for line in self._lines():
            name, *columns = line.split()
            ticks = current[name] = list(map(int, columns[:KINDS]))
            before = self._last.get(name)
            fields = shares(before, ticks) if before else None
            if fields:
                measurement = "cpu" if name == HOST_LINE else "cpu_core"
                points.append(Point(measurement, self._tags_of(name), fields, time_ns))
        self._last = current
        return points

    def _lines(self) -> list[bytes]:
        lines = self.read("stat").split(b"\n")
        if not self._per_core:
            return lines[:1]
        return list(takewhile(lambda line: line.startswith(HOST_LINE), lines))

    def _tags_of(self, name: bytes) -> dict[str, str]:
        tags = self._tags.get(name)
        if tags is None:
            core = name.removeprefix(HOST_LINE).decode()
            tags = self._tags[name] = {"core": core} if core else {}
        return tags


def shares(before: Sequence[int], after: Sequence[int]) -> dict[str, FieldValue] | None:
    """Return the shares of time between two lines of counters; None if no time passed.

    The kernel counts guest time in user time, and guest_nice in nice: both are subtracted, so that
    the shares add up to 100. A counter that went back counts as unchanged: the kernel sometimes
    corrects iowait and idle downwards.

    Args:
        before: ticks by kind, in the order of `/proc/stat`.
        after: the same, later.

    Source: proc_stat(5); Documentation/filesystems/proc.rst, 1.7.
    """
    user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice = [
        new - old if new > old else 0 for old, new in zip(before, after, strict=True)
    ]
    user, nice, guest = max(0, user - guest), max(0, nice - guest_nice), guest + guest_nice
    busy = user + nice + system + irq + softirq + steal + guest
    total = busy + idle + iowait
    if not total:
        return None
    scale = 10_000 / total  # two decimals: a tick is 10 ms
    return {
        "usage_percent": int(busy * scale + 0.5) / 100,
        "user_percent": int(user * scale + 0.5) / 100,
        "nice_percent": int(nice * scale + 0.5) / 100,
        "system_percent": int(system * scale + 0.5) / 100,
        "iowait_percent": int(iowait * scale + 0.5) / 100,
        "irq_percent": int(irq * scale + 0.5) / 100,
        "softirq_percent": int(softirq * scale + 0.5) / 100,
        "steal_percent": int(steal * scale + 0.5) / 100,
        "guest_percent": int(guest * scale + 0.5) / 100,
        "idle_percent": int(idle * scale + 0.5) / 100,
    }
