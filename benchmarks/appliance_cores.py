"""The cores of the made-up appliance, read by the real cpu plugin."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from random import Random

from plugins.base import PluginContext
from plugins.cpu.reader import CPUConfig, CPUPlugin
from timeseries.points import Point

PROCESSOR_HERTZ = 100
_KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Cores:
    """Keeps the kernel's counters of each core.

    Args:
        scratch: a folder for the `stat` that the plugin reads.
        busy_cores: how many work on the average.
    """

    def __init__(
        self,
        count: int,
        *,
        scratch: Path,
        random: Random,
        interval_seconds: float,
        busy_cores: float,
    ) -> None:
        self._scratch = scratch
        self._random = random
        self._interval_seconds = interval_seconds
        self._busy_cores = busy_cores
        self._ticks = [dict.fromkeys(_KINDS, 0) for _ in range(count)]
        self._plugin = CPUPlugin(CPUConfig(), PluginContext(proc=scratch))

    def points(self, now: datetime) -> Iterable[Point]:
        """Let an interval pass and return what the plugin reads then; nothing the first time."""
        share = self._busy_cores / len(self._ticks)
        for ticks in self._ticks:
            self._spend(ticks, busy=min(1.0, max(0.0, self._random.gauss(share, share / 2))))
        total = {kind: sum(ticks[kind] for ticks in self._ticks) for kind in _KINDS}
        lines = [_stat_line("cpu ", total)]
        lines += [_stat_line(f"cpu{core}", ticks) for core, ticks in enumerate(self._ticks)]
        (self._scratch / "stat").write_text("\n".join([*lines, "intr 1\n"]), encoding="ascii")
        return self._plugin.gather(now)

    def _spend(self, ticks: dict[str, int], *, busy: float) -> None:
        """Add one interval of a core's time to its counters, in the kernel's ticks."""
        total = round(self._interval_seconds * PROCESSOR_HERTZ) + self._random.choice((-1, 0, 0, 1))
        system = round(total * busy * self._random.uniform(0.05, 0.25))
        softirq = self._random.choice((0, 0, 0, 1, 2, 5))
        iowait = self._random.choice((0, 0, 0, 0, 1, 8))
        user = round(total * busy) - system
        ticks["user"] += max(0, user)
        ticks["system"] += system
        ticks["softirq"] += softirq
        ticks["iowait"] += iowait
        ticks["idle"] += max(0, total - max(0, user) - system - softirq - iowait)

    def close(self) -> None:
        """Close the plugin."""
        self._plugin.close()


def _stat_line(name: str, ticks: Mapping[str, int]) -> str:
    return " ".join([name, *(str(ticks[kind]) for kind in _KINDS), "0", "0"])
