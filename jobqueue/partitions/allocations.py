"""Which jobs have which GPUs, or parts of them, at this moment.

The segments of a GPU are in order, for bars on pages and dashboards. A whole GPU has one slot, a
GPU in MIG mode those of its memory, and under MPS and time slicing a GPU has a slot for each share.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobqueue.jobs.shown import with_users
from jobqueue.models import Attempt
from jobqueue.partitions.measures import slice_of
from jobqueue.partitions.mig import bits, slots_of
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.orders import WHOLE, Policy, policy_for, policy_from
from jobqueue.rentals import ListedJob, listed_job, on_appliances_of
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import WHOLE_GPU, GPUSlice, MIGProfile, PartitionMode
from protocol.inventory import GPUInfo
from tenants.permissions import Permission
from tenants.scope import Scope


class SegmentKind(StrEnum):
    """What is on some slots of a GPU.

    `IDLE` is a MIG instance that no job has, `UNUSABLE` are free slots on which no MIG profile fits
    beside what is there.
    """

    FREE = "free"
    UNUSABLE = "unusable"
    IDLE = "idle"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What an attempt that is starting, running or stopping has of GPUs."""

    job_id: str
    gpu_uuids: Sequence[str]
    gpu_slice: GPUSlice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Adjacent slots with the same content.

    Attributes:
        start: the first of them, from 0.
        profile: under MIG, of the instance; "" for free slots.
        uuid: of the MIG instance, once it is known.
        job_id: of a job's segment.
        memory_bytes: of the slice; 0 if nothing limits it, or if it is unknown.
    """

    start: int
    slots: int
    kind: SegmentKind
    profile: str = ""
    uuid: str = ""
    job_id: str = ""
    memory_bytes: int = 0

    @property
    def end(self) -> int:
        """The slot after the last one."""
        return self.start + self.slots


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A GPU's mode, the number of its slots, and its segments from the first slot to the last."""

    mode: PartitionMode
    slots: int
    segments: Sequence[Segment]

    @property
    def is_partitioned(self) -> bool:
        """Return whether jobs get parts of it."""
        return self.mode is not PartitionMode.WHOLE

    def slots_with(self, *kinds: SegmentKind) -> int:
        """Return how many slots have content of some kinds."""
        return sum(segment.slots for segment in self.segments if segment.kind in kinds)


def occupancy_of(
    gpu: GPUInfo, allocations: Iterable[Allocation], policy: Policy = WHOLE
) -> Occupancy:
    """Return who has what of a GPU.

    Args:
        gpu: as its appliance reports it.
        allocations: those of the appliance, or more.
        policy: that of the GPU, which says how an idle one is shared.
    """
    own = [allocation for allocation in allocations if gpu.uuid in allocation.gpu_uuids]
    slices = [(item.job_id, item.gpu_slice) for item in own if item.gpu_slice is not None]
    mode = _mode(gpu, slices, policy)
    if mode is PartitionMode.WHOLE or len(slices) < len(own):
        return _whole(own)
    if mode is PartitionMode.MIG:
        return _instances(gpu, slices)
    return _shares(mode, slices, policy.shares if policy.mode is mode else 0)


def _mode(gpu: GPUInfo, slices: Sequence[tuple[str, GPUSlice]], policy: Policy) -> PartitionMode:
    if slices:
        return slices[0][1].mode
    if gpu.is_mig_enabled:
        return PartitionMode.MIG
    # The GPU is not in that mode yet.
    return PartitionMode.WHOLE if policy.mode is PartitionMode.MIG else policy.mode


def _whole(own: Sequence[Allocation]) -> Occupancy:
    kind = SegmentKind.JOB if own else SegmentKind.FREE
    job_id = own[0].job_id if own else ""
    segment = Segment(start=0, slots=1, kind=kind, job_id=job_id)
    return Occupancy(PartitionMode.WHOLE, 1, [segment])


def _instances(gpu: GPUInfo, slices: Sequence[tuple[str, GPUSlice]]) -> Occupancy:
    uuids = {(item.start, item.profile): item.uuid for item in gpu.mig_instances}
    sizes = {profile.name: profile.memory_bytes for profile in gpu.mig_profiles}
    segments = [
        Segment(
            start=own.start,
            slots=own.slots,
            kind=SegmentKind.JOB,
            profile=own.profile,
            uuid=own.uuid or uuids.get((own.start, own.profile), ""),
            job_id=job_id,
            memory_bytes=own.memory_bytes,
        )
        for job_id, own in slices
    ]
    taken = _mask(segments)
    segments += [
        Segment(
            start=instance.start,
            slots=instance.slots,
            kind=SegmentKind.IDLE,
            profile=instance.profile,
            uuid=instance.uuid,
            memory_bytes=sizes.get(instance.profile, 0),
        )
        for instance in gpu.mig_instances
        # The report may be older than what was allocated.
        if not taken & bits(instance.start, instance.slots)
    ]
    total = max([slots_of(gpu.mig_profiles), *(segment.end for segment in segments)])
    segments += _free(gpu.mig_profiles, _mask(segments), total)
    return Occupancy(PartitionMode.MIG, total, sorted(segments, key=lambda item: item.start))


