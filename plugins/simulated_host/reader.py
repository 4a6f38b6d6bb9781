"""Host of the simulated appliance: the measurements of the host plugins, except per core."""

from collections.abc import Iterable
from datetime import datetime

from core.clock import to_ns
from plugins.base import (
    BasePlugin,
    NoSettings,
    PluginContext,
    PluginTraits,
    PluginUnavailableError,
)
from plugins.cpu.reader import CPUPlugin
from plugins.disk.reader import DiskPlugin
from plugins.diskio.reader import DiskIOPlugin
from plugins.load.reader import LoadPlugin
from plugins.memory.reader import MemoryPlugin
from plugins.network.reader import NetworkPlugin
from plugins.processes.reader import ProcessesPlugin
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB
from plugins.simulation.host import DEVICES, DISK_BYTES, HostReading
from plugins.swap.reader import SwapPlugin
from plugins.uptime.reader import UptimePlugin
from timeseries.points import FieldValue, Point


class SimulatedHostPlugin(BasePlugin):
    """Reads the host of the simulated appliance."""

    name = "simulated_host"
    traits = PluginTraits(is_simulated=True)
    metrics = (
        *CPUPlugin.metrics,
        *MemoryPlugin.metrics,
        *SwapPlugin.metrics,
        *LoadPlugin.metrics,
        *DiskPlugin.metrics,
        *DiskIOPlugin.metrics,
        *NetworkPlugin.metrics,
        *ProcessesPlugin.metrics,
        *UptimePlugin.metrics,
    )

    def __init__(self, config: NoSettings, context: PluginContext) -> None:
        del config
        self._model = context.simulation

    def gather(self, now: datetime) -> Iterable[Point]:
        """Return the host's points."""
        if self._model is None:
            raise PluginUnavailableError("this appliance is not simulated")
        return host_points(self._model, now)


BYTES_PER_PACKET = 1200
BYTES_PER_REQUEST = 256 * 1024
BYTES_PER_INODE = 16 * 1024
DEVICE_BYTES_PER_SECOND = 6.5e9
DEVICE_QUEUE = 16
SYSTEM_SHARE = 0.1
SOFTIRQ_SHARE = 0.02
NICE_SHARE = 0.01
DIRTY_SECONDS = 5.0
SWAP_BYTES = 8 * GIB
IDLE_KERNEL_THREADS = 620
BLOCKED_ABOVE_BYTES_PER_SECOND = 1e8


def host_points(model: SimulatedAppliance, now: datetime) -> list[Point]:
    """Return the points of the host plugins, except per core."""
    reading, time_ns = model.read(now).host, to_ns(now)
    loads = dict(zip(("load1", "load5", "load15"), reading.loads, strict=True))
    return [
        Point("cpu", {}, _cpu_fields(reading), time_ns),
        Point("memory", {}, _memory_fields(reading, model.config.memory_bytes), time_ns),
        Point("swap", {}, _swap_fields(), time_ns),
        Point("load", {}, loads | {"cpu_count": model.config.cpu_count}, time_ns),
        Point("diskio", {"device": "nvme0n1"}, _diskio_fields(reading), time_ns),
        Point("network", {"interface": "eth0"}, _network_fields(reading), time_ns),
        Point("processes", {}, _process_fields(reading), time_ns),
        Point("uptime", {}, {"uptime_seconds": reading.uptime_seconds}, time_ns),
        *(
            Point("disk", {"mount": mount, "device": DEVICES[mount]}, fields, time_ns)
            for mount, fields in _disk_fields(reading)
        ),
    ]


def _cpu_fields(reading: HostReading) -> dict[str, FieldValue]:
    usage = reading.cpu_percent
    system, softirq, nice = (
        round(share * usage, 2) for share in (SYSTEM_SHARE, SOFTIRQ_SHARE, NICE_SHARE)
    )
    iowait = round(min(reading.iowait_percent, 100 - usage), 2)
    return {
        "usage_percent": usage,
        "user_percent": round(usage - system - softirq - nice, 2),
        "nice_percent": nice,
        "system_percent": system,
        "iowait_percent": iowait,
        "irq_percent": 0.0,
        "softirq_percent": softirq,
        "steal_percent": 0.0,
        "guest_percent": 0.0,
        "idle_percent": round(100 - usage - iowait, 2),
    }


