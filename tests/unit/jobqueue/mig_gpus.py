"""GPUs with MIG as an agent reports them: an H100's profiles, from its driver."""

from typing import Any

import msgspec

from protocol.gpu_slices import MIGProfile
from tests.unit.jobqueue.builders import GIB, gpu_uuid


def _profile(name: str, number: int, memory: int, units: int, *starts: int) -> MIGProfile:
    slots = {"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "7g.80gb": 8}.get(name, 4)
    return MIGProfile(
        name=name,
        profile_id=number,
        memory_bytes=memory * GIB,
        multiprocessors=units,
        slots=slots,
        starts=starts,
    )


# nvidia-smi mig -lgip and -lgipp of an H100 80GB HBM3; memory rounded.
H100_PROFILES = (
    _profile("1g.10gb", 19, 10, 16, *range(7)),
    _profile("1g.20gb", 15, 20, 26, 0, 2, 4, 6),
    _profile("2g.20gb", 14, 20, 32, 0, 2, 4),
    _profile("3g.40gb", 9, 40, 60, 0, 4),
    _profile("4g.40gb", 5, 40, 64, 0),
    _profile("7g.80gb", 0, 80, 132, 0),
)


def mig_gpus(name: str, count: int, *, is_enabled: bool = False) -> list[dict[str, Any]]:
    """The GPUs of an inventory."""
    return [
        {
            "index": index,
            "uuid": gpu_uuid(name, index),
            "model": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 80 * GIB,
            "is_mig_capable": True,
            "is_mig_enabled": is_enabled,
            "mig_profiles": msgspec.to_builtins(H100_PROFILES),
        }
        for index in range(count)
    ]
