"""The input of placement: one tenant's appliances, the jobs on them, and the waiting jobs.

Pure values. Those of jobs are structs of msgspec, which are made three times as fast as
dataclasses. A GPU's capacity is `WHOLE_GPU` thousandths, of which slices take some; traces of other
clusters also have jobs that request thousandths without a slice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

import msgspec

from jobqueue.executors.abilities import Need
from jobqueue.partitions.isolation import IsolationRules
from jobqueue.placement.clusters import ANY_QUEUE, ClusterView, NodeNeed, QueueNeed
from jobqueue.placement.rentals import RentalNeed, RentalView
from jobqueue.placement.slices import GPUKind, SliceNeed, SliceRequest
from jobqueue.projects.guarantees import QuotaKey
from protocol.gpu_slices import WHOLE_GPU, GPUSlice
from protocol.health import HealthState
from tenants.models import ApplianceState

# A job without a time limit is assumed to run this long.
UNLIMITED = timedelta(days=3650)
# A point of priority counts as much as this time of waiting, so every job comes first in the end.
PRIORITY_POINT = timedelta(minutes=10)
# A job with one of these runs on clusters alone. Those of others have no partitions in their shape.
_CLUSTER_NEEDS = frozenset({Need.NO_IMAGE, Need.SLURM_OPTIONS})


class Reach(IntEnum):
    """Where an appliance's members of a gang with a private network may have others."""

    NONE = 0
    ALONE = 1
    SITE = 2
    ANYWHERE = 3


