"""Time since boot (`/proc/uptime`)."""

from collections.abc import Iterable
from datetime import datetime

from core.clock import to_ns
from plugins.base import gauges
from plugins.procfs import ProcPlugin
from timeseries.points import Point


class UptimePlugin(ProcPlugin):
    """Uptime of the host, including suspend."""

    name = "uptime"
    paths = ("uptime",)
    metrics = gauges(uptime_seconds=("seconds", "time since boot"))

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        seconds = float(self.read("uptime").split(b" ", 1)[0])
        return [Point("uptime", {}, {"uptime_seconds": seconds}, to_ns(now))]
