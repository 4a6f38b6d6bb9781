"""Which jobs have which GPUs, or parts of them, at this moment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from jobqueue.jobs.shown import with_users
from jobqueue.models import Attempt
from jobqueue.partitions.measures import slice_of
from jobqueue.partitions.models import GPUPartitionPolicy
from jobqueue.partitions.occupancy import Allocation, Occupancy, occupancy_of
from jobqueue.partitions.orders import WHOLE, Policy, policy_for, policy_from
from jobqueue.rentals import ListedJob, listed_job, on_appliances_of
from jobqueue.states import ALLOCATED_STATES
from protocol.gpu_slices import PartitionMode
from protocol.inventory import GPUInfo
from tenants.permissions import Permission
from tenants.scope import Scope


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
