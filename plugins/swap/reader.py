"""Swap space and paging (`/proc/meminfo`, `/proc/vmstat`)."""

from collections.abc import Iterable
from datetime import datetime
from os import sysconf

from core.clock import to_ns
from plugins.base import (
    gauges,
    present,
    rates,
)
from plugins.procfs import ProcPlugin, kibibytes, named_numbers
from timeseries.points import FieldValue, Point

COUNTERS = {
    b"\npswpin ": "in_bytes_per_second",
    b"\npswpout ": "out_bytes_per_second",
}


class SwapPlugin(ProcPlugin):
    """Size and use of swap, and paging rates; no rates without swap."""

    name = "swap"
    paths = ("meminfo", "vmstat")
    metrics = (
        *gauges(
            total_bytes=("bytes", "size of all swap spaces"),
            used_bytes=("bytes", "swap in use"),
            free_bytes=("bytes", "swap not in use"),
            cached_bytes=("bytes", "swapped pages that are also in memory"),
            used_percent=("percent", "used_bytes of total_bytes; absent without swap"),
        ),
        *rates(
            in_bytes_per_second=("bytes per second", "read from swap; absent without swap"),
            out_bytes_per_second=(
                "bytes per second",
                "written to swap; absent without swap",
            ),
        ),
    )

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        data = self.read("meminfo")
        total, free = kibibytes(data, b"SwapTotal:") or 0, kibibytes(data, b"SwapFree:") or 0
        fields: dict[str, FieldValue | None] = {
            "total_bytes": total,
            "used_bytes": total - free,
            "free_bytes": free,
            "cached_bytes": kibibytes(data, b"SwapCached:"),
        }
        if total:
            pages, page_bytes = (
                named_numbers(self.read("vmstat"), COUNTERS),
                sysconf("SC_PAGE_SIZE"),
            )
            paged_bytes = {name: number * page_bytes for name, number in pages.items()}
            fields["used_percent"] = round(100 * (total - free) / total, 3)
            fields |= self._rates.rates("swap", paged_bytes, now=now) or {}
        return [Point("swap", {}, present(fields), to_ns(now))]
