"""The slots of a GPU in words: where a segment is, what is on it, and what is free."""

from collections.abc import Mapping

from jobqueue.partitions.isolation import MODE_NAMES
from jobqueue.partitions.occupancy import Occupancy, Segment, SegmentKind
from jobqueue.rentals import ListedJob
from protocol.gpu_slices import PartitionMode

_KIND_TEXTS = {
    SegmentKind.FREE: "free",
    SegmentKind.UNUSABLE: "unusable",
    SegmentKind.IDLE: "idle",
}


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
