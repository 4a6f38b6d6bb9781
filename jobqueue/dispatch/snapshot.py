"""The input of placement: a snapshot of a tenant, and the order of its queue.

A snapshot has the appliances that the tenant has or rents, its projects and rules. Waiting jobs are
added page by page (see `jobqueue.dispatch.waiting_jobs`), with the copies of their datasets, which
are read when a job with datasets is considered. Positions in the queue follow the same order.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, or_, select
from sqlalchemy.orm import Session

from core.db import chunked
from datasets.copies import fetching_caches, read_copies
from jobqueue.dispatch.appliance_views import matching_models, models_of
from jobqueue.dispatch.usable_appliances import reservations_of_others, usable_views
from jobqueue.dispatch.waiting_jobs import (
    SLICE_COLUMNS,
    WaitingJob,
    gang_members,
    is_ready,
    read_waiting,
    slice_need,
    waiting_ids,
)
from jobqueue.fairshare.accounts import Projects, billed, read_projects
from jobqueue.fairshare.drf import Resources
from jobqueue.fairshare.points import QueueOrder, Shares, order_queue
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.fairshare.usage import Account, read_usage
from jobqueue.holds.service import hold_views
from jobqueue.jobs.settings import settings_of
from jobqueue.models import Job
from jobqueue.placement.data_locality import Copies, DataLocality
from jobqueue.placement.plan import Planner
from jobqueue.placement.policies import LEAST_FRAGMENTATION
from jobqueue.placement.slices import SliceRequest
from jobqueue.placement.views import (
    ApplianceView,
    CacheView,
    Caps,
    JobShape,
    JobView,
    ProjectView,
    QuotaView,
    Snapshot,
)
from jobqueue.projects.guarantees import QuotaKey
from jobqueue.projects.models import Project, ProjectQuota
from jobqueue.projects.quotas import LIMITS
from jobqueue.reservations.views import reservation_views
from protocol.gpu_slices import WHOLE_GPU

# The latest jobs, as a sample of the usual ones.
WORKLOAD_JOBS = 1000
# Waiting jobs that are examined for guarantees of their projects in one pass.
MAX_GUARANTEED = 5000
# Of a GPU, for a job that names no share of it: a MIG slot.
ASSUMED_PART = 0.125


def read_snapshot(session: Session, tenant_id: str, *, now: datetime) -> Snapshot:
    """Return the tenant's snapshot without its waiting jobs."""
    views = usable_views(session, tenant_id, now=now)
    settings = settings_of(session, tenant_id)
    reservations = reservation_views(session, tenant_id, now=now)
    has_workload = settings.placement_policy == LEAST_FRAGMENTATION
    return Snapshot(
        now=now,
        appliances=views,
        jobs=(),
        policy=settings.placement_policy,
        caps=Caps(gpus_per_user=settings.max_gpus_per_user, gpus=settings.max_gpus),
        allows_preemption=settings.allows_preemption,
        workload=_workload(session, tenant_id, models_of(views)) if has_workload else (),
        reservations=[*reservations, *reservations_of_others(session, tenant_id, views, now=now)],
        projects=_projects(session, tenant_id),
        isolation=settings.isolation,
        holds=hold_views(session, tenant_id),
        longest_fetch=timedelta(minutes=settings.longest_fetch_minutes),
    )


def queue_order(
    session: Session, tenant_id: str, snapshot: Snapshot, *, new: Sequence[Job] = ()
) -> QueueOrder:
    """Return the jobs that wait for an appliance in their order.

    Args:
        session: the session.
        tenant_id: whose queue it is.
        snapshot: the tenant's appliances and what runs there.
        new: jobs that are not in the database, which get points, too.
    """
    settings = settings_of(session, tenant_id).ordering
    if settings.policy is OrderPolicy.FIFO:
        return QueueOrder(waiting_ids(session, tenant_id, now=snapshot.now))
    hidden, alone = gang_members(session, tenant_id, now=snapshot.now)
    ready = select(*_columns(alone)).where(*is_ready(tenant_id, now=snapshot.now))
    rows = [
        row for row in session.execute(ready.order_by(Job.queue_at, Job.id)) if row.id not in hidden
    ]
    shares = read_shares(session, tenant_id, snapshot, settings)
    return order_queue([*rows, *new], shares, settings, now=snapshot.now)