@dataclass(frozen=True, slots=True)
class GPUView:
    """A GPU of an appliance, with the health that its agent reported last.

    A failed GPU is never allocated; `failure` is the cause, in a word or two. A GPU that is *used
    outside* of jobs, as its processes show, is not free until that program ends. `kind` says how it
    is shared, None as a whole; while it `is_switching`, it gets no jobs.
    """

    uuid: str
    memory_bytes: int
    state: HealthState = HealthState.HEALTHY
    failure: str = ""
    model: str = ""
    is_used_outside: bool = False
    kind: GPUKind | None = None
    is_switching: bool = False

    @property
    def is_failed(self) -> bool:
        """Return whether it can't be allocated."""
        return self.state is HealthState.FAILED


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job with resources of an appliance, whether it is starting, running or stopping.

    Attributes:
        project_id: its project; None without one.
        gpu_milli: thousandths of each of its GPUs.
        gpu_slice: the part that it has of its only GPU.
        assigned_at: when it was placed there.
        started_at: when it started; None while it waits in the queue of a cluster.
        ends_at: by its time limit; None without one.
        node: of a cluster, where it runs; "" elsewhere, and while that is unknown.
        partitions: of a cluster, those that it may go to; empty for the default.
        contract_id: by which its appliance is rented; "" on an own one.
        is_foreign: whether it is another tenant's, of which `job_id` is the attempt: it takes
            resources, and counts towards nothing else.
    """

    job_id: str
    name: str = ""
    user_id: str | None = None
    project_id: str | None = None
    gpu_uuids: Sequence[str] = ()
    gpu_milli: int = WHOLE_GPU
    gpu_slice: GPUSlice | None = None
    cpus: float = 0.0
    memory_bytes: int = 0
    priority: int = 0
    is_preemptible: bool = False
    is_stopping: bool = False
    array_id: str | None = None
    assigned_at: datetime | None = None
    started_at: datetime | None = None
    ends_at: datetime | None = None
    node: str = ""
    partitions: frozenset[str] = frozenset()
    contract_id: str = ""
    is_foreign: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceView:
    """An appliance as placement sees it.

    Attributes:
        failure: why it can't run GPU jobs, whatever the state of each GPU; "" when it can.
        quarantine: why it is quarantined, as jobs failed to start there; "" when it isn't.
        is_trial_due: whether a single job may start there in spite of that.
        last_used_at: when a job was last placed on it.
        nvlink_domain: which appliances its NVLinks reach; "" for none besides itself.
        missing: the needs of jobs for data and networks that it can't meet, and why.
        reach: where its members of a gang with a private network may have others.
        cluster: the one whose connector it is; its cores and memory are those of the nodes then,
            and it has no GPUs of its own.
        rental: how it is rented; None for an own one. Its name is that of the offer then.
    """

    id: str
    name: str
    state: ApplianceState = ApplianceState.ONLINE
    is_drained: bool = False
    executors: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_bytes: int = 0
    gpus: Sequence[GPUView] = ()
    failure: str = ""
    quarantine: str = ""
    is_trial_due: bool = False
    labels: frozenset[tuple[str, str]] = frozenset()
    running: Sequence[RunningJob] = ()
    last_used_at: datetime | None = None
    site: str = ""
    nvlink_domain: str = ""
    missing: Mapping[Need, str] = field(default_factory=dict)
    reach: Reach = Reach.ANYWHERE
    cluster: ClusterView | None = None
    rental: RentalView | None = None

    @property
    def gpu_models(self) -> list[str]:
        """The models of its GPUs, or of those of its nodes, once for each GPU."""
        if self.cluster is not None:
            return self.cluster.gpu_models
        return [gpu.model for gpu in self.gpus]

    def models_of(self, running: RunningJob) -> list[str]:
        """Return the models of the GPUs of a job that runs on it."""
        if not running.gpu_uuids:
            return []
        if self.cluster is not None:
            return [self.cluster.model_at(running.node)] * len(running.gpu_uuids)
        models = {gpu.uuid: gpu.model for gpu in self.gpus}
        return [models[uuid] for uuid in running.gpu_uuids if uuid in models]


class JobShape(NamedTuple):
    """The requirements of a job; jobs of one shape fit on the same appliances."""

    gpus: int = 0
    gpu_milli: int = WHOLE_GPU
    gpu_memory_bytes: int = 0
    gpu_models: frozenset[str] = frozenset()
    cpus: float = 1.0
    memory_bytes: int = 0
    labels: frozenset[tuple[str, str]] = frozenset()
    requested: str | None = None
    needs: frozenset[Need] = frozenset()
    slice: SliceRequest | None = None
    queue: QueueNeed = ANY_QUEUE
    rental: RentalNeed | None = None

    @property
    def of_node(self) -> NodeNeed:
        """Return what the job needs of one node of a cluster."""
        return NodeNeed(
            gpus=self.gpus,
            gpu_models=self.gpu_models,
            gpu_memory_bytes=self.gpu_memory_bytes,
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            queue=self.queue,
        )


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting job as placement sees it.

    Attributes:
        gpu_milli: thousandths of each GPU; of a slice, what it may come to.
        slice_need: the part that it needs of its only GPU; None for whole ones.
        gpu_models: the models that may run it; empty for any.
        labels: the labels that its appliance must have.
        requested: the appliance that the user requested; None for any.
        needs: what its executor must be able to do.
        bound_to: the appliance that an earlier plan bound it to.
        failed_on: appliances where attempts of it failed; others come first.
        array_id: the array that it is a task of, if any.
        array_limit: how many tasks of that may run at once; 0 is any number.
        project_id: its project; None without one.
        queue_at: its place in the queue, if that is not the one of its submission and priority.
        points: more come first, whatever the place in the queue.
        nodes: the size of its gang; 1 for any other job.
        members: of a gang, the jobs that start together, the first of which it is itself.
        datasets: the versions that it reads, id and bytes.
        partitions: of a cluster, those that it may go to; empty for the default.
        rental: what it asks of rented appliances; None keeps it on own ones.
        data_wait_since: since when its data is fetched without GPUs; None while it isn't.
        member_places: the appliances that the members of its gang are bound to, in their order;
            empty unless all are.
    """

    id: str
    name: str
    submitted_at: datetime
    user_id: str | None = None
    gpus: int = 0
    gpu_milli: int = WHOLE_GPU
    slice_need: SliceNeed | None = None
    gpu_memory_bytes: int = 0
    gpu_models: frozenset[str] = frozenset()
    cpus: float = 1.0
    memory_bytes: int = 0
    labels: frozenset[tuple[str, str]] = frozenset()
    requested: str | None = None
    needs: frozenset[Need] = frozenset()
    bound_to: str | None = None
    failed_on: frozenset[str] = frozenset()
    priority: int = 0
    is_preemptible: bool = False
    time_limit: timedelta | None = None
    array_id: str | None = None
    array_limit: int = 0
    queue_at: datetime | None = None
    points: float = 0.0
    project_id: str | None = None
    nodes: int = 1
    members: Sequence[str] = ()
    datasets: Sequence[tuple[str, int]] = ()
    partitions: frozenset[str] = frozenset()
    rental: RentalNeed | None = None
    data_wait_since: datetime | None = None
    member_places: Sequence[str] = ()

    @property
    def shape(self) -> JobShape:
        """Return the requirements of the job."""
        return JobShape(
            self.gpus,
            self.gpu_milli,
            self.gpu_memory_bytes,
            self.gpu_models,
            self.cpus,
            self.memory_bytes,
            self.labels,
            self.requested,
            self.needs,
            self.slice_request if self.slice_need else None,
            self.queue_need if self.needs else ANY_QUEUE,
            self.rental,
        )

    @property
    def queue_need(self) -> QueueNeed:
        """Return what it needs of the partitions of a cluster, if only clusters run it."""
        if self.needs.isdisjoint(_CLUSTER_NEEDS):
            return ANY_QUEUE
        limit_seconds = self.time_limit.total_seconds() if self.time_limit else 0.0
        return QueueNeed(self.partitions, limit_seconds)

    @property
    def slice_request(self) -> SliceRequest | None:
        """Return the part of a GPU that it needs, and whose it is; None for whole GPUs."""
        if self.slice_need is None:
            return None
        return SliceRequest(self.slice_need, self.user_id, self.project_id)

    @property
    def gpu_count(self) -> float:
        """Return how many GPUs it takes, with parts of GPUs."""
        return self.gpus * self.gpu_milli / WHOLE_GPU

    def scaled(self, count: int) -> "JobView":
        """Return a job that requires as much as so many members of its gang."""
        return msgspec.structs.replace(
            self,
            gpus=self.gpus * count,
            cpus=self.cpus * count,
            memory_bytes=self.memory_bytes * count,
            members=(),
            member_places=(),
        )

    @property
    def whole(self) -> "JobView":
        """Return a job that requires as much as all members of its gang; itself without one."""
        return self.scaled(len(self.members)) if len(self.members) > 1 else self

    @property
    def order(self) -> tuple[float, datetime, str]:
        """Return the sort key of the queue."""
        queue_at = self.queue_at or queue_time(self.submitted_at, self.priority)
        return -self.points, queue_at, self.id


