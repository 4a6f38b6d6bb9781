"""One GPU of the made-up appliance: every field of `gpu`, its eighteen NVLinks, its processes."""

from collections.abc import Iterator
from datetime import datetime
from random import Random

from core.clock import to_ns
from plugins.procfs import CounterRates
from plugins.simulation.config import GIB
from plugins.simulation.gpu import GPUReading
from timeseries.points import FieldValue, Point

MODEL = "NVIDIA H100 80GB HBM3"
LINKS = 18
MEMORY_BYTES = 80 * GIB - 512 * 2**20
RESERVED_BYTES = 635_764_736
LINK_BYTES_PER_SECOND = 9.5e9
PCIE_BYTES_PER_SECOND = 2.2e9
CLOCK_STEP_HERTZ = 15_000_000
KIBIBYTE = 1024


class GPU:
    """Turns what the simulated device says into what NVML says of a real one."""

    def __init__(self, index: int, uuid: str, *, job: str, random: Random) -> None:
        self.uuid = uuid
        self._tags = {"gpu": str(index), "uuid": uuid, "model": MODEL, "job": job}
        self._random = random
        self._growth = CounterRates()
        self._links = [{"rx": 0, "tx": 0} for _ in range(LINKS)]
        self._energy_millijoules = 10**9 * (index + 3)
        self._read_at: datetime | None = None

    def points(self, reading: GPUReading, now: datetime) -> Iterator[Point]:
        """Yield the GPU's points at `now`."""
        elapsed_seconds = (now - self._read_at).total_seconds() if self._read_at else 10.0
        self._read_at = now
        links = list(self._link_points(reading, now, elapsed_seconds))
        self._energy_millijoules += round(1000 * reading.power_watts * elapsed_seconds)
        fields = {
            **self._use(reading),
            **self._heat_and_power(reading),
            **self._clocks(reading),
            **self._traffic(reading, links),
            **_ERRORS,
            **_MODE,
        }
        time_ns = to_ns(now)
        yield Point("gpu", self._tags, fields, time_ns)
        yield from links
        yield from self._processes(reading, time_ns)

    def _use(self, reading: GPUReading) -> dict[str, FieldValue]:
        used = reading.memory_used_bytes + 2**21 * self._random.randint(0, 40)
        return {
            "utilization_percent": int(reading.utilization_percent),
            "memory_utilization_percent": int(
                min(100, max(0, reading.memory_utilization_percent + self._random.randint(-6, 6)))
            ),
            "encoder_utilization_percent": 0,
            "decoder_utilization_percent": self._random.choice((0, 0, 0, 2, 5)),
            "memory_total_bytes": MEMORY_BYTES,
            "memory_used_bytes": used,
            "memory_reserved_bytes": RESERVED_BYTES,
            "memory_free_bytes": MEMORY_BYTES - RESERVED_BYTES - used,
            "memory_used_percent": round(100 * used / MEMORY_BYTES, 2),
        }

    def _heat_and_power(self, reading: GPUReading) -> dict[str, FieldValue]:
        watts = reading.power_watts + self._random.gauss(0, 9)
        return {
            "temperature_celsius": int(reading.temperature_celsius) + self._random.randint(-1, 1),
            "memory_temperature_celsius": int(reading.temperature_celsius)
            + self._random.randint(5, 9),
            "slowdown_celsius": 87,
            "shutdown_celsius": 92,
            "max_operating_celsius": 85,
            "power_watts": round(watts, 3),
            "power_limit_watts": 700.0,
            "power_limit_default_watts": 700.0,
            "power_limit_max_watts": 700.0,
            "energy_joules": self._energy_millijoules / 1000,
        }

    def _clocks(self, reading: GPUReading) -> dict[str, FieldValue]:
        clock = reading.sm_clock_hertz - CLOCK_STEP_HERTZ * self._random.choice((0, 0, 1, 2, 5, 9))
        throttled = int(reading.is_throttled)
        return {
            "sm_clock_hertz": clock,
            "memory_clock_hertz": 2_619_000_000,
            "graphics_clock_hertz": clock,
            "video_clock_hertz": max(0, clock - 435_000_000),
            "sm_clock_max_hertz": 1_980_000_000,
            "memory_clock_max_hertz": 2_619_000_000,
            "performance_state": 0,
            "throttled": throttled,
            "throttled_by_heat": throttled,
            "throttled_by_power": self._random.choice((0, 0, 1)),
            "throttled_by_hardware": 0,
            "clocks_idle": 0,
            "clocks_set_by_user": 0,
            "throttle_reasons": 32 * throttled + 4 * self._random.randint(0, 1),
        }

    def _traffic(self, reading: GPUReading, links: list[Point]) -> dict[str, FieldValue]:
        busy = reading.utilization_percent / 100
        pcie = [
            KIBIBYTE * round(busy * self._random.lognormvariate(0, 0.6) * share / KIBIBYTE)
            for share in (PCIE_BYTES_PER_SECOND, PCIE_BYTES_PER_SECOND / 6)
        ]
        received, sent = (
            sum(int(link.fields[name]) for link in links)
            for name in ("received_bytes_per_second", "sent_bytes_per_second")
        )
        return {
            "pcie_generation": 5,
            "pcie_generation_max": 5,
            "pcie_width": 16,
            "pcie_width_max": 16,
            "pcie_received_bytes_per_second": pcie[0],
            "pcie_sent_bytes_per_second": pcie[1],
            "pcie_replays": 0,
            "nvlinks": LINKS,
            "nvlinks_active": LINKS,
            "nvlink_received_bytes_per_second": received,
            "nvlink_sent_bytes_per_second": sent,
            "nvlink_errors": 0,
        }

    def _link_points(
        self, reading: GPUReading, now: datetime, elapsed_seconds: float
    ) -> Iterator[Point]:
        """Yield the links: the collectives spread their traffic over them, not quite evenly."""
        busy = reading.utilization_percent / 100
        mean = LINK_BYTES_PER_SECOND * busy * self._random.uniform(0.6, 1.1)
        for link, counters in enumerate(self._links):
            for way in ("rx", "tx"):  # the driver counts KiB
                kibibytes = self._random.gauss(mean, mean / 50) * elapsed_seconds / KIBIBYTE
                counters[way] += KIBIBYTE * max(0, round(kibibytes))
            rates = {
                way: self._growth.per_second(f"{way}{link}", count, now=now) or 0
                for way, count in counters.items()
            }
            tags = {key: self._tags[key] for key in ("gpu", "uuid")}
            yield Point(
                "gpu_link",
                {**tags, "link": str(link), "job": self._tags["job"]},
                {
                    "active": 1,
                    "received_bytes_per_second": rates["rx"],
                    "sent_bytes_per_second": rates["tx"],
                    "crc_errors": 0,
                    "replay_errors": 0,
                    "recovery_errors": 0,
                },
                to_ns(now),
            )

    def _processes(self, reading: GPUReading, time_ns: int) -> Iterator[Point]:
        tags = {key: self._tags[key] for key in ("gpu", "uuid")}
        container = {"container": self.uuid[4:16]}
        fields: dict[str, FieldValue] = {
            "processes": 1,
            "memory_used_bytes": reading.memory_used_bytes + 2**21 * self._random.randint(0, 40),
            "utilization_percent": int(reading.utilization_percent),
        }
        owner = {"owner": "job", "job": self._tags["job"], **container}
        yield Point("gpu_process", {**tags, **owner}, fields, time_ns)
        health = {**tags, "job": self._tags["job"]}
        yield Point("gpu_health", health, {"state": 0, "findings": 0}, time_ns)


_ERRORS: dict[str, FieldValue] = {
    "ecc_enabled": 1,
    "ecc_corrected_volatile": 0,
    "ecc_uncorrected_volatile": 0,
    "ecc_corrected_aggregate": 3,
    "ecc_uncorrected_aggregate": 0,
    "remapped_rows_corrected": 0,
    "remapped_rows_uncorrected": 0,
    "remapped_rows_pending": 0,
    "remapped_rows_failed": 0,
}
_MODE: dict[str, FieldValue] = {
    "lost": 0,
    "mig_enabled": 0,
    "compute_mode": 0,
    "persistence_mode": 1,
}
