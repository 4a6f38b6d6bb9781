"""The waiting jobs of a tenant in the order in which placement considers them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Page
from jobqueue.dispatch.snapshot import placement_order, read_snapshot
from jobqueue.fairshare.accounts import read_projects
from jobqueue.models import Job
from jobqueue.placement.views import Part
from tenants.permissions import Permission
from tenants.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job at its position in the queue, from 1.

    Attributes:
        project: the name of its project; "" without one.
        parts: what its points are the sum of; none where the queue has no points.
    """

    position: int
    job: Job
    project: str
    parts: Sequence[Part]

    @property
    def points(self) -> float:
        """Return the sum of the parts."""
        return sum(part.points for part in self.parts)


def list_waiting(
    session: Session,
    scope: Scope,
    *,
    now: datetime,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[QueuedJob]:
    """Return a page of the jobs that wait for an appliance, the next one first."""
    scope.require(Permission.VIEW)
    tenant_id = scope.require_tenant()
    snapshot = read_snapshot(session, tenant_id, now=now)
    order = placement_order(session, tenant_id, snapshot)
    number, size = max(1, page), max(1, min(page_size, MAX_PAGE_SIZE))
    first = (number - 1) * size
    ids = order.ids[first : first + size]
    rows = session.scalars(select(Job).where(Job.id.in_(ids)).options(joinedload(Job.user)))
    jobs = {job.id: job for job in rows}
    projects = read_projects(session, tenant_id).rows
    queued = [
        QueuedJob(
            position=position + 1,
            job=jobs[ident],
            project=getattr(projects.get(jobs[ident].project_id or ""), "name", ""),
            parts=order.parts(position),
        )
        for position, ident in enumerate(ids, first)
        if ident in jobs
    ]
    return Page(queued, len(order.ids), number, size)
