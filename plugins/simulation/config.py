"""What a simulated appliance is made of, and how it misbehaves."""

from dataclasses import dataclass
from hashlib import sha256

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """An eight-GPU server by default.

    Attributes:
        seed: the same seed gives the same devices and the same readings at the same instants.
        sm_clock_hertz: the clock of the multiprocessors under load.
        nvlinks: how many NVLinks each GPU has.
        hot_gpu: index of the GPU that overheats under load and throttles; None for none.
        lost_gpu: index of the GPU that is off the bus from the first start on; None for none.
        xid_gpu: index of the GPU whose driver reports a memory error now and then.
        nvlink_down_gpu: index of the GPU with an NVLink that is down.
        stray_gpu: index of the GPU that a program outside of all jobs uses.
        outage_every_seconds: how often the agent stops talking; 0 for never.
        outage_seconds: for how long; its samples arrive afterwards.
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
    pcie_generation: int = 5
    hot_gpu: int | None = None
    lost_gpu: int | None = None
    xid_gpu: int | None = None
    nvlink_down_gpu: int | None = None
    stray_gpu: int | None = None
    outage_every_seconds: float = 0.0
    outage_seconds: float = 0.0

    @property
    def gpu_uuids(self) -> list[str]:
        """UUIDs in NVML's form, fixed by the seed."""
        return [_uuid(f"{self.seed}/gpu{index}") for index in range(self.gpu_count)]


def _uuid(text: str) -> str:
    digits = sha256(text.encode()).hexdigest()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32])
    return f"GPU-{'-'.join(parts)}"
