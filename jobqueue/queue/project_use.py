"""What projects use now, beside their quotas: for pages, the REST API and the command line."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobqueue.dispatch.usable_appliances import usable_views
from jobqueue.models import Job
from jobqueue.placement.views import ApplianceView
from jobqueue.projects.guarantees import ALL_GPUS, QuotaKey
from jobqueue.projects.models import Project, ProjectQuota, QuotaResource
from jobqueue.projects.tree import ProjectTree
from jobqueue.states import WAITING, JobState
from protocol.gpu_slices import WHOLE_GPU

_RUNNING = (JobState.STARTING, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """What a project and those below it use of one resource, with its quota if it has one."""

    key: QuotaKey
    used: float
    total: float
    guaranteed: int = 0
    maximum: int | None = None
    lending_limit: int | None = None
    borrowing_limit: int | None = None

    @property
    def resource(self) -> QuotaResource:
        """The resource."""
        return self.key.resource

    @property
    def gpu_model(self) -> str:
        """The word of the GPU model; "" for all."""
        return self.key.gpu_model

    @property
    def borrowed(self) -> float:
        """What is used above the guarantee."""
        return max(self.used - self.guaranteed, 0)

    @property
    def lent(self) -> float:
        """What is idle of the guarantee, as far as others may borrow it."""
        idle = max(self.guaranteed - self.used, 0)
        return idle if self.lending_limit is None else min(idle, self.lending_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectUse:
    """A project with its place in the tree, its jobs, and what they use."""

    project: Project
    depth: int
    parent_name: str | None
    running_jobs: int
    waiting_jobs: int
    use: Sequence[ResourceUse]


def use_of_projects(
    session: Session, tenant_id: str, *, is_archived: bool = False
) -> list[ProjectUse]:
    """Return the projects of a tenant, each before those below it, with what they use."""
    projects = select(Project).where(Project.tenant_id == tenant_id)
    tree = ProjectTree(session.scalars(projects))
    if not tree.by_id:
        return []
    quotas: dict[str, dict[QuotaKey, ProjectQuota]] = defaultdict(dict)
    rows = select(ProjectQuota).where(ProjectQuota.tenant_id == tenant_id)
    for row in session.scalars(rows).unique():
        quotas[row.project_id][QuotaKey(row.resource, row.gpu_model)] = row
    keys = {ALL_GPUS, *(key for of_project in quotas.values() for key in of_project)}
    views = usable_views(session, tenant_id, now=None)
    own = [view for view in views if view.rental is None]
    used, totals = _used(tree, views, keys), _totals(own, keys)
    jobs = _job_counts(session, tenant_id)
    return [
        ProjectUse(
            project=project,
            depth=depth,
            parent_name=tree.by_id[project.parent_id].name if project.parent_id else None,
            running_jobs=sum(jobs[project.id, state] for state in _RUNNING),
            waiting_jobs=sum(jobs[project.id, state] for state in WAITING),
            use=[
                _resource_use(key, used[project.id, key], totals[key], quotas[project.id].get(key))
                for key in _shown_keys(quotas[project.id])
            ],
        )
        for project, depth in tree.walk()
        if is_archived or project.archived_at is None
    ]


def _shown_keys(quotas: Mapping[QuotaKey, ProjectQuota]) -> list[QuotaKey]:
    """Return what is shown of a project: all GPUs, and what it has quotas of."""
    order = list(QuotaResource)
    return sorted({ALL_GPUS, *quotas}, key=lambda key: (order.index(key.resource), key.gpu_model))


def _resource_use(
    key: QuotaKey, used: float, total: float, quota: ProjectQuota | None
) -> ResourceUse:
    if quota is None:
        return ResourceUse(key=key, used=used, total=total)
    return ResourceUse(
        key=key,
        used=used,
        total=total,
        guaranteed=quota.guaranteed,
        maximum=quota.maximum,
        lending_limit=quota.lending_limit,
        borrowing_limit=quota.borrowing_limit,
    )


def _used(
    tree: ProjectTree, views: Sequence[ApplianceView], keys: set[QuotaKey]
) -> dict[tuple[str, QuotaKey], float]:
    used: defaultdict[tuple[str, QuotaKey], float] = defaultdict(float)
    for view in views:
        for job in view.running:
            if job.is_foreign:
                continue
            models = view.models_of(job)
            for project in tree.path(job.project_id if job.project_id in tree.by_id else None):
                for key in keys:
                    used[project.id, key] += _amount(
                        key, models, job.cpus, job.memory_bytes, share=job.gpu_milli / WHOLE_GPU
                    )
    return used


def _totals(views: Sequence[ApplianceView], keys: set[QuotaKey]) -> dict[QuotaKey, float]:
    totals: defaultdict[QuotaKey, float] = defaultdict(float)
    for view in views:
        models = view.gpu_models
        for key in keys:
            totals[key] += _amount(key, models, view.cpus, view.memory_bytes)
    return totals


def _amount(
    key: QuotaKey, models: Sequence[str], cpus: float, memory_bytes: int, *, share: float = 1
) -> float:
    """Return the amount of a resource; `share` is that of each GPU."""
    if key.resource is QuotaResource.GPUS:
        return sum(map(key.covers, models)) * share
    return int(cpus) if key.resource is QuotaResource.CPUS else memory_bytes


def _job_counts(session: Session, tenant_id: str) -> Counter[tuple[str | None, JobState]]:
    counted = (
        select(Job.project_id, Job.state, func.count())
        .where(
            Job.tenant_id == tenant_id,
            Job.project_id.is_not(None),
            Job.state.in_((*_RUNNING, *WAITING)),
        )
        .group_by(Job.project_id, Job.state)
    )
    return Counter({(project, state): count for project, state, count in session.execute(counted)})
