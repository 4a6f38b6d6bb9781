"""The input of placement: the appliances that a tenant has or rents, its projects and rules.

Waiting jobs are added page by page; see `jobqueue.dispatch.waiting_jobs`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.dispatch.appliance_views import matching_models, models_of
from jobqueue.dispatch.rented_views import reservations_of_others, usable_views
from jobqueue.dispatch.waiting_jobs import SLICE_COLUMNS, slice_need
from jobqueue.holds.service import hold_views
from jobqueue.jobs.settings import settings_of
from jobqueue.models import Job
from jobqueue.placement.policies import LEAST_FRAGMENTATION
from jobqueue.placement.slices import SliceRequest
from jobqueue.placement.views import Caps, JobShape, ProjectView, QuotaView, Snapshot
from jobqueue.projects.guarantees import QuotaKey
from jobqueue.projects.models import Project, ProjectQuota
from jobqueue.projects.quotas import LIMITS
from jobqueue.reservations.service import reservation_views

# The latest jobs, as a sample of the usual ones.
WORKLOAD_JOBS = 1000


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