def placement_order(session: Session, tenant_id: str, snapshot: Snapshot) -> QueueOrder:
    """Return the queue as placement goes through it: what guarantees cover comes first."""
    order = queue_order(session, tenant_id, snapshot)
    if not snapshot.projects:
        return order
    return order.reordered(guaranteed_first(session, tenant_id, Planner(snapshot), order))


def read_shares(
    session: Session, tenant_id: str, snapshot: Snapshot, settings: OrderSettings
) -> Shares:
    """Return the projects of a tenant, their decayed usage, and what runs."""
    projects, fleet = read_projects(session, tenant_id), _fleet(snapshot.appliances)
    seconds = read_usage(session, tenant_id, half_life=settings.half_life, now=snapshot.now)
    has_gpus = fleet.gpus > 0
    return Shares(
        projects=projects,
        usage={
            account: billed(used, settings, has_gpus=has_gpus) for account, used in seconds.items()
        },
        running=_running(projects, snapshot.appliances),
        fleet=fleet,
    )


def guaranteed_first(
    session: Session, tenant_id: str, planner: Planner, order: QueueOrder
) -> list[str]:
    """Return the jobs of a queue in their order, but those that guarantees cover first.

    So a job that borrows doesn't take what a guaranteed one is about to reclaim.
    """
    if not planner.quotas.has_guarantees:
        return list(order.ids)
    now, models = planner.snapshot.now, models_of(planner.snapshot.appliances)
    of_projects = select(Job.id).where(*is_ready(tenant_id, now=now), Job.project_id.is_not(None))
    candidates = set(session.scalars(of_projects))
    examined = [ident for ident in order.ids if ident in candidates][:MAX_GUARANTEED]
    views = (
        job.view
        for chunk in chunked(examined)
        for job in in_given_order(
            chunk, read_waiting(session, tenant_id, chunk, models, now=now, points=order.points)
        )
    )
    covered = [job.id for job in planner.quotas.guaranteed_first(views)]
    is_covered = set(covered)
    return [*covered, *(ident for ident in order.ids if ident not in is_covered)]


def in_given_order(ids: Sequence[str], jobs: Iterable[WaitingJob]) -> list[WaitingJob]:
    """Return jobs in the order of some ids, which guarantees may have changed."""
    places = {ident: place for place, ident in enumerate(ids)}
    return sorted(jobs, key=lambda job: places[job.id])


def with_jobs(
    session: Session,
    tenant_id: str,
    snapshot: Snapshot,
    ids: Sequence[str],
    order: QueueOrder,
) -> Snapshot:
    """Return the snapshot with some of the waiting jobs."""
    models, now = models_of(snapshot.appliances), snapshot.now
    waiting = read_waiting(session, tenant_id, ids, models, now=now, points=order.points)
    views = [job.view for job in waiting]
    copies = cached_copies(session, tenant_id, views)
    caches = staging_caches(session, tenant_id)
    return replace(snapshot, jobs=views, copies=copies, caches=caches)


def cached_copies(
    session: Session,
    tenant_id: str,
    jobs: Iterable[JobView],
    *,
    but: DataLocality | None = None,
) -> Copies:
    """Return the cached bytes of the versions that jobs read, by version and appliance.

    Those that are in `but` already are left out; without datasets, there is no query.
    """
    version_ids = {version_id for job in jobs for version_id, _ in job.datasets}
    missing = version_ids if but is None else but.missing(version_ids)
    return read_copies(session, tenant_id, missing) if missing else {}


