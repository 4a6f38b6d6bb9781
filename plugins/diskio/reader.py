"""Traffic of block devices (`/proc/diskstats`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import psutil

from plugins.base import Metric, PluginContext, gauges, matches_any, rates
from plugins.rates import CounterRates
from timeseries.points import FieldValue, Point

MILLISECONDS_TO_PERCENT = 100 / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskIOConfig:
    """What to read.

    Attributes:
        skip_devices: shell patterns of device names.
        has_partitions: also read partitions, which whole devices already include.
    """

    skip_devices: tuple[str, ...] = ("loop*", "ram*", "zram*", "sr*", "fd*")
    has_partitions: bool = False


class DiskIOPlugin:
    """Rates of each device since the last reading; the first reading gives none."""

    name: ClassVar[str] = "diskio"
    config_class: ClassVar[type] = DiskIOConfig
    is_simulated: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = (
        *rates(
            {
                "read_bytes_per_second": ("bytes per second", "bytes read"),
                "written_bytes_per_second": ("bytes per second", "bytes written"),
                "reads_per_second": ("per second", "read requests finished"),
                "writes_per_second": ("per second", "write requests finished"),
            }
        ),
        *gauges({"busy_percent": ("percent", "time with at least one request open")}),
    )

    def __init__(self, config: DiskIOConfig, context: PluginContext) -> None:
        del context
        self._config = config
        self._rates = CounterRates()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each device that has been read before."""
        points = self._rates.points("diskio", "device", self._counters(), now=now)
        return [replace(point, fields=_at_most_always_busy(point.fields)) for point in points]

    def close(self) -> None:
        """Release nothing: psutil keeps nothing open."""

    def _counters(self) -> dict[str, dict[str, float]]:
        found = {}
        for device, io in (psutil.disk_io_counters(perdisk=True, nowrap=False) or {}).items():
            is_partition = not Path("/sys/block", device.replace("/", "!")).exists()
            if is_partition and not self._config.has_partitions:
                continue
            if not matches_any(device, self._config.skip_devices):
                found[device] = {
                    "read_bytes_per_second": float(io.read_bytes),
                    "written_bytes_per_second": float(io.write_bytes),
                    "reads_per_second": float(io.read_count),
                    "writes_per_second": float(io.write_count),
                    "busy_percent": getattr(io, "busy_time", 0) * MILLISECONDS_TO_PERCENT,
                }
        return found


def _at_most_always_busy(fields: Mapping[str, FieldValue]) -> dict[str, FieldValue]:
    # The kernel's clock of busy time may run a little ahead of ours.
    return {**fields, "busy_percent": min(100.0, float(fields["busy_percent"]))}
