"""One reading after the other: events, GPUs, and NVML opened again when the driver changed."""

from datetime import datetime
from pathlib import Path

from plugins.nvml.config import NVMLConfig
from plugins.nvml.gpus import GPUs
from plugins.nvml.library import NVMLLibrary
from plugins.nvml.reopening import read_reopening
from plugins.nvml.xids import XidWatcher
from timeseries.points import Point


class Gathering:
    """Keeps NVML open between readings."""

    def __init__(self, config: NVMLConfig, *, proc: Path) -> None:
        self._library = NVMLLibrary()
        self._xids = XidWatcher()
        self._gpus = GPUs(self._library, config, proc=proc)
        self._gave_events = False

    def points(self, now: datetime) -> list[Point]:
        """Return events where there are new ones, else the readings of all GPUs.

        After an event the driver may hang, and the process that asks it is killed. So events go
        out before the GPUs are asked, which are read the next time whatever happens by then.

        Raises:
            PluginUnavailableError: there is no driver or no GPU.
            PluginRestartError: only a new process can load the driver's new library.
            PluginError: the driver does not answer.
        """
        events = [] if self._gave_events else self._xids.take()
        self._gave_events = bool(events)
        return events or self._read(now)

    def close(self) -> None:
        """Let the library go and end the thread that waits for events."""
        self._xids.close()
        self._gpus.forget()
        self._library.close()

    def _read(self, now: datetime) -> list[Point]:
        points = read_reopening(lambda: self._gpus.read(now), close=self.close)
        self._xids.watch(self._gpus.devices())
        return points
