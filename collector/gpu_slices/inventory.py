"""What the inventory says about sharing GPUs."""

from collections.abc import Iterable, Sequence

import msgspec

from collector.gpu_slices.base import GPUSlices
from plugins.mig import MIGGPU
from protocol.gpu_slices import PartitionMode
from protocol.inventory import GPUInfo, Inventory

# Begins the UUID of NVIDIA's GPUs.
NVIDIA_PREFIX = "GPU-"


def offered_modes(slices: GPUSlices | None, gpus: Sequence[GPUInfo]) -> list[str]:
    """Return how these GPUs can be shared; none without NVIDIA's."""
    if slices is None or not any(gpu.uuid.startswith(NVIDIA_PREFIX) for gpu in gpus):
        return []
    is_capable = any(gpu.is_mig_capable for gpu in gpus)
    return [mode.value for mode in slices.modes if is_capable or mode is not PartitionMode.MIG]


def with_profiles(inventory: Inventory, before: Inventory) -> Inventory:
    """Return an inventory with the MIG profiles of before, which a driver reports in MIG mode."""
    profiles = {gpu.uuid: gpu.mig_profiles for gpu in before.gpus}
    return msgspec.structs.replace(
        inventory,
        gpus=[
            msgspec.structs.replace(gpu, mig_profiles=profiles[gpu.uuid])
            if gpu.is_mig_capable and not gpu.mig_profiles and profiles.get(gpu.uuid)
            else gpu
            for gpu in inventory.gpus
        ],
    )


def with_mig(gpus: Iterable[GPUInfo], mig_gpus: Iterable[MIGGPU]) -> list[GPUInfo]:
    """Return GPUs with what their MIG driver reports; others don't know MIG."""
    by_uuid = {gpu.uuid: gpu for gpu in mig_gpus}
    return [
        msgspec.structs.replace(
            gpu,
            is_mig_capable=True,
            is_mig_enabled=by_uuid[gpu.uuid].is_enabled,
            is_mig_pending=by_uuid[gpu.uuid].is_pending,
            mig_profiles=by_uuid[gpu.uuid].profiles,
            mig_instances=[made for made in by_uuid[gpu.uuid].instances if made.uuid],
        )
        if gpu.uuid in by_uuid
        else gpu
        for gpu in gpus
    ]
