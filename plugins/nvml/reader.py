"""NVIDIA GPUs through NVML, the driver's own library.

Fields that a card does not support are absent, never 0. A lost GPU does not stop the others. The
driver may hang, so the plugin is read in a worker process. The agent itself imports this module for
the settings, but never NVIDIA's bindings.
"""

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from plugins.base import PluginContext, PluginTraits, PluginUnavailableError
from plugins.nvml.config import NVMLConfig
from plugins.nvml.metrics import NVML_METRICS
from timeseries.points import Point

DRIVER_LIBRARY = "libnvidia-ml.so.1"


def driver_is_present() -> bool:
    """Return whether the driver library can be loaded, without calling it."""
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return False
    return True


class OpenDriver(Protocol):
    """Reads NVML, which stays open between readings."""

    def points(self, now: datetime) -> list[Point]:
        """Return the points of this instant."""

    def close(self) -> None:
        """Close NVML."""


class DriverPlugin(ABC):
    """A plugin that reads NVML; a subclass opens it."""

    traits = PluginTraits(worker="nvml")
    _gathering: OpenDriver | None = None

    @classmethod
    def needs_worker(cls, context: PluginContext) -> bool:
        """Return whether there is a driver that could hang."""
        del context
        return driver_is_present()

    @abstractmethod
    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return a reader."""

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the points of this instant.

        Raises:
            PluginUnavailableError: no driver or no GPU.
            PluginRestartError: the driver was updated; only a new process can load it.
            PluginError: the driver does not answer.
        """
        if self._gathering is None:
            if not driver_is_present():
                raise PluginUnavailableError(f"no NVIDIA driver: {DRIVER_LIBRARY} can't be loaded")
            self._gathering = self.open_driver()
        return self._gathering.points(now)

    def close(self) -> None:
        """Close the library and stop the event thread."""
        if self._gathering is not None:
            self._gathering.close()


class NVMLPlugin(DriverPlugin):
    """Points for each GPU, its slices, links and events; events come alone."""

    name = "nvml"
    config_class = NVMLConfig
    metrics = NVML_METRICS

    def __init__(self, config: NVMLConfig, context: PluginContext) -> None:
        self._config = config
        self._proc = context.proc

    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return a reader."""
        from plugins.nvml.gpus import Gathering  # noqa: PLC0415 - the bindings are heavy

        return Gathering(self._config, proc=self._proc)
