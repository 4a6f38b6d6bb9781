"""The simulated appliance's host: the measurements of its plugins, without those of each core."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from plugins.base import Metric, PluginContext, PluginTraits, PluginUnavailableError
from plugins.cpu import CPUPlugin
from plugins.disk import DiskPlugin
from plugins.diskio import DiskIOPlugin
from plugins.load import LoadPlugin
from plugins.memory import MemoryPlugin
from plugins.network import NetworkPlugin
from plugins.processes import ProcessesPlugin
from plugins.simulation.host_readings import host_points
from plugins.swap import SwapPlugin
from plugins.uptime import UptimePlugin
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHostConfig:
    """The simulated host has no settings of its own: they are the appliance's."""


class SimulatedHostPlugin:
    """Reads the simulated appliance as if it were a host."""

    name: ClassVar[str] = "simulated_host"
    config_class: ClassVar[type] = SimulatedHostConfig
    traits: ClassVar[PluginTraits] = PluginTraits(is_simulated=True)
    metrics: ClassVar[tuple[Metric, ...]] = (
        *CPUPlugin.metrics,
        *MemoryPlugin.metrics,
        *SwapPlugin.metrics,
        *LoadPlugin.metrics,
        *DiskPlugin.metrics,
        *DiskIOPlugin.metrics,
        *NetworkPlugin.metrics,
        *ProcessesPlugin.metrics,
        *UptimePlugin.metrics,
    )

    def __init__(self, config: SimulatedHostConfig, context: PluginContext) -> None:
        del config
        self._model = context.simulation

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the host's points."""
        if self._model is None:
            raise PluginUnavailableError("this appliance is not simulated")
        return host_points(self._model, now)

    def close(self) -> None:
        """Release nothing: the appliance belongs to the agent."""
