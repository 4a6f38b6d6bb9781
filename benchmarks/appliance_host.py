"""The host of the made-up appliance: memory, file systems, devices, sensors."""

from collections.abc import Iterator
from datetime import datetime

from benchmarks.appliance_noise import PAGE_BYTES, Noise, with_fields
from core.clock import to_ns
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB
from timeseries.points import FieldValue, Point

SECTOR_BYTES = 512
PACKET_BYTES = 1_200
REQUEST_BYTES = 250_000
MEMORY_BYTES = 2048 * GIB
TEMPERATURE_SENSORS = 34
FANS = 12
INTERFACES = ("ens10f0", "ibp26s0", "ibp60s0", "ibp77s0", "ibp94s0", "ibp156s0", "docker0")
DISKS = ("md0", "md1", *(f"nvme{index}n1" for index in range(10)))
MOUNTS = {"/": "/dev/md0", "/raid": "/dev/md1", "/boot": "/dev/nvme0n1p2"}
MOUNT_MEBIBYTES = {"/": 1_887_350, "/raid": 27_960_000, "/boot": 510}


class Host:
    """Gives what the plugins of a host read; the work on the appliance drives it."""

    def __init__(self, model: SimulatedAppliance, noise: Noise) -> None:
        self._model = model
        self._noise = noise
        self._random = noise.random
        self._turn = 0

    def general_points(self, now: datetime) -> Iterator[Point]:
        """Yield memory, swap, load, uptime, processes and file systems."""
        self._turn += 1
        host, time_ns, total = self._model.read(now).host, to_ns(now), MEMORY_BYTES
        cached = host.cached_bytes + self._noise.pages(50_000)
        used = host.memory_used_bytes + self._noise.pages(20_000)
        buffers, slab, shared = (
            self._noise.pages(2000) + (base << 20) for base in (3_100, 17_000, 1_200)
        )
        memory: dict[str, FieldValue] = {
            "total_bytes": total,
            "used_bytes": used,
            "available_bytes": total - used,
            "free_bytes": total - used - cached,
            "cached_bytes": cached,
            "buffers_bytes": buffers,
            "slab_bytes": slab,
            "shared_bytes": shared,
            "dirty_bytes": self._noise.pages(40_000),
            "used_percent": round(100 * used / total, 2),
        }
        loads = [round(load + self._random.uniform(0, 2), 2) for load in host.loads]
        yield Point("memory", {}, memory, time_ns)
        yield Point("swap", {}, _swap(), time_ns)
        averages = dict(zip(("load1", "load5", "load15"), loads, strict=True))
        yield Point("load", {}, averages | {"cpu_count": self._model.config.cpu_count}, time_ns)
        yield Point("uptime", {}, {"uptime_seconds": 4_000_000 + 10 * self._turn}, time_ns)
        yield Point("processes", {}, self._processes(), time_ns)
        for mount, device in MOUNTS.items():
            yield Point("disk", {"mount": mount, "device": device}, self._disk(mount), time_ns)

    def rate_points(self, now: datetime) -> Iterator[Point]:
        """Yield disks and interfaces."""
        host = self._model.read(now).host
        read = host.read_bytes_per_second / len(DISKS)
        written = host.written_bytes_per_second / len(DISKS)
        for disk in DISKS:
            rates = self._noise.rates(
                "diskio",
                {"device": disk},
                now=now,
                grown={
                    "read_bytes_per_second": self._sectors(read),
                    "written_bytes_per_second": self._sectors(written),
                    "reads_per_second": self._noise.grown(read / REQUEST_BYTES),
                    "writes_per_second": self._noise.grown(written / REQUEST_BYTES),
                    "busy_percent": self._noise.grown(1.2),
                },
            )
            for point in rates:
                yield with_fields(point, {"in_flight": self._random.choice((0, 0, 0, 1, 4))})
        for interface in INTERFACES:
            received = host.received_bytes_per_second / len(INTERFACES)
            sent = host.sent_bytes_per_second / len(INTERFACES)
            yield from self._noise.rates(
                "network",
                {"interface": interface},
                now=now,
                grown={
                    "received_bytes_per_second": self._noise.grown(received),
                    "sent_bytes_per_second": self._noise.grown(sent),
                    "received_packets_per_second": self._noise.grown(received / PACKET_BYTES),
                    "sent_packets_per_second": self._noise.grown(sent / PACKET_BYTES),
                    "errors_per_second": 0,
                    "drops_per_second": 0,
                },
            )

    def sensor_points(self, now: datetime) -> Iterator[Point]:
        """Yield thermometers and fans."""
        time_ns = to_ns(now)
        for index in range(TEMPERATURE_SENSORS):
            tags = {"chip": f"coretemp{index // 17}", "sensor": f"core_{index % 17}"}
            celsius = float(round(self._random.gauss(54, 4)))
            yield Point(
                "sensor", tags, {"temperature_celsius": celsius, "critical_celsius": 98.0}, time_ns
            )
        for index in range(FANS):
            tags = {"chip": "ipmi", "sensor": f"fan{index}"}
            rpm = 60 * round(self._random.gauss(128, 3))
            yield Point("sensor", tags, {"fan_rpm": rpm}, time_ns)

    def _sectors(self, bytes_per_second: float) -> int:
        return SECTOR_BYTES * self._noise.grown(bytes_per_second / SECTOR_BYTES)

    def _processes(self) -> dict[str, FieldValue]:
        sleeping, running = 1_400 + self._random.randint(0, 30), self._random.randint(3, 60)
        return {
            "total": sleeping + running + 620,
            "running": running,
            "blocked": self._random.choice((0, 0, 0, 1, 3)),
            "sleeping": sleeping,
            "idle": 620,
            "stopped": 0,
            "zombies": 0,
            "threads": 9_000 + self._random.randint(0, 400),
            "forks_per_second": round(self._random.expovariate(1 / 40), 3),
            "context_switches_per_second": round(self._random.gauss(310_000, 20_000), 3),
        }

    def _disk(self, mount: str) -> dict[str, FieldValue]:
        total = {"/": 1_887_350, "/raid": 27_960_000, "/boot": 510}[mount] << 20
        used = (
            int(total * 0.41) + PAGE_BYTES * self._turn * (0 if mount == "/boot" else 3_000)
        ) % total
        inodes = total // 16_384
        inodes_used = 1_230_000 + self._turn % 50_000
        return {
            "total_bytes": total,
            "used_bytes": used,
            "free_bytes": total - used,
            "used_percent": round(100 * used / total, 2),
            "inodes_total": inodes,
            "inodes_used": inodes_used,
            "inodes_free": inodes - inodes_used,
            "inodes_used_percent": round(100 * inodes_used / inodes, 2),
        }


def _swap() -> dict[str, FieldValue]:
    return {
        "total_bytes": 0,
        "used_bytes": 0,
        "free_bytes": 0,
        "cached_bytes": 0,
        "in_bytes_per_second": 0.0,
        "out_bytes_per_second": 0.0,
    }
