"""Who uses the GPUs: processes, told apart by the job or container that they belong to.

The owner of a process is a `job`, a `container` that runs no job, or the `host`. A process that
belongs to no job is *external*: its name goes to the log when it appears, its numbers to points.
"""

from dataclasses import dataclass
from typing import ClassVar

from plugins.base import Metric, PluginContext, gauges
from plugins.nvml.driver_plugin import DriverPlugin, OpenDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUProcessesConfig:
    """Which GPUs to look at.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


class GPUProcessesPlugin(DriverPlugin):
    """One point for each GPU, or MIG slice, and owner that uses it; none where nothing runs."""

    name: ClassVar[str] = "gpu_processes"
    config_class: ClassVar[type] = GPUProcessesConfig
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "processes": ("processes", "processes of this owner that have the GPU open"),
            "memory_used_bytes": ("bytes", "GPU memory that they hold"),
            "utilization_percent": ("percent", "time in which their kernels ran"),
        }
    )

    def __init__(self, config: GPUProcessesConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context

    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return what gathers with them."""
        from plugins.gpu_processes.gathering import Gathering  # noqa: PLC0415 - NVML is heavy

        return Gathering(self._context, skip_uuids=self._config.skip_uuids)