def _free(profiles: Sequence[MIGProfile], taken: int, total: int) -> Iterator[Segment]:
    usable = 0
    for profile in profiles:
        for start in profile.starts:
            mask = bits(start, profile.slots)
            usable |= 0 if taken & mask else mask
    kinds = [
        None
        if taken & bits(slot, 1)
        else SegmentKind.FREE
        if usable & bits(slot, 1)
        else SegmentKind.UNUSABLE
        for slot in range(total)
    ]
    start = 0
    for end in range(1, total + 1):
        if end == total or kinds[end] is not kinds[start]:
            if (kind := kinds[start]) is not None:
                yield Segment(start=start, slots=end - start, kind=kind)
            start = end


def _mask(segments: Iterable[Segment]) -> int:
    mask = 0
    for segment in segments:
        mask |= bits(segment.start, segment.slots)
    return mask


def _shares(mode: PartitionMode, slices: Sequence[tuple[str, GPUSlice]], shares: int) -> Occupancy:
    # After a change of the policy, its jobs say how it was divided.
    shares = shares or max(
        round(WHOLE_GPU * max(1, own.shares) / own.share_milli) for _, own in slices
    )
    segments: list[Segment] = []
    end = 0
    for job_id, own in slices:
        slots = max(1, round(own.share_milli * shares / WHOLE_GPU))
        segments.append(
            Segment(
                start=end,
                slots=slots,
                kind=SegmentKind.JOB,
                job_id=job_id,
                memory_bytes=own.memory_bytes,
            )
        )
        end += slots
    if end < shares:
        segments.append(Segment(start=end, slots=shares - end, kind=SegmentKind.FREE))
    return Occupancy(mode, max(shares, end), segments)


@dataclass(frozen=True, slots=True)
class GPUSite:
    """What decides how the GPUs of an appliance are shared; `modes` are those of its agent."""

    tenant_id: str
    labels: Mapping[str, str]
    modes: Sequence[str]


@dataclass(frozen=True, slots=True)
class GPUAllocations:
    """The allocations of a scope by GPU, their jobs, and the partition policies by tenant."""

    by_gpu: Mapping[str, Sequence[Allocation]] = field(default_factory=dict)
    jobs: Mapping[str, ListedJob] = field(default_factory=dict)
    policies: Mapping[str, Sequence[Policy]] = field(default_factory=dict)

    def job_of(self, uuid: str) -> ListedJob | None:
        """Return the job that has a GPU for itself."""
        for allocation in self.by_gpu.get(uuid, ()):
            if allocation.gpu_slice is None:
                return self.jobs[allocation.job_id]
        return None

    def jobs_on(self, occupancy: Occupancy | None) -> dict[str, ListedJob]:
        """Return the jobs that share a GPU, by id."""
        segments = occupancy.segments if occupancy else ()
        ids = (segment.job_id for segment in segments)
        return {job_id: self.jobs[job_id] for job_id in ids if job_id}

    def occupancy(self, gpu: GPUInfo, site: GPUSite) -> Occupancy | None:
        """Return who has what of a GPU that jobs share; None for a whole one."""
        own = self.by_gpu.get(gpu.uuid, ())
        policy = WHOLE
        if policies := self.policies.get(site.tenant_id):
            policy = policy_for(policies, gpu.model, frozenset(site.labels.items()))
        if policy.mode not in site.modes:
            policy = WHOLE
        is_cut = gpu.is_mig_enabled or policy.mode is not PartitionMode.WHOLE
        if not is_cut and all(allocation.gpu_slice is None for allocation in own):
            return None
        occupancy = occupancy_of(gpu, own, policy)
        return occupancy if occupancy.is_partitioned else None


def read_gpu_allocations(
    session: Session, scope: Scope, *, appliance_id: str | None = None
) -> GPUAllocations:
    """Return who has which GPUs, of one appliance of a scope or of all of them."""
    scope.require(Permission.VIEW)
    statement = select(Attempt).where(Attempt.state.in_(ALLOCATED_STATES), on_appliances_of(scope))
    if appliance_id is not None:
        # On a cluster, the GPUs are those of the node.
        is_there = or_(Attempt.appliance_id == appliance_id, Attempt.node_id == appliance_id)
        statement = statement.where(is_there)
    by_gpu: dict[str, list[Allocation]] = defaultdict(list)
    jobs: dict[str, ListedJob] = {}
    statement = statement.options(*with_users()).order_by(Attempt.id)
    for attempt in session.scalars(statement).unique():
        allocation = Allocation(
            job_id=attempt.job_id,
            gpu_uuids=attempt.gpu_uuids,
            gpu_slice=slice_of(attempt.gpu_slice),
        )
        for uuid in attempt.gpu_uuids:
            by_gpu[uuid].append(allocation)
            jobs[attempt.job_id] = listed_job(attempt, scope)
    policies: dict[str, list[Policy]] = defaultdict(list)
    ordered = select(GPUPartitionPolicy).order_by(GPUPartitionPolicy.position)
    for row in session.scalars(scope.select(ordered, GPUPartitionPolicy)):
        policies[row.tenant_id].append(policy_from(row))
    return GPUAllocations(by_gpu, jobs, policies)
