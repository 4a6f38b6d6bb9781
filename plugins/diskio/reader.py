"""Traffic of block devices (`/proc/diskstats`)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from plugins.base import PluginContext, gauges, rates
from plugins.procfs import NameFilter, ProcPlugin
from timeseries.points import FieldValue, Point

SECTOR_BYTES = 512  # independent of the device's sector size
MILLISECONDS_TO_PERCENT = 100 / 1000
ALWAYS_BUSY_PERCENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskIOConfig:
    """The devices to read.

    Attributes:
        skip_devices: shell patterns of device names; `nvme*c*n*` are paths of multipath NVMe
            namespaces.
        has_partitions: also read partitions, which whole devices include.
    """

    skip_devices: tuple[str, ...] = ("loop*", "ram*", "zram*", "sr*", "fd*", "nvme*c*n*")
    has_partitions: bool = False


class DiskIOPlugin(ProcPlugin):
    """Rates of each device since the last reading; none at the first."""

    name = "diskio"
    paths = ("diskstats",)
    config_class = DiskIOConfig
    metrics = (
        *rates(
            read_bytes_per_second=("bytes per second", "bytes read"),
            written_bytes_per_second=("bytes per second", "bytes written"),
            reads_per_second=("per second", "completed reads"),
            writes_per_second=("per second", "completed writes"),
        ),
        *gauges(
            busy_percent=("percent", "time with at least one request in flight"),
            in_flight=("requests", "requests in flight"),
        ),
    )

    def __init__(self, config: DiskIOConfig, context: PluginContext) -> None:
        super().__init__(config, context)
        self._filter = _DiskFilter(config, context.sys / "block")

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return a point for each device that has been read before."""
        counters: dict[str, Mapping[str, float]] = {}
        in_flight = {}
        for line in self.read("diskstats").split(b"\n")[:-1]:
            _, _, name, columns = line.split(None, 3)
            if device := self._filter.tag(name):
                counters[device], in_flight[device] = _device_counters(columns.split(None, 10))
        return [
            Point(
                "diskio",
                point.tags,
                _fields(point.fields, in_flight[point.tags["device"]]),
                point.time_ns,
            )
            for point in self._rates.points("diskio", "device", counters, now=now)
        ]


class _DiskFilter(NameFilter):
    """Skip partitions, too: only whole devices have a directory in `/sys/block`."""

    def __init__(self, config: DiskIOConfig, block: Path) -> None:
        super().__init__(config.skip_devices)
        self._block = None if config.has_partitions else block

    def is_wanted(self, name: str) -> bool:
        return super().is_wanted(name) and (
            self._block is None or (self._block / name.replace("/", "!")).exists()
        )


def _device_counters(columns: list[bytes]) -> tuple[dict[str, float], int]:
    """Return the counters of a device, and its requests in flight.

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
    # The kernel's busy time may be slightly ahead of our clock.
    busy = min(ALWAYS_BUSY_PERCENT, float(rates["busy_percent"]))
    return {**rates, "busy_percent": busy, "in_flight": in_flight}
