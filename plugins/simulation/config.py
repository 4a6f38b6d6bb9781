"""What a simulated appliance is made of, and how it misbehaves."""

from dataclasses import dataclass
from hashlib import sha256

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """An eight-GPU server by default.

    Attributes:
        seed: the same seed gives the same devices and the same readings at the same instants.
        hot_gpu: index of the GPU that overheats under load and throttles; None for none.
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
    hot_gpu: int | None = None
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
