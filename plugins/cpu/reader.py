"""CPU use of the whole host, from the kernel's CPU time counters (`/proc/stat`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import psutil

from core.clock import to_ns
from plugins.base import Metric, PluginContext, gauges
from plugins.rates import CounterRates
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUConfig:
    """The CPU plugin has no settings of its own."""


class CPUPlugin:
    """Shares of CPU time since the last reading; the first reading gives none."""

    name: ClassVar[str] = "cpu"
    config_class: ClassVar[type] = CPUConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "usage_percent": ("percent", "CPU time spent on anything but idling and waiting"),
            "user_percent": ("percent", "CPU time in user code, nice included"),
            "system_percent": ("percent", "CPU time in the kernel, interrupts included"),
            "iowait_percent": ("percent", "CPU time idle while a disk request was open"),
            "idle_percent": ("percent", "CPU time idle"),
        }
    )

    def __init__(self, config: CPUConfig, context: PluginContext) -> None:
        del config, context
        self._rates = CounterRates()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        seconds = cpu_seconds()
        rates = self._rates.rates("cpu", seconds, now=now)
        total = sum(rates.values()) if rates else 0.0
        if not rates or total <= 0:
            return []
        share = {f"{name}_percent": 100 * rate / total for name, rate in rates.items()}
        share.pop("steal_percent")
        usage = 100 - share["idle_percent"] - share["iowait_percent"]
        return [Point("cpu", {}, {"usage_percent": max(0.0, usage), **share}, to_ns(now))]

    def close(self) -> None:
        """Release nothing: psutil keeps nothing open."""


def cpu_seconds() -> dict[str, float]:
    """Return CPU seconds since boot by kind; guest time is part of user time already."""
    times = psutil.cpu_times()
    return {
        "user": times.user + getattr(times, "nice", 0.0),
        "system": times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0),
        "iowait": getattr(times, "iowait", 0.0),
        "idle": times.idle,
        "steal": getattr(times, "steal", 0.0),
    }
