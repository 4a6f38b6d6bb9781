"""Who has what of a GPU, slot by slot."""

import msgspec

from jobqueue.partitions.allocations import Allocation, Occupancy, SegmentKind, occupancy_of
from jobqueue.partitions.orders import Policy
from protocol.gpu_slices import GPUSlice, MIGInstance, MIGProfile, PartitionMode
from protocol.inventory import GPUInfo

GIB = 2**30
# As the driver of an A100 with 80 GB reports them.
PROFILES = [
    MIGProfile(
        name="1g.10gb",
        profile_id=19,
        memory_bytes=10 * GIB,
        multiprocessors=14,
        slots=1,
        starts=(0, 1, 2, 3, 4, 5, 6),
    ),
    MIGProfile(
        name="3g.40gb",
        profile_id=9,
        memory_bytes=40 * GIB,
        multiprocessors=42,
        slots=4,
        starts=(0, 4),
    ),
]


GPU = GPUInfo(index=0, uuid="GPU-1", model="A100", memory_bytes=80 * GIB)


def mig_gpu(*instances: MIGInstance) -> GPUInfo:
    return msgspec.structs.replace(
        GPU, is_mig_enabled=True, mig_profiles=PROFILES, mig_instances=list(instances)
    )


def small(start: int) -> MIGInstance:
    return MIGInstance(uuid=f"MIG-{start}", profile="1g.10gb", start=start, slots=1)


def instance(job_id: str, profile: str, start: int, slots: int) -> Allocation:
    gpu_slice = GPUSlice(
        mode=PartitionMode.MIG,
        gpu_uuid="GPU-1",
        share_milli=slots * 125,
        profile=profile,
        start=start,
        slots=slots,
    )
    return Allocation(job_id=job_id, gpu_uuids=["GPU-1"], gpu_slice=gpu_slice)


def share(job_id: str, share_milli: int) -> Allocation:
    gpu_slice = GPUSlice(mode=PartitionMode.MPS, gpu_uuid="GPU-1", share_milli=share_milli)
    return Allocation(job_id=job_id, gpu_uuids=["GPU-1"], gpu_slice=gpu_slice)


def drawn(occupancy: Occupancy) -> list[tuple[int, int, str, str]]:
    return [(item.start, item.slots, item.kind.value, item.job_id) for item in occupancy.segments]


def test_a_free_gpu_is_one_free_segment() -> None:
    occupancy = occupancy_of(GPU, [])
    assert occupancy.mode is PartitionMode.WHOLE
    assert drawn(occupancy) == [(0, 1, "free", "")]


def test_a_whole_gpu_belongs_to_its_job_alone() -> None:
    whole = Allocation(job_id="train", gpu_uuids=["GPU-1"])
    elsewhere = Allocation(job_id="other", gpu_uuids=["GPU-2"])
    assert drawn(occupancy_of(GPU, [elsewhere, whole])) == [(0, 1, "job", "train")]


def test_instances_of_jobs_idle_ones_and_free_slots_are_told_apart() -> None:
    occupancy = occupancy_of(
        mig_gpu(small(1), MIGInstance(uuid="MIG-9", profile="3g.40gb", start=4, slots=4)),
        [instance("notebook", "1g.10gb", 1, 1)],
    )
    assert (occupancy.mode, occupancy.slots) == (PartitionMode.MIG, 8)
    assert drawn(occupancy) == [
        (0, 1, "free", ""),
        (1, 1, "job", "notebook"),
        (2, 2, "free", ""),
        (4, 4, "idle", ""),
    ]


def test_a_slot_on_which_no_profile_fits_is_unusable() -> None:
    occupancy = occupancy_of(mig_gpu(small(4)), [])
    assert drawn(occupancy)[-1] == (7, 1, "unusable", "")
    assert occupancy.slots_with(SegmentKind.FREE) == 6


def test_an_allocation_counts_more_than_an_older_report() -> None:
    stale = mig_gpu(*(small(start) for start in range(4)))
    occupancy = occupancy_of(stale, [instance("big", "3g.40gb", 0, 4)])
    assert drawn(occupancy) == [
        (0, 4, "job", "big"),
        (4, 4, "free", ""),
    ]


def test_an_instance_gets_its_place_before_the_mode_is_reported() -> None:
    policy = Policy(mode=PartitionMode.MIG)
    early = instance("early", "1g.10gb", 0, 1)
    assert occupancy_of(GPU, [early], policy).mode is PartitionMode.MIG
    assert occupancy_of(GPU, [], policy).mode is PartitionMode.WHOLE


def test_shares_follow_each_other() -> None:
    policy = Policy(mode=PartitionMode.MPS, shares=3)
    allocations = [
        share("two", 666),
        share("third", 333),
    ]
    assert drawn(occupancy_of(GPU, allocations, policy)) == [
        (0, 2, "job", "two"),
        (2, 1, "job", "third"),
    ]


def test_an_idle_gpu_with_shares_has_a_free_slot_for_each() -> None:
    occupancy = occupancy_of(GPU, [], Policy(mode=PartitionMode.TIME_SLICING, shares=4))
    assert occupancy.mode is PartitionMode.TIME_SLICING
    assert drawn(occupancy) == [(0, 4, "free", "")]


def test_a_policy_that_changed_leaves_the_shares_of_its_jobs() -> None:
    changed = Policy(mode=PartitionMode.WHOLE)
    occupancy = occupancy_of(GPU, [share("old", 250)], changed)
    assert (occupancy.mode, occupancy.slots) == (PartitionMode.MPS, 4)
    assert drawn(occupancy) == [(0, 1, "job", "old"), (1, 3, "free", "")]