def queue_time(submitted_at: datetime, priority: int) -> datetime:
    """Return the time by which a queue sorts a job.

    All jobs age at the same rate, so the order of two jobs never changes: a job is overtaken only
    by those that are submitted within `PRIORITY_POINT` a point of the difference in priority.
    """
    return submitted_at - priority * PRIORITY_POINT


class Part(NamedTuple):
    """A part of a waiting job's points: its value times its weight."""

    name: str
    value: float
    weight: int

    @property
    def points(self) -> float:
        """Return the product."""
        return self.value * self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The GPUs that the running jobs of one user and of the whole tenant may have; None: any."""

    gpus_per_user: int | None = None
    gpus: int | None = None


def period_text(begin: datetime, end: datetime) -> str:
    """Return a period as texts show it, in UTC."""
    begins, ends = begin.astimezone(UTC), end.astimezone(UTC)
    last = f"{ends:%H:%M}" if begins.date() == ends.date() else f"{ends:%Y-%m-%d %H:%M}"
    return f"{begins:%Y-%m-%d %H:%M} to {last} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationView:
    """Appliances that are kept for a project at certain times.

    Attributes:
        name: its own; "" for one of another tenant, which nobody else sees.
        project: its name; "" keeps all jobs off, for maintenance.
        project_ids: it, and the projects below.
        gpus: of each appliance; None is the whole appliance.
        periods: the begin and the end of the next ones, the one that goes on included.
        holder: of one of another tenant, such as `its provider`.
    """

    name: str
    project: str
    project_ids: frozenset[str]
    appliance_ids: Sequence[str]
    gpus: int | None
    periods: Sequence[tuple[datetime, datetime]]
    holder: str = ""

    def period(self, now: datetime) -> tuple[datetime, datetime] | None:
        """Return the period that goes on, or the next one; None if there is none."""
        return next((period for period in self.periods if period[1] > now), None)


class CacheView(NamedTuple):
    """The cache of an appliance that fetches datasets ahead of jobs.

    Attributes:
        bytes_per_second: as fast as it fetched lately; None while that is unknown.
        failed: the versions that it failed to fetch.
    """

    bytes_per_second: int | None = None
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """What keeps jobs with GPUs from starting; see `jobqueue.holds.models.JobHold`."""

    reason: str
    project_ids: frozenset[str] | None = None
    user_id: str | None = None
    is_for_rentals: bool = False

    def covers(self, job: JobView) -> bool:
        """Return whether it holds a job."""
        return (self.project_ids is None or job.project_id in self.project_ids) and (
            self.user_id is None or job.user_id == self.user_id
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaView:
    """What a project may use of one resource; see `jobqueue.projects.models.ProjectQuota`."""

    key: QuotaKey
    guaranteed: int = 0
    maximum: int | None = None
    lending_limit: int | None = None
    borrowing_limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """A project as placement sees it; without a parent it is directly below the tenant."""

    id: str
    name: str
    parent_id: str | None = None
    shares: int = 1
    quotas: Sequence[QuotaView] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One tenant's appliances with what runs on them, its waiting jobs, and its rules.

    Attributes:
        workload: shapes of usual jobs and how frequent they are, for `least_fragmentation`.
        projects: of the tenant, if any has quotas.
        isolation: which jobs may share a GPU.
        copies: the cached bytes of versions of datasets, by version and appliance.
        holds: what keeps jobs with GPUs from starting, such as budgets that are spent.
        caches: those that fetch datasets ahead of jobs, by appliance; None where that is not known.
        longest_fetch: a job whose data takes longer waits for it without GPUs; None never does.
    """

    now: datetime
    appliances: Sequence[ApplianceView]
    jobs: Sequence[JobView]
    policy: str = "first_free_else_lru"
    caps: Caps = field(default_factory=Caps)
    allows_preemption: bool = False
    workload: Sequence[tuple[JobShape, float]] = ()
    reservations: Sequence[ReservationView] = ()
    projects: Sequence[ProjectView] = ()
    isolation: IsolationRules = field(default_factory=IsolationRules)
    copies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    holds: Sequence[HoldView] = ()
    caches: Mapping[str, CacheView] | None = None
    longest_fetch: timedelta | None = None
