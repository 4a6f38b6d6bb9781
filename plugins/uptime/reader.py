"""Time since the host was booted (`/proc/uptime`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges
from plugins.procfs import ProcFile
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class UptimeConfig:
    """The uptime plugin has no settings of its own."""


class UptimePlugin:
    """How long the host has been up, time asleep included."""

    name: ClassVar[str] = "uptime"
    config_class: ClassVar[type] = UptimeConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {"uptime_seconds": ("seconds", "time since the host was booted")}
    )

    def __init__(self, config: UptimeConfig, context: PluginContext) -> None:
        del config
        self._uptime = ProcFile(context.proc / "uptime")

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        seconds = float(self._uptime.read().split(b" ", 1)[0])
        return [Point("uptime", {}, {"uptime_seconds": seconds}, to_ns(now))]

    def close(self) -> None:
        """Close `/proc/uptime`."""
        self._uptime.close()