def _memory_fields(reading: HostReading, total_bytes: int) -> dict[str, FieldValue]:
    used = reading.memory_used_bytes
    available = total_bytes - used
    cached, buffers = min(reading.cached_bytes, int(0.9 * available)), int(0.005 * available)
    return {
        "total_bytes": total_bytes,
        "used_bytes": used,
        "available_bytes": available,
        "free_bytes": available - cached - buffers,
        "cached_bytes": cached,
        "buffers_bytes": buffers,
        "slab_bytes": int(2 * GIB + 0.01 * used),
        "shared_bytes": int(0.05 * used),
        "dirty_bytes": min(cached, int(DIRTY_SECONDS * reading.written_bytes_per_second)),
        "used_percent": round(100 * used / total_bytes, 3),
    }


def _swap_fields() -> dict[str, FieldValue]:
    return {
        "total_bytes": SWAP_BYTES,
        "used_bytes": 0,
        "free_bytes": SWAP_BYTES,
        "cached_bytes": 0,
        "used_percent": 0.0,
        "in_bytes_per_second": 0.0,
        "out_bytes_per_second": 0.0,
    }


def _process_fields(reading: HostReading) -> dict[str, FieldValue]:
    running = 1 + int(reading.busy_cores)
    blocked = int(reading.written_bytes_per_second > BLOCKED_ABOVE_BYTES_PER_SECOND)
    return {
        "total": reading.process_count,
        "running": running,
        "blocked": blocked,
        "sleeping": reading.process_count - running - blocked - IDLE_KERNEL_THREADS,
        "idle": IDLE_KERNEL_THREADS,
        "stopped": 0,
        "zombies": 0,
        "threads": reading.thread_count,
        "forks_per_second": round(2 + 0.5 * reading.busy_cores, 3),
        "context_switches_per_second": round(4000 + 900 * reading.busy_cores, 3),
    }


def _disk_fields(reading: HostReading) -> Iterable[tuple[str, dict[str, FieldValue]]]:
    for mount, used in reading.disk_used_bytes.items():
        total = DISK_BYTES[mount]
        inodes = total // BYTES_PER_INODE
        inodes_used = int(0.2 * used / BYTES_PER_INODE)
        yield (
            mount,
            {
                "total_bytes": total,
                "used_bytes": used,
                "free_bytes": total - used,
                "used_percent": round(100 * used / total, 3),
                "inodes_total": inodes,
                "inodes_used": inodes_used,
                "inodes_free": inodes - inodes_used,
                "inodes_used_percent": round(100 * inodes_used / inodes, 3),
            },
        )


def _diskio_fields(reading: HostReading) -> dict[str, FieldValue]:
    read, written = reading.read_bytes_per_second, reading.written_bytes_per_second
    busy_ratio = min(1.0, (read + written) / DEVICE_BYTES_PER_SECOND)
    return {
        "read_bytes_per_second": read,
        "written_bytes_per_second": written,
        "reads_per_second": round(read / BYTES_PER_REQUEST, 2),
        "writes_per_second": round(written / BYTES_PER_REQUEST, 2),
        "busy_percent": round(100 * busy_ratio, 2),
        "in_flight": int(DEVICE_QUEUE * busy_ratio),
    }


def _network_fields(reading: HostReading) -> dict[str, FieldValue]:
    received, sent = reading.received_bytes_per_second, reading.sent_bytes_per_second
    return {
        "received_bytes_per_second": received,
        "sent_bytes_per_second": sent,
        "received_packets_per_second": round(received / BYTES_PER_PACKET, 2),
        "sent_packets_per_second": round(sent / BYTES_PER_PACKET, 2),
        "errors_per_second": 0.0,
        "drops_per_second": 0.0,
        "link_up": 1,
    }
