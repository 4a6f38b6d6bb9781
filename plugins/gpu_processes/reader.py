"""GPU use: processes by the job or container that they belong to.

The owner of a process is a `job`, a `container` that runs no job, or the `host`. A process without
a job is *external*: its name is logged when it appears.
"""

from dataclasses import dataclass

from plugins.base import PluginContext, gauges
from plugins.nvml.reader import DriverPlugin, OpenDriver


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUProcessesConfig:
    """GPUs to read.

    Attributes:
        skip_uuids: GPUs to skip, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


class GPUProcessesPlugin(DriverPlugin):
    """One point for each GPU, or MIG slice, and owner; none for an idle GPU."""

    name = "gpu_processes"
    config_class = GPUProcessesConfig
    metrics = gauges(
        processes=("processes", "processes of this owner on the GPU"),
        memory_used_bytes=("bytes", "GPU memory in use"),
        utilization_percent=("percent", "time with their kernels running"),
    )

    def __init__(self, config: GPUProcessesConfig, context: PluginContext) -> None:
        self._config = config
        self._context = context

    def open_driver(self) -> OpenDriver:
        """Import NVIDIA's bindings and return a reader."""
        from plugins.gpu_processes.gathering import Gathering  # noqa: PLC0415 - NVML is heavy

        return Gathering(self._context, skip_uuids=self._config.skip_uuids)
