"""Main memory of the host (`/proc/meminfo`)."""

from collections.abc import Iterable
from datetime import datetime

from core.clock import to_ns
from plugins.base import (
    gauges,
    present,
)
from plugins.procfs import ProcPlugin, kibibytes
from timeseries.points import Point


class MemoryPlugin(ProcPlugin):
    """Total, used and available memory."""

    name = "memory"
    paths = ("meminfo",)
    metrics = gauges(
        total_bytes=("bytes", "physical memory"),
        used_bytes=("bytes", "total_bytes minus available_bytes"),
        available_bytes=("bytes", "memory available to new processes without swapping"),
        free_bytes=("bytes", "unused memory"),
        cached_bytes=("bytes", "page cache, including shared memory"),
        buffers_bytes=("bytes", "cache of raw block devices"),
        slab_bytes=("bytes", "kernel slab memory"),
        shared_bytes=("bytes", "memory shared by processes, and tmpfs"),
        dirty_bytes=("bytes", "page cache waiting to be written to disk"),
        used_percent=("percent", "used_bytes of total_bytes"),
    )

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        data = self.read("meminfo")
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
