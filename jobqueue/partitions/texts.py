"""Slices and slots of GPUs in words: what a job requests and has, and what is free."""

from collections.abc import Mapping
from typing import Any

from core.quantities import format_size
from jobqueue.partitions.allocations import Occupancy, Segment, SegmentKind
from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.placement.slices import SliceNeed
from jobqueue.rentals import ListedJob
from protocol.gpu_slices import GPUSlice, PartitionMode

_KIND_TEXTS = {
    SegmentKind.FREE: "free",
    SegmentKind.UNUSABLE: "unusable",
    SegmentKind.IDLE: "idle",
}


def requested_text(job: Any) -> str:  # noqa: ANN401 - see below
    """Return the GPUs that a job requests, such as `2` or `8 GiB of a GPU`.

    `job` is a job, a request for one, or anything else with these fields.
    """
    need = SliceNeed(job.gpu_slice, job.gpu_memory_bytes, job.gpu_compute)
    return str(job.gpus) if job.gpus or not any(need) else str(need)


def slice_text(held: GPUSlice) -> str:
    """Return a slice that a job has, such as `MIG 1g.10gb with 10 GiB, slot 3`."""
    words = slice_words(
        held.mode,
        profile=held.profile,
        memory_bytes=held.memory_bytes,
        share_milli=held.share_milli,
    )
    if held.mode is not PartitionMode.MIG:
        return words
    last = held.start + held.slots - 1
    slots = f"slot {held.start}" if held.slots == 1 else f"slots {held.start} to {last}"
    return f"{words}, {slots}"


def slice_words(mode: PartitionMode, *, profile: str, memory_bytes: int, share_milli: int) -> str:
    """Return what a slice is, such as `MPS share of 25 % with 20 GiB`."""
    name = MODE_NAMES[mode]
    what = profile or f"share of {share_milli / 10:.3g} %"
    size = f" with {format_size(memory_bytes)}" if memory_bytes else ""
    memory = ", memory not limited" if mode is PartitionMode.TIME_SLICING else size
    return f"{name[:1].upper()}{name[1:]} {what}{memory}"


def slots_text(occupancy: Occupancy) -> str:
    """Return how a GPU is shared and what is free, such as `MIG, 3 of 8 slots free`."""
    free = occupancy.slots_with(SegmentKind.FREE, SegmentKind.IDLE)
    noun = "slots" if occupancy.mode is PartitionMode.MIG else "shares"
    return f"{MODE_NAMES[occupancy.mode]}, {free} of {occupancy.slots} {noun} free"


def place_text(segment: Segment, occupancy: Occupancy) -> str:
    """Return where a segment is, such as `slot 4` or `2 of 4 shares`."""
    if occupancy.mode is not PartitionMode.MIG:
        return f"{segment.slots} of {occupancy.slots} shares"
    if segment.slots == 1:
        return f"slot {segment.start}"
    return f"slots {segment.start} to {segment.end - 1}"


def content_text(segment: Segment, jobs: Mapping[str, ListedJob]) -> str:
    """Return what is on a segment: the name of its job, or that nothing is."""
    if segment.kind is SegmentKind.JOB:
        return jobs[segment.job_id].name
    return _KIND_TEXTS[segment.kind]
