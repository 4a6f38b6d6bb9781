"""What an attempt's part of a GPU counts as, and what can be measured of it.

Sources: NVML reports memory and processes of MIG devices, and their activity by GPM on Hopper and
newer; of processes that share a GPU otherwise it reports the memory of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from jobqueue.partitions.isolation import MODE_NAMES
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, PartitionMode

ACTIVITY = "graphics_engine_active_percent"
"""Of a MIG slice, what utilization is of a GPU."""
_WHOLE_GPU_ONLY = "the driver reports the utilization of the whole GPU only, which jobs share"
NOT_MEASURABLE: Mapping[PartitionMode, str] = {
    PartitionMode.MIG: "the driver reports the activity of MIG slices from Hopper GPUs on",
    PartitionMode.MPS: f"{_WHOLE_GPU_ONLY} by MPS",
    PartitionMode.TIME_SLICING: f"{_WHOLE_GPU_ONLY} by time slicing",
}
"""Why the utilization of a slice can't be told; completes "not measurable: "."""


def slice_of(gpu_slice: Mapping[str, Any] | None) -> GPUSlice | None:
    """Return the slice of an attempt's row; None for whole GPUs."""
    return msgspec.convert(gpu_slice, GPUSlice) if gpu_slice else None


def gpu_amount(gpu_uuids: Sequence[str], gpu_slice: Mapping[str, Any] | None) -> float:
    """Return how many GPUs an attempt's allocation counts as, by the row's columns."""
    return gpu_slice["share_milli"] / WHOLE_GPU if gpu_slice else float(len(gpu_uuids))


def memory_measurement(gpu_slice: GPUSlice | None) -> str:
    """Return the measurement that has the GPU memory of a job, by its tag `job`."""
    if gpu_slice is None:
        return "gpu"
    return "gpu_slice" if gpu_slice.mode is PartitionMode.MIG else "gpu_process"


def activity_of(gpu_slice: GPUSlice | None) -> tuple[str, str] | None:
    """Return the measurement and field that say how busy it is; None if nothing does."""
    if gpu_slice is None:
        return "gpu", "utilization_percent"
    return ("gpu_slice", ACTIVITY) if gpu_slice.mode is PartitionMode.MIG else None


def slice_label(gpu_slice: GPUSlice) -> str:
    """Return a slice in a few words, such as `1g.10gb` or `25 % by MPS`."""
    if gpu_slice.mode is PartitionMode.MIG:
        return gpu_slice.profile
    return f"{gpu_slice.share_milli / 10:.3g} % by {MODE_NAMES[gpu_slice.mode]}"
