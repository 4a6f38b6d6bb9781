"""Configuration and workloads of a simulated appliance, and reproducible noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from uuid import UUID

from protocol.gpu_slices import GPUSlice

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """An eight-GPU server by default.

    Attributes:
        seed: the same seed results in the same devices and readings.
        sm_clock_hertz: SM clock under load.
        nvlinks: NVLinks of each GPU.
        has_fabric: whether its GPUs register with the fabric of NVSwitches, as since Hopper.
        hot_gpu: index of a GPU that overheats under load and throttles.
        lost_gpu: index of a GPU that fell off the bus at the first start.
        xid_gpu: index of a GPU with occasional XID memory errors.
        nvlink_down_gpu: index of a GPU with an inactive NVLink.
        worn_gpu: index of a GPU whose caches had too many uncorrectable errors.
        external_gpu: index of a GPU that a process without a job uses.
        outage_every_seconds: interval of agent outages; 0 for none.
        outage_seconds: duration of an outage; its samples arrive afterwards.
    """

    seed: str
    hostname: str = "simulated"
    gpu_count: int = 8
    gpu_model: str = "NVIDIA H100 80GB HBM3"
    gpu_memory_bytes: int = 80 * GIB
    power_limit_watts: float = 700.0
    cpu_count: int = 96
    memory_bytes: int = 512 * GIB
    sm_clock_hertz: int = 1_980_000_000
    nvlinks: int = 18
    has_fabric: bool = True
    pcie_generation: int = 5
    hot_gpu: int | None = None
    lost_gpu: int | None = None
    xid_gpu: int | None = None
    nvlink_down_gpu: int | None = None
    worn_gpu: int | None = None
    external_gpu: int | None = None
    outage_every_seconds: float = 0.0
    outage_seconds: float = 0.0

    @property
    def is_hopper(self) -> bool:
        """Whether its GPUs are of that architecture, or else of Ampere."""
        return "H100" in self.gpu_model or "H200" in self.gpu_model

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs in NVML's format, derived from the seed."""
        names = (f"{self.seed}/gpu{index}" for index in range(self.gpu_count))
        return [f"GPU-{UUID(sha256(name.encode()).hexdigest()[:32])}" for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload.

    Attributes:
        gpu_slice: the part of a GPU that it has, in place of `gpu_uuids`.
        job_id: whose work it is; "" outside of jobs.
        intensity: the GPU load that it causes (0 to 1).
        until_at: when it ends by itself; None for one of a job, which ends it. Without a job, its
            GPUs work but are not allocated, and a job takes them over.
    """

    workload_id: str
    gpu_uuids: Sequence[str] = ()
    gpu_slice: GPUSlice | None = None
    job_id: str = ""
    cpus: float = 1.0
    memory_bytes: int = 0
    is_service: bool = False
    intensity: float = 1.0
    started_at: datetime
    until_at: datetime | None = None

    def is_running(self, now: datetime) -> bool:
        """Return whether it has started and not ended by itself."""
        return self.started_at <= now and (self.until_at is None or now < self.until_at)

    def age_seconds(self, now: datetime) -> float:
        """Return the time since its start."""
        return max(0.0, (now - self.started_at).total_seconds())


_DIGEST_BYTES = 4
_LARGEST: int = 256**_DIGEST_BYTES - 1


@lru_cache(maxsize=8_192)
def fraction(name: str) -> float:
    """Return a pseudo-random number in [0, 1] derived from `name`."""
    # No checksum: those of similar names are similar, and GPUs would work and rest together.
    digest = sha256(name.encode()).digest()
    return int.from_bytes(digest[:_DIGEST_BYTES], "big") / float(_LARGEST)


def wander(name: str, seconds: float, *, period_seconds: float) -> float:
    """Return a value in [-1, 1] that drifts smoothly, with a new target every period."""
    position = seconds / period_seconds
    step = math.floor(position)
    before = fraction(f"{name}:{step}")
    after = fraction(f"{name}:{step + 1}")
    blend = (1 - math.cos(math.pi * (position - step))) / 2
    return 2 * (before + (after - before) * blend) - 1


def approach(value: float, target: float, *, elapsed_seconds: float, lag_seconds: float) -> float:
    """Return `value` after it approached `target`, as heat and memory do.

    The closed form of a first-order lag: exact for any step, so coarse history and live readings
    agree.
    """
    return target + (value - target) * math.exp(-elapsed_seconds / lag_seconds)
