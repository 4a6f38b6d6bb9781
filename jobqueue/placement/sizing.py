"""The size of a job that needs a part of a GPU, and what it is told about its slice."""

import msgspec
import numpy as np

from jobqueue.executors.abilities import Need
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.placement.filters import CHOSEN, RENTED, passing
from jobqueue.placement.ledger import Ledger
from jobqueue.placement.views import JobView
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, PartitionMode

NO_SLICES = "No GPU that it may use is cut into slices that suffice, so it gets a whole one."


def sized(ledger: Ledger, job: JobView) -> JobView:
    """Return a job with the size of its slice, or one for a whole GPU in place of it.

    It gets a whole one if it names no profile, and none of the GPUs that it may use is cut into
    slices that suffice.
    """
    need, slices, shape = job.slice_need, ledger.slices, job.shape
    if need is None:
        return job
    if slices is not None:
        places = passing((*CHOSEN, *RENTED), ledger, shape, np.ones(ledger.size, np.bool_))
        if (ledger.eligible(shape) & places).any():
            return msgspec.structs.replace(job, gpu_milli=slices.milli(need))
    return job if need.profile else whole_gpu_for(job)


def whole_gpu_for(job: JobView) -> JobView:
    """Return a job that requests a whole GPU in place of a slice."""
    memory_bytes = job.slice_need.memory_bytes if job.slice_need else 0
    return msgspec.structs.replace(
        job,
        slice_need=None,
        gpus=1,
        gpu_milli=WHOLE_GPU,
        gpu_memory_bytes=memory_bytes,
        needs=job.needs - {Need.GPU_SLICE},
    )


def slice_text(ledger: Ledger, held: GPUSlice, place: int, slot: int) -> str:
    """Return what a job gets of a GPU, as a sentence."""
    slices, view = ledger.slices, ledger.views[place]
    gpu = f"GPU {slot}"
    if held.mode is not PartitionMode.MIG:
        shares = "a share" if held.shares == 1 else f"{held.shares} shares"
        return f"It gets {shares} of {gpu} under {MODE_NAMES[held.mode]}."
    last = held.start + held.slots - 1
    slots = f"slot {last}" if held.slots == 1 else f"slots {held.start} to {last}"
    text = f"It gets a {held.profile} instance in {slots} of {gpu}."
    is_alone = slices is not None and len(slices.parts_at(place, slot)) == 1
    if is_alone and slices is not None and slices.changes_layout(place, slot):
        text += f" {gpu} of {view.name} was idle, so its layout changes for this job."
    return text
