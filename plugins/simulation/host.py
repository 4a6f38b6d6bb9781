"""The simulated host: CPU, memory, load, network and disks follow the workloads."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from plugins.simulation.config import GIB, SimulationConfig, Workload, approach, fraction, wander

BASE_MEMORY_BYTES = 18 * GIB
BASE_CPU_PERCENT = 1.6
MEMORY_LAG_SECONDS = 15.0
DISK_BYTES = {"/": 1_800 * GIB, "/data": 28_000 * GIB}
DISK_USED_SHARE = {"/": 0.23, "/data": 0.61}
DEVICES = {"/": "/dev/nvme0n1p2", "/data": "/dev/md0"}
CHECKPOINT_SECONDS = 300.0
CHECKPOINT_WRITE_SECONDS = 15.0
BASE_PROCESSES = 1180
BASE_THREADS = 1420
THREADS_PER_GPU = 64
BOOTED_BETWEEN_SECONDS = (1_748_736_000.0, 1_767_225_600.0)  # June to December 2025


@dataclass(frozen=True, slots=True)
class HostReading:
    """Readings of the host at one instant."""

    cpu_percent: float
    iowait_percent: float
    memory_used_bytes: int
    cached_bytes: int
    loads: tuple[float, float, float]
    received_bytes_per_second: float
    sent_bytes_per_second: float
    read_bytes_per_second: float
    written_bytes_per_second: float
    disk_used_bytes: dict[str, int]
    busy_cores: float
    process_count: int
    thread_count: int
    uptime_seconds: float


class SimulatedHost:
    """State of the host between readings."""

    def __init__(self, config: SimulationConfig) -> None:
        self._config = config
        self._memory = float(BASE_MEMORY_BYTES)
        self._loads = [BASE_CPU_PERCENT / 100 * config.cpu_count] * 3

    def advance(
        self, work: Sequence[Workload], now: datetime, *, elapsed_seconds: float
    ) -> HostReading:
        """Return the reading at `now`, `elapsed_seconds` after the last."""
        seconds = now.timestamp()
        cpu_percent = self._cpu(work, seconds)
        self._fill_memory(work, elapsed_seconds)
        self._queue(cpu_percent, elapsed_seconds)
        gpus = sum(len(workload.gpu_uuids) for workload in work)
        written = _written(work, now)
        loading = sum(
            len(workload.gpu_uuids)
            for workload in work
            if workload.age_seconds(now) < CHECKPOINT_WRITE_SECONDS
        )
        load1, load5, load15 = self._loads
        received = self._traffic("rx", seconds, base=60e3, work=45e6 * gpus + 400e6 * loading)
        return HostReading(
            cpu_percent=round(cpu_percent, 2),
            iowait_percent=round(0.2 + 0.3 * gpus / max(1, self._config.gpu_count), 2),
            memory_used_bytes=int(self._memory),
            cached_bytes=int(40 * GIB + 0.2 * self._memory),
            loads=(round(load1, 2), round(load5, 2), round(load15, 2)),
            received_bytes_per_second=received,
            sent_bytes_per_second=self._traffic("tx", seconds, base=45e3, work=6e6 * gpus),
            read_bytes_per_second=self._traffic("rd", seconds, base=40e3, work=received * 0.8),
            written_bytes_per_second=self._traffic("wr", seconds, base=300e3, work=written),
            disk_used_bytes=_disks(seconds),
            busy_cores=cpu_percent / 100 * self._config.cpu_count,
            process_count=BASE_PROCESSES + 3 * len(work) + gpus,
            thread_count=BASE_THREADS + 8 * len(work) + THREADS_PER_GPU * gpus,
            uptime_seconds=self._uptime(seconds),
        )

    def _cpu(self, work: Sequence[Workload], seconds: float) -> float:
        busy = sum(
            workload.cpus
            * (0.7 + 0.2 * wander(f"cpu:{workload.workload_id}", seconds, period_seconds=20))
            for workload in work
        )
        ripple = 0.6 * wander(f"cpu:{self._config.seed}", seconds, period_seconds=30)
        return min(100.0, BASE_CPU_PERCENT + ripple + 100 * busy / self._config.cpu_count)

    def _fill_memory(self, work: Sequence[Workload], elapsed_seconds: float) -> None:
        asked = BASE_MEMORY_BYTES + sum(0.8 * workload.memory_bytes for workload in work)
        self._memory = approach(
            self._memory,
            min(asked, 0.97 * self._config.memory_bytes),
            elapsed_seconds=elapsed_seconds,
            lag_seconds=MEMORY_LAG_SECONDS,
        )

    def _queue(self, cpu_percent: float, elapsed_seconds: float) -> None:
        running = cpu_percent / 100 * self._config.cpu_count
        self._loads = [
            approach(load, running, elapsed_seconds=elapsed_seconds, lag_seconds=60.0 * minutes)
            for load, minutes in zip(self._loads, (1, 5, 15), strict=True)
        ]

    def _uptime(self, seconds: float) -> float:
        earliest, latest = BOOTED_BETWEEN_SECONDS
        booted = earliest + (latest - earliest) * fraction(f"boot:{self._config.seed}")
        return round(max(0.0, seconds - booted), 2)

    def _traffic(self, name: str, seconds: float, *, base: float, work: float) -> float:
        swing = 1 + 0.35 * wander(f"{name}:{self._config.seed}", seconds, period_seconds=11)
        return round((base + work) * swing, 1)


def _written(work: Sequence[Workload], now: datetime) -> float:
    """Return bytes per second written by checkpoints: a burst every few minutes of training."""
    return sum(
        900e6
        for workload in work
        if workload.gpu_uuids
        and workload.age_seconds(now) % CHECKPOINT_SECONDS > CHECKPOINT_SECONDS - 15
    )


def _disks(seconds: float) -> dict[str, int]:
    """Return used bytes by mount: slow growth through the week, then a cleanup."""
    week_share = (seconds % 604_800) / 604_800
    return {
        mount: int(size * (DISK_USED_SHARE[mount] + 0.08 * week_share))
        for mount, size in DISK_BYTES.items()
    }
