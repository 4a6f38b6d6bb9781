"""The simulated appliance's readings as points, named as the real plugins name them."""

from collections.abc import Iterable
from datetime import datetime

from core.clock import to_ns
from plugins.base import present
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import SimulationConfig
from plugins.simulation.gpu import MEMORY_CLOCK_HERTZ, GPUReading
from plugins.simulation.host import DEVICES, DISK_BYTES, HostReading
from timeseries.points import FieldValue, Point

BYTES_PER_PACKET = 1200
BYTES_PER_REQUEST = 256 * 1024
DEVICE_BYTES_PER_SECOND = 6.5e9


def host_points(model: SimulatedAppliance, now: datetime) -> list[Point]:
    """Return what the cpu, memory, load, disk, diskio and network plugins would read."""
    reading, time_ns = model.read(now).host, to_ns(now)
    return [
        Point("cpu", {}, _cpu_fields(reading), time_ns),
        Point("memory", {}, _memory_fields(reading, model.config.memory_bytes), time_ns),
        Point(
            "load",
            {},
            dict(zip(("load1", "load5", "load15"), reading.loads, strict=True)),
            time_ns,
        ),
        Point("diskio", {"device": "nvme0n1"}, _diskio_fields(reading), time_ns),
        Point("network", {"interface": "eth0"}, _network_fields(reading), time_ns),
        *(
            Point("disk", {"mount": mount, "device": DEVICES[mount]}, fields, time_ns)
            for mount, fields in _disk_fields(reading)
        ),
    ]


def gpu_points(model: SimulatedAppliance, now: datetime) -> list[Point]:
    """Return what the nvml plugin would read."""
    time_ns = to_ns(now)
    return [
        Point(
            "gpu",
            {"gpu": str(index), "uuid": uuid, "model": model.config.gpu_model},
            _gpu_fields(reading, model.config),
            time_ns,
        )
        for index, (uuid, reading) in enumerate(model.read(now).gpus.items())
    ]


def _cpu_fields(reading: HostReading) -> dict[str, FieldValue]:
    system = round(0.12 * reading.cpu_percent, 2)
    return {
        "usage_percent": reading.cpu_percent,
        "user_percent": round(reading.cpu_percent - system, 2),
        "system_percent": system,
        "iowait_percent": reading.iowait_percent,
        "idle_percent": round(max(0.0, 100 - reading.cpu_percent - reading.iowait_percent), 2),
    }


def _memory_fields(reading: HostReading, total_bytes: int) -> dict[str, FieldValue]:
    return {
        "total_bytes": total_bytes,
        "used_bytes": reading.memory_used_bytes,
        "available_bytes": total_bytes - reading.memory_used_bytes,
        "cached_bytes": reading.cached_bytes,
        "used_percent": round(100 * reading.memory_used_bytes / total_bytes, 3),
    }


def _disk_fields(reading: HostReading) -> Iterable[tuple[str, dict[str, FieldValue]]]:
    for mount, used in reading.disk_used_bytes.items():
        total = DISK_BYTES[mount]
        yield (
            mount,
            {
                "total_bytes": total,
                "used_bytes": used,
                "free_bytes": total - used,
                "used_percent": round(100 * used / total, 3),
                "inodes_used_percent": round(20 * used / total, 3),
            },
        )


def _diskio_fields(reading: HostReading) -> dict[str, FieldValue]:
    read, written = reading.read_bytes_per_second, reading.written_bytes_per_second
    return {
        "read_bytes_per_second": read,
        "written_bytes_per_second": written,
        "reads_per_second": round(read / BYTES_PER_REQUEST, 2),
        "writes_per_second": round(written / BYTES_PER_REQUEST, 2),
        "busy_percent": round(min(100.0, 100 * (read + written) / DEVICE_BYTES_PER_SECOND), 2),
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
    }


def _gpu_fields(reading: GPUReading, config: SimulationConfig) -> dict[str, FieldValue]:
    """Return the fields of one GPU; `fan_percent` is absent, as on real servers cooled by air
    from the chassis."""
    return present(
        {
            "utilization_percent": reading.utilization_percent,
            "memory_utilization_percent": reading.memory_utilization_percent,
            "memory_total_bytes": config.gpu_memory_bytes,
            "memory_used_bytes": reading.memory_used_bytes,
            "memory_used_percent": round(
                100 * reading.memory_used_bytes / config.gpu_memory_bytes, 3
            ),
            "temperature_celsius": reading.temperature_celsius,
            "power_watts": reading.power_watts,
            "power_limit_watts": config.power_limit_watts,
            "sm_clock_hertz": reading.sm_clock_hertz,
            "memory_clock_hertz": MEMORY_CLOCK_HERTZ,
            "throttled": int(reading.is_throttled),
        }
    )
