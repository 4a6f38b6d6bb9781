"""The simulated appliance's GPUs: the measurement of the nvml plugin."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from plugins.base import Metric, PluginContext, PluginUnavailableError
from plugins.nvml.metrics import GPU_METRICS
from plugins.simulation.readings import gpu_points
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGPUConfig:
    """The simulated GPUs have no settings of their own: they are the appliance's."""


class SimulatedGPUPlugin:
    """Reads the simulated appliance as if through NVML."""

    name: ClassVar[str] = "simulated_gpu"
    config_class: ClassVar[type] = SimulatedGPUConfig
    is_simulated: ClassVar[bool] = True
    metrics: ClassVar[tuple[Metric, ...]] = GPU_METRICS

    def __init__(self, config: SimulatedGPUConfig, context: PluginContext) -> None:
        del config
        self._model = context.simulation

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for each GPU."""
        if self._model is None:
            raise PluginUnavailableError("this appliance is not simulated")
        return gpu_points(self._model, now)

    def close(self) -> None:
        """Release nothing: the appliance belongs to the agent."""
