"""What all plugins have in common that read NVIDIA's driver.

They are read in one child process, which is killed when the driver hangs, and only where there is
a driver. The agent itself imports them for their settings, and NVIDIA's bindings never: these come
with the *gathering*, which is made at the first reading.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime
from typing import ClassVar, Protocol

from plugins.base import PluginContext, PluginTraits
from plugins.nvml.presence import driver_is_present, require_driver
from timeseries.points import Point


class OpenDriver(Protocol):
    """Keeps NVML open between readings."""

    def points(self, now: datetime) -> list[Point]:
        """Return the points of this instant."""

    def close(self) -> None:
        """Let NVML go."""


class DriverPlugin(ABC):
    """A plugin that reads NVML; a subclass opens it."""

    traits: ClassVar[PluginTraits] = PluginTraits(child="nvml")
    _gathering: OpenDriver | None = None

    @classmethod
    def needs_child(cls, context: PluginContext) -> bool:
        """Return whether there is a driver that could hang."""
        del context
        return driver_is_present()

    @abstractmethod
    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return what gathers with them."""

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the points of this instant.

        Raises:
            PluginUnavailableError: there is no driver or no GPU.
            PluginRestartError: the driver was updated, and only a new process can load it.
            PluginError: the driver does not answer.
        """
        if self._gathering is None:
            require_driver()
            self._gathering = self.open_driver()
        return self._gathering.points(now)

    def close(self) -> None:
        """Let the library go, and end what waits for the driver."""
        if self._gathering is not None:
            self._gathering.close()
