"""Traffic of block devices (`/proc/diskstats`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from plugins.base import Metric, PluginContext, PluginTraits, gauges, rates
from plugins.procfs import NameFilter, ProcFile
from plugins.rates import CounterRates
from timeseries.points import FieldValue, Point

SECTOR_BYTES = 512  # whatever the device's own sector is
MILLISECONDS_TO_PERCENT = 100 / 1000
ALWAYS_BUSY_PERCENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskIOConfig:
    """What to read.

    Attributes:
        skip_devices: shell patterns of device names; `nvme*c*n*` are the single paths of NVMe
            namespaces, whose traffic the namespaces have already.
        has_partitions: also read partitions, which whole devices already include.
    """

    skip_devices: tuple[str, ...] = ("loop*", "ram*", "zram*", "sr*", "fd*", "nvme*c*n*")
    has_partitions: bool = False


class DiskIOPlugin:
    """Rates of each device since the last reading; the first reading gives none."""

    name: ClassVar[str] = "diskio"
    config_class: ClassVar[type] = DiskIOConfig
    traits: ClassVar[PluginTraits] = PluginTraits()
    metrics: ClassVar[tuple[Metric, ...]] = (
        *rates(
            {
                "read_bytes_per_second": ("bytes per second", "bytes read"),
                "written_bytes_per_second": ("bytes per second", "bytes written"),
                "reads_per_second": ("per second", "read requests finished"),
                "writes_per_second": ("per second", "write requests finished"),
            }
        ),
        *gauges(
            {
                "busy_percent": ("percent", "time with at least one request open"),
                "in_flight": ("requests", "requests open at this instant"),
            }
        ),
    )

    def __init__(self, config: DiskIOConfig, context: PluginContext) -> None:
        self._diskstats = ProcFile(context.proc / "diskstats")
        self._filter = _DiskFilter(config, context.sys / "block")
        self._rates = CounterRates()

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each device that has been read before."""
        counters: dict[str, Mapping[str, float]] = {}
        in_flight = {}
        for line in self._diskstats.read().split(b"\n")[:-1]:
            _, _, name, columns = line.split(None, 3)
            if device := self._filter.tag(name):
                counters[device], in_flight[device] = _device_counters(columns.split(None, 10))
        return [
            Point("diskio", point.tags, _fields(point.fields, in_flight[point.tags["device"]]),
                  point.time_ns)
            for point in self._rates.points("diskio", "device", counters, now=now)
        ]  # fmt: skip

    def close(self) -> None:
        """Close `/proc/diskstats`."""
        self._diskstats.close()


class _DiskFilter(NameFilter):
    """Leaves out partitions too: only whole devices have a folder in `/sys/block`."""

    def __init__(self, config: DiskIOConfig, block: Path) -> None:
        super().__init__(config.skip_devices)
        self._block = None if config.has_partitions else block

    def is_wanted(self, name: str) -> bool:
        return super().is_wanted(name) and (
            self._block is None or (self._block / name.replace("/", "!")).exists()
        )


def _device_counters(columns: list[bytes]) -> tuple[dict[str, float], int]:
    """Return a device's counters, and how many requests are open.

    Source: the kernel's Documentation/admin-guide/iostats.rst.
    """
    reads, _, sectors_read, _, writes, _, sectors_written, _, in_flight, busy_ms, *_ = columns
    return {
        "read_bytes_per_second": int(sectors_read) * SECTOR_BYTES,
        "written_bytes_per_second": int(sectors_written) * SECTOR_BYTES,
        "reads_per_second": int(reads),
        "writes_per_second": int(writes),
        "busy_percent": int(busy_ms) * MILLISECONDS_TO_PERCENT,
    }, int(in_flight)


def _fields(rates: Mapping[str, FieldValue], in_flight: int) -> dict[str, FieldValue]:
    # The kernel's clock of busy time may run a little ahead of ours.
    busy = min(ALWAYS_BUSY_PERCENT, float(rates["busy_percent"]))
    return {**rates, "busy_percent": busy, "in_flight": in_flight}
