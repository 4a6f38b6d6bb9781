"""Main memory of the host (`/proc/meminfo`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges, present
from plugins.procfs import ProcFile, kibibytes
from timeseries.points import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The memory plugin has no settings of its own."""


class MemoryPlugin:
    """How much memory there is, in use, and left without swapping."""

    name: ClassVar[str] = "memory"
    config_class: ClassVar[type] = MemoryConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = gauges(
        {
            "total_bytes": ("bytes", "physical memory"),
            "used_bytes": ("bytes", "memory that could not be had without swapping"),
            "available_bytes": ("bytes", "memory that a new process could have"),
            "free_bytes": ("bytes", "memory that nothing uses, not even a cache"),
            "cached_bytes": ("bytes", "page cache, memory shared by processes included"),
            "buffers_bytes": ("bytes", "cache of raw block devices"),
            "slab_bytes": ("bytes", "memory of the kernel's own objects"),
            "shared_bytes": ("bytes", "memory shared by processes, and tmpfs"),
            "dirty_bytes": ("bytes", "page cache that is not written to disk yet"),
            "used_percent": ("percent", "used_bytes of total_bytes"),
        }
    )

    def __init__(self, config: MemoryConfig, context: PluginContext) -> None:
        del config
        self._meminfo = ProcFile(context.proc / "meminfo")

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        data = self._meminfo.read()
        total, available = kibibytes(data, b"MemTotal:"), kibibytes(data, b"MemAvailable:")
        used = total - available if total and available is not None else None
        fields = {
            "total_bytes": total,
            "used_bytes": used,
            "available_bytes": available,
            "free_bytes": kibibytes(data, b"MemFree:"),
            "cached_bytes": kibibytes(data, b"Cached:"),
            "buffers_bytes": kibibytes(data, b"Buffers:"),
            "slab_bytes": kibibytes(data, b"Slab:"),
            "shared_bytes": kibibytes(data, b"Shmem:"),
            "dirty_bytes": kibibytes(data, b"Dirty:"),
            "used_percent": round(100 * used / total, 3) if total and used is not None else None,
        }
        return [Point("memory", {}, present(fields), to_ns(now))]

    def close(self) -> None:
        """Close `/proc/meminfo`."""
        self._meminfo.close()
