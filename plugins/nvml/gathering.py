"""One reading after the other: events, GPUs, and NVML opened again when the driver changed."""

from collections.abc import Collection
from datetime import datetime

from plugins.base import PluginRestartError
from plugins.nvml.gpus import GPUs
from plugins.nvml.library import LibraryStaleError, NVMLLibrary
from plugins.nvml.xids import XidWatcher
from timeseries.points import Point


class Gathering:
    """Keeps NVML open between readings."""

    def __init__(
        self, *, skip_uuids: Collection[str], per_link: bool, pcie_throughput: bool
    ) -> None:
        self._library = NVMLLibrary()
        self._xids = XidWatcher()
        self._gpus = GPUs(
            self._library,
            skip_uuids=skip_uuids,
            per_link=per_link,
            pcie_throughput=pcie_throughput,
        )
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
        try:
            points = self._gpus.read(now)
        except LibraryStaleError:
            self.close()
            points = self._read_again(now)
        self._xids.watch(self._gpus.devices())
        return points

    def _read_again(self, now: datetime) -> list[Point]:
        try:
            return self._gpus.read(now)
        except LibraryStaleError as error:
            self.close()
            # Other plugins of this process hold NVML open, or its library is too old for good.
            raise PluginRestartError(f"NVML can't be opened again here: {error}") from error
