"""The simulated appliance's GPUs: measurements of the plugins nvml and gpu_processes."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from plugins.base import Metric, PluginContext, PluginTraits, PluginUnavailableError
from plugins.gpu_processes import GPUProcessesPlugin
from plugins.nvml.metrics import GPU_METRICS, XID_METRICS
from plugins.simulation.gpu_readings import gpu_points, process_points, xid_points
from timeseries.points import Point

# Who uses a GPU changes rarely, and twelve simulated appliances share one process in the demo.
PROCESSES_EVERY = timedelta(seconds=10)
# What the simulation knows nothing of; a server's GPUs have no fans.
_LEFT_OUT = frozenset(
    {
        "encoder_utilization_percent", "decoder_utilization_percent", "fan_percent",
        "slowdown_celsius", "shutdown_celsius", "max_operating_celsius",
        "power_limit_default_watts", "power_limit_max_watts", "graphics_clock_hertz",
        "video_clock_hertz", "memory_clock_max_hertz", "throttle_reasons", "compute_mode",
        "pcie_replays", "nvlink_errors", "ecc_corrected_aggregate", "ecc_uncorrected_aggregate",
        "retired_pages_single_bit", "retired_pages_double_bit", "retired_pages_pending",
        "remapped_rows_corrected", "remapped_rows_uncorrected", "clocks_set_by_user",
        "mig_enabled", "persistence_mode",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedGPUConfig:
    """The simulated GPUs have no settings of their own: they are the appliance's."""


class SimulatedGPUPlugin:
    """Reads the simulated appliance as if through NVML."""

    name: ClassVar[str] = "simulated_gpu"
    config_class: ClassVar[type] = SimulatedGPUConfig
    traits: ClassVar[PluginTraits] = PluginTraits(is_simulated=True)
    metrics: ClassVar[tuple[Metric, ...]] = (
        *(metric for metric in GPU_METRICS if metric.name not in _LEFT_OUT),
        *XID_METRICS,
        *(metric for metric in GPUProcessesPlugin.metrics if metric.name == "processes"),
    )

    def __init__(self, config: SimulatedGPUConfig, context: PluginContext) -> None:
        del config
        self._model = context.simulation
        self._job_of_gpu = context.job_of_gpu
        self._processes_at: datetime | None = None

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each GPU, the events since the last time, and who uses the GPUs."""
        if self._model is None:
            raise PluginUnavailableError("this appliance is not simulated")
        points = gpu_points(self._model, now)
        points += xid_points(self._model.config, now, before=self._model.take_look(now))
        if self._processes_at is None or now - self._processes_at >= PROCESSES_EVERY:
            self._processes_at = now
            points += process_points(self._model, now, holders=self._job_of_gpu())
        return points

    def close(self) -> None:
        """Release nothing: the appliance belongs to the agent."""
