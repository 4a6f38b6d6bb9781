"""Load averages of the host (`/proc/loadavg`)."""

import os
from collections.abc import Iterable
from datetime import datetime

from core.clock import to_ns
from plugins.base import gauges
from plugins.procfs import ProcPlugin
from timeseries.points import Point


class LoadPlugin(ProcPlugin):
    """Tasks running or waiting to run, averaged over 1, 5 and 15 minutes."""

    name = "load"
    paths = ("loadavg",)
    metrics = gauges(
        load1=("tasks", "tasks running or waiting, averaged over 1 minute"),
        load5=("tasks", "tasks running or waiting, averaged over 5 minutes"),
        load15=("tasks", "tasks running or waiting, averaged over 15 minutes"),
        cpu_count=("CPUs", "logical CPUs of the host, to compare the load with"),
    )

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        load1, load5, load15, _ = self.read("loadavg").split(b" ", 3)
        loads = {"load1": float(load1), "load5": float(load5), "load15": float(load15)}
        return [Point("load", {}, loads | {"cpu_count": os.cpu_count() or 1}, to_ns(now))]
