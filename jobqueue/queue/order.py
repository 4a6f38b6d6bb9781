"""The order of a tenant's queue, as users see it: who waits, who has had how much, who is next."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Page
from jobqueue.dispatch.snapshot import placement_order, read_shares, read_snapshot
from jobqueue.fairshare.accounts import NO_PROJECT, filling_tree, read_projects, share_tree
from jobqueue.fairshare.drf import Filling
from jobqueue.fairshare.points import Shares
from jobqueue.fairshare.settings import OrderPolicy, OrderSettings
from jobqueue.fairshare.tree import ShareNode, rank_tree
from jobqueue.fairshare.usage import Account
from jobqueue.jobs.settings import settings_of
from jobqueue.models import Job
from jobqueue.placement.views import Part
from jobqueue.states import WAITING
from tenants.models import User
from tenants.permissions import Permission
from tenants.scope import Scope

TENANT, PROJECT, USER = "tenant", "project", "user"
DELETED_USER = "deleted user"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """A node of the tree: the tenant, a project or a user.

    Attributes:
        depth: below the tenant, which is 0.
        id: of the project or user; None for those without.
        usage: decayed, in hours of what the tenant's weights count.
        level_fair_share: None is infinite: it has shares and used nothing.
        dominant_share: the largest part of a resource of the fleet that its running jobs have.
        rank: of a user, from 1.
    """

    depth: int
    kind: str
    id: str | None
    name: str
    shares: float
    normalized_shares: float
    usage: float
    normalized_usage: float
    level_fair_share: float | None
    dominant_share: float
    rank: int | None
    factor: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTree:
    """A page of the rows of the tree, and how the tenant uses them."""

    page: Page[ShareRow]
    policy: OrderPolicy
    half_life: timedelta
    unit: str


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


def list_shares(
    session: Session,
    scope: Scope,
    *,
    now: datetime,
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> ShareTree:
    """Return the tree of the tenant, each level with the first served first."""
    scope.require(Permission.VIEW)
    tenant_id = scope.require_tenant()
    settings = settings_of(session, tenant_id).ordering
    snapshot = read_snapshot(session, tenant_id, now=now)
    shares = read_shares(session, tenant_id, snapshot, settings)
    root, users = share_tree(shares.projects, shares.usage, _accounts(session, tenant_id, shares))
    rank_tree(root)
    running = {account: used.parts_of(shares.fleet) for account, used in shares.running.items()}
    filling = filling_tree(root, users, running, {})
    filling.prepare()
    rows = list(_rows(root, filling, _user_names(session, users)))
    number, size = max(1, page), max(1, min(page_size, MAX_PAGE_SIZE))
    shown = rows[(number - 1) * size : number * size]
    return ShareTree(
        page=Page(shown, len(rows), number, size),
        policy=settings.policy,
        half_life=settings.half_life,
        unit=_unit(settings, has_gpus=shares.fleet.gpus > 0),
    )


def _accounts(session: Session, tenant_id: str, shares: Shares) -> set[Account]:
    """Return the accounts with jobs that wait or run."""
    waiting = select(Job.project_id, Job.user_id).where(
        Job.tenant_id == tenant_id, Job.state.in_(WAITING)
    )
    rows = session.execute(waiting.distinct())
    return {*shares.running, *(shares.projects.account(*row) for row in rows)}


def _user_names(session: Session, accounts: Iterable[Account]) -> Mapping[str, str]:
    ids = {account.user_id for account in accounts}
    rows = session.execute(select(User.id, User.email).where(User.id.in_(ids)))
    return {row.id: row.email for row in rows}


def _rows(root: ShareNode, filling: Filling, user_names: Mapping[str, str]) -> Iterator[ShareRow]:
    filled = _walk(filling)
    for (depth, node), given in zip(root.walk(), filled, strict=True):
        kind = USER if node.is_user else PROJECT if depth else TENANT
        name = {
            TENANT: "",
            PROJECT: node.name or NO_PROJECT,
            USER: user_names.get(node.id, DELETED_USER),
        }[kind]
        is_root = kind == TENANT
        level = node.level_fair_share
        yield ShareRow(
            depth=depth,
            kind=kind,
            id=node.id or None,
            name=name,
            shares=node.shares,
            normalized_shares=1.0 if is_root else node.normalized_shares,
            usage=node.usage / 3600,
            normalized_usage=1.0 if is_root and node.usage else node.normalized_usage,
            level_fair_share=None if math.isinf(level) or is_root else level,
            dominant_share=given.dominant_share,
            rank=node.rank or None,
            factor=node.factor if node.is_user else None,
        )


def _walk(filling: Filling) -> Iterator[Filling]:
    yield filling
    for child in filling.children:
        yield from _walk(child)


def _unit(settings: OrderSettings, *, has_gpus: bool) -> str:
    """Return what an hour of usage is an hour of."""
    weights = (settings.gpu_usage_weight, settings.cpu_usage_weight)
    if settings.memory_usage_weight or any(weight is not None for weight in weights):
        return "weighted hours"
    return "GPU-hours" if has_gpus else "CPU-hours"
