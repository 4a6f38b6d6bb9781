"""Who uses the GPUs: processes, told apart by the job or container that they belong to.

The owner of a process is a `job`, a `container` that runs no job, or the `host`. A process that
belongs to no job is *external*: its name goes to the log when it appears, its numbers to points.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from plugins.base import Metric, PluginContext, PluginTraits, gauges
from plugins.nvml.presence import driver_is_present, require_driver
from timeseries.points import Point

if TYPE_CHECKING:
    from plugins.gpu_processes.gathering import Gathering


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUProcessesConfig:
    """Which GPUs to look at.

    Attributes:
        skip_uuids: GPUs to leave out, by UUID.
    """

    skip_uuids: tuple[str, ...] = ()


class GPUProcessesPlugin:
    """One point for each GPU and owner that uses it."""

    name: ClassVar[str] = "gpu_processes"
    config_class: ClassVar[type] = GPUProcessesConfig
    traits: ClassVar[PluginTraits] = PluginTraits(child="nvml")
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
        self._gathering: Gathering | None = None

    @classmethod
    def needs_child(cls, context: PluginContext) -> bool:
        """Return whether there is a driver that could hang."""
        del context
        return driver_is_present()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each GPU, or MIG slice, and owner; none where nothing runs.

        Raises:
            PluginUnavailableError: there is no driver or no GPU.
            PluginRestartError: the driver was updated, and only a new process can load it.
            PluginError: the driver does not answer.
        """
        if self._gathering is None:
            require_driver()
            from plugins.gpu_processes.gathering import Gathering  # noqa: PLC0415 - NVML is heavy

            self._gathering = Gathering(self._context, skip_uuids=self._config.skip_uuids)
        return self._gathering.points(now)

    def close(self) -> None:
        """Let NVML go."""
        if self._gathering is not None:
            self._gathering.close()
