"""Processes by state, threads, and how fast both change (`/proc`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from msgspec import Meta

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges, rates
from plugins.processes.states import count_states
from plugins.procfs import ProcFile
from plugins.rates import CounterRates
from timeseries.points import FieldValue, Point

COUNTERS = {
    b"\nprocesses ": "forks_per_second",
    b"\nctxt ": "context_switches_per_second",
}
# Readings of every ten seconds come a little sooner or later; each is to have its pass.
EARLY_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessesConfig:
    """How often to look at every process.

    Attributes:
        states_interval_seconds: the states are read no more often than this; 0 for each reading.
    """

    states_interval_seconds: Annotated[float, Meta(ge=0)] = 10.0


class ProcessesPlugin:
    """Counts of one instant; states are absent from readings between two passes over them."""

    name: ClassVar[str] = "processes"
    config_class: ClassVar[type] = ProcessesConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = (
        *gauges(
            {
                "total": ("processes", "all processes"),
                "running": ("processes", "running or ready to run"),
                "blocked": ("processes", "waiting for a device or a network file system"),
                "sleeping": ("processes", "waiting for anything else"),
                "idle": ("processes", "idle threads of the kernel"),
                "stopped": ("processes", "stopped by a signal or a debugger"),
                "zombies": ("processes", "ended, and not yet taken note of by their parent"),
                "threads": ("threads", "all threads of all processes"),
            }
        ),
        *rates(
            {
                "forks_per_second": ("per second", "processes and threads started"),
                "context_switches_per_second": ("per second", "changes from one task to another"),
            }
        ),
    )

    def __init__(self, config: ProcessesConfig, context: PluginContext) -> None:
        self._proc = context.proc
        self._stat = ProcFile(context.proc / "stat")
        self._loadavg = ProcFile(context.proc / "loadavg")
        self._rates = CounterRates()
        self._pause = timedelta(seconds=config.states_interval_seconds * (1 - EARLY_SHARE))
        self._states_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        fields: dict[str, FieldValue] = {"threads": _threads(self._loadavg.read())}
        fields |= self._rates.rates("host", _counters(self._stat.read()), now=now) or {}
        if self._is_pass_due(now):
            self._states_at = now
            fields |= count_states(self._proc)
        return [Point("processes", {}, fields, to_ns(now))]

    def close(self) -> None:
        """Close the files."""
        self._stat.close()
        self._loadavg.close()

    def _is_pass_due(self, now: datetime) -> bool:
        if self._states_at is None:
            return True
        return not timedelta(0) <= now - self._states_at < self._pause


def _threads(loadavg: bytes) -> int:
    """Return the number behind the slash of `0.63 0.84 0.47 2/122 32056`."""
    return int(loadavg.split(b"/", 1)[1].split(b" ", 1)[0])


def _counters(stat: bytes) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, field in COUNTERS.items():
        if (start := stat.find(name)) >= 0:
            found[field] = int(stat[start + len(name) : stat.index(b"\n", start + 1)])
    return found
