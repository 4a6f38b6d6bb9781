"""Swap space and paging (`/proc/meminfo`, `/proc/vmstat`)."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from core.clock import to_ns
from plugins.base import Metric, PluginContext, PluginTraits, gauges, present, rates
from plugins.procfs import ProcFile, kibibytes
from plugins.rates import CounterRates
from timeseries.points import FieldValue, Point

COUNTERS = {
    b"\npswpin ": "in_bytes_per_second",
    b"\npswpout ": "out_bytes_per_second",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapConfig:
    """The swap plugin has no settings of its own."""


class SwapPlugin:
    """How much swap there is and in use, and how fast pages move; no rates without swap."""

    name: ClassVar[str] = "swap"
    config_class: ClassVar[type] = SwapConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = (
        *gauges(
            {
                "total_bytes": ("bytes", "size of all swap spaces"),
                "used_bytes": ("bytes", "swap in use"),
                "free_bytes": ("bytes", "swap not in use"),
                "cached_bytes": ("bytes", "swapped pages that are in memory too"),
                "used_percent": ("percent", "used_bytes of total_bytes; absent without swap"),
            }
        ),
        *rates(
            {
                "in_bytes_per_second": ("bytes per second", "read from swap; absent without swap"),
                "out_bytes_per_second": ("bytes per second", "written to swap; likewise"),
            }
        ),
    )

    def __init__(self, config: SwapConfig, context: PluginContext) -> None:
        del config
        self._meminfo = ProcFile(context.proc / "meminfo")
        self._vmstat = ProcFile(context.proc / "vmstat")
        self._rates = CounterRates()
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return one point for the host."""
        data = self._meminfo.read()
        total, free = kibibytes(data, b"SwapTotal:") or 0, kibibytes(data, b"SwapFree:") or 0
        fields: dict[str, FieldValue | None] = {
            "total_bytes": total,
            "used_bytes": total - free,
            "free_bytes": free,
            "cached_bytes": kibibytes(data, b"SwapCached:"),
        }
        if total:
            fields["used_percent"] = round(100 * (total - free) / total, 3)
            fields |= self._rates.rates("swap", self._counters(), now=now) or {}
        return [Point("swap", {}, present(fields), to_ns(now))]

    def close(self) -> None:
        """Close `/proc/meminfo` and `/proc/vmstat`."""
        self._meminfo.close()
        self._vmstat.close()

    def _counters(self) -> dict[str, float]:
        data = self._vmstat.read()
        found = {}
        for name, field in COUNTERS.items():
            if (start := data.find(name)) >= 0:
                pages = int(data[start + len(name) : data.index(b"\n", start + 1)])
                found[field] = float(pages * self._page_bytes)
        return found
