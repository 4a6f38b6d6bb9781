"""Load averages of the host (`/proc/loadavg`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges
from plugins.procfs import ProcFile
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """The load plugin has no settings of its own."""


class LoadPlugin:
    """How many tasks ran or waited to run, averaged over 1, 5 and 15 minutes."""

    name: ClassVar[str] = "load"
    config_class: ClassVar[type] = LoadConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "load1": ("tasks", "tasks running or waiting, averaged over 1 minute"),
            "load5": ("tasks", "tasks running or waiting, averaged over 5 minutes"),
            "load15": ("tasks", "tasks running or waiting, averaged over 15 minutes"),
        }
    )

    def __init__(self, config: LoadConfig, context: PluginContext) -> None:
        del config
        self._loadavg = ProcFile(context.proc / "loadavg")

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        load1, load5, load15, _ = self._loadavg.read().split(b" ", 3)
        fields = {"load1": float(load1), "load5": float(load5), "load15": float(load15)}
        return [Point("load", {}, fields, to_ns(now))]

    def close(self) -> None:
        """Close `/proc/loadavg`."""
        self._loadavg.close()