def staging_caches(session: Session, tenant_id: str) -> dict[str, CacheView]:
    """Return the caches of a tenant's appliances that fetch datasets ahead of jobs."""
    return {
        cache.appliance_id: CacheView(cache.bytes_per_second, cache.failed)
        for cache in fetching_caches(session, tenant_id)
    }


def _projects(session: Session, tenant_id: str) -> list[ProjectView]:
    """Return the projects of a tenant in which any has quotas; otherwise none."""
    quotas: dict[str, list[QuotaView]] = defaultdict(list)
    rows = select(ProjectQuota).where(ProjectQuota.tenant_id == tenant_id)
    for row in session.scalars(rows).unique():
        limits = {name: getattr(row, name) for name in LIMITS}
        view = QuotaView(key=QuotaKey(row.resource, row.gpu_model), **limits)
        quotas[row.project_id].append(view)
    if not quotas:
        return []
    projects = select(Project).where(Project.tenant_id == tenant_id)
    return [
        ProjectView(
            id=project.id,
            name=project.name,
            parent_id=project.parent_id,
            shares=project.shares,
            quotas=quotas[project.id],
        )
        for project in session.scalars(projects)
    ]


def _workload(
    session: Session, tenant_id: str, models: Iterable[str]
) -> list[tuple[JobShape, float]]:
    """Return the shapes of the tenant's latest jobs with their numbers."""
    latest = (
        select(*SLICE_COLUMNS, Job.gpu_models, Job.cpus, Job.memory_bytes)
        .where(Job.tenant_id == tenant_id)
        .order_by(Job.id.desc())
        .limit(WORKLOAD_JOBS)
    )
    shapes: Counter[JobShape] = Counter()
    for row in session.execute(latest):
        need = slice_need(row)
        shape = JobShape(
            gpus=1 if need else row.gpus,
            slice=need and SliceRequest(need),
            gpu_memory_bytes=0 if need else row.gpu_memory_bytes,
            gpu_models=matching_models(row.gpu_models, models),
            cpus=row.cpus,
            memory_bytes=row.memory_bytes,
        )
        shapes[shape] += 1
    return [(shape, float(count)) for shape, count in shapes.items()]


def _columns(alone: Collection[str]) -> list[Any]:
    """Return the columns of `order_queue`; a gang is there once, by its first member."""
    members = case((Job.id.in_(alone), 1), else_=Job.nodes) if alone else Job.nodes
    wants_part = or_(Job.gpu_slice != "", Job.gpu_memory_bytes > 0, Job.gpu_compute > 0)
    part = case((Job.gpu_compute > 0, Job.gpu_compute), else_=ASSUMED_PART)
    requests = {
        "gpus": case((Job.gpus > 0, Job.gpus), (wants_part, part), else_=0),
        "cpus": Job.cpus,
        "memory_bytes": Job.memory_bytes,
    }
    return [
        *(Job.id, Job.queue_at, Job.priority, Job.project_id, Job.user_id),
        *((amount * members).label(name) for name, amount in requests.items()),
    ]


def _fleet(appliances: Sequence[ApplianceView]) -> Resources:
    return Resources(
        sum(len(view.gpu_models) for view in appliances),
        sum(view.cpus for view in appliances),
        sum(view.memory_bytes for view in appliances),
    )


def _running(projects: Projects, appliances: Iterable[ApplianceView]) -> dict[Account, Resources]:
    running: defaultdict[Account, Resources] = defaultdict(Resources)
    for view in appliances:
        for job in view.running:
            if job.is_foreign:
                continue
            account = projects.account(job.project_id, job.user_id)
            gpus = len(job.gpu_uuids) * job.gpu_milli / WHOLE_GPU
            request = Resources(gpus, job.cpus, job.memory_bytes)
            running[account] = running[account].plus(request)
    return dict(running)
