"""Main memory of the host (`/proc/meminfo`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import psutil

from core.clock import to_ns
from plugins.base import Metric, PluginContext, gauges
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The memory plugin has no settings of its own."""


class MemoryPlugin:
    """How much memory there is, in use, and left without swapping."""

    name: ClassVar[str] = "memory"
    config_class: ClassVar[type] = MemoryConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "total_bytes": ("bytes", "physical memory"),
            "used_bytes": ("bytes", "memory that could not be had without swapping"),
            "available_bytes": ("bytes", "memory that a new process could have"),
            "cached_bytes": ("bytes", "page cache"),
            "used_percent": ("percent", "used_bytes of total_bytes"),
        }
    )

    def __init__(self, config: MemoryConfig, context: PluginContext) -> None:
        del config, context

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        fields = {
            "total_bytes": memory.total,
            "used_bytes": used,
            "available_bytes": memory.available,
            "cached_bytes": getattr(memory, "cached", 0),
            "used_percent": 100.0 * used / memory.total,
        }
        return [Point("memory", {}, fields, to_ns(now))]

    def close(self) -> None:
        """Release nothing: psutil keeps nothing open."""
