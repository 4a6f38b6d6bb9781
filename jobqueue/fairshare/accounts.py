"""The tree of a tenant's projects and users, from its rows, with their decayed usage.

A user appears below each project that its jobs belong to. Jobs without a project are below a
sibling of the projects, with one share; where there are no projects, below the tenant itself.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobqueue.fairshare.drf import Filling, QueuedJob, Resources
from jobqueue.fairshare.settings import OrderSettings
from jobqueue.fairshare.tree import ShareNode
from jobqueue.fairshare.usage import Account
from jobqueue.projects.models import Project, ProjectMember

NO_PROJECT = "No project"
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Projects:
    """A tenant's projects, and the shares of their members that differ from 1."""

    rows: Mapping[str, Project]
    member_shares: Mapping[Account, int]

    def account(self, project_id: str | None, user_id: str | None) -> Account:
        """Return the account of a job, which has no project if that is gone."""
        is_listed = project_id is not None and project_id in self.rows
        return Account(project_id or "" if is_listed else "", user_id or "")


def read_projects(session: Session, tenant_id: str) -> Projects:
    """Return the projects of a tenant, with archived ones."""
    projects = session.scalars(select(Project).where(Project.tenant_id == tenant_id))
    shares = select(ProjectMember.project_id, ProjectMember.user_id, ProjectMember.shares)
    members = session.execute(
        shares.where(ProjectMember.tenant_id == tenant_id, ProjectMember.shares != 1)
    )
    return Projects(
        {project.id: project for project in projects},
        {Account(row.project_id, row.user_id): row.shares for row in members},
    )


def billed(seconds: Resources, settings: OrderSettings, *, has_gpus: bool) -> float:
    """Return the usage of seconds of each resource, by the weights of the tenant."""
    gpu_weight, cpu_weight = settings.gpu_usage_weight, settings.cpu_usage_weight
    gpu_weight = (1.0 if has_gpus else 0.0) if gpu_weight is None else gpu_weight
    cpu_weight = (0.0 if has_gpus else 1.0) if cpu_weight is None else cpu_weight
    return (
        gpu_weight * seconds.gpus
        + cpu_weight * seconds.cpus
        + settings.memory_usage_weight * seconds.memory_bytes / _GIB
    )


def share_tree(
    projects: Projects, usage: Mapping[Account, float], accounts: Iterable[Account]
) -> tuple[ShareNode, dict[Account, ShareNode]]:
    """Return the root of the tree, with the nodes of the users by account.

    Args:
        projects: of the tenant.
        usage: decayed, by account; those without a project that is left have none.
        accounts: others that have jobs.
    """
    used: defaultdict[Account, float] = defaultdict(float)
    for account in accounts:
        used[account] += 0.0
    for account, amount in usage.items():
        used[projects.account(account.project_id, account.user_id)] += amount
    users = {
        account: ShareNode(
            id=account.user_id,
            name=account.user_id,
            shares=projects.member_shares.get(account, 1),
            usage=amount,
            is_user=True,
        )
        for account, amount in used.items()
    }
    below: defaultdict[str, list[ShareNode]] = defaultdict(list)
    for account, node in users.items():
        below[account.project_id].append(node)
    return _root(projects, below), users


def _root(projects: Projects, users: Mapping[str, list[ShareNode]]) -> ShareNode:
    children: defaultdict[str, list[Project]] = defaultdict(list)
    for project in projects.rows.values():
        children[project.parent_id or ""].append(project)

    def node_of(project: Project) -> ShareNode:
        nodes = [*users.get(project.id, ()), *map(node_of, children[project.id])]
        return _project_node(project.id, project.name, project.shares, nodes)

    top = [node_of(project) for project in children[""]]
    top = [node for node in top if node.children or projects.rows[node.id].archived_at is None]
    outside = users.get("", [])
    if not projects.rows:
        return _project_node("", "", 1, outside)
    if outside:
        top.append(_project_node("", NO_PROJECT, 1, outside))
    return _project_node("", "", 1, top)


def _project_node(ident: str, name: str, shares: int, children: list[ShareNode]) -> ShareNode:
    usage = sum(child.usage for child in children)
    return ShareNode(id=ident, name=name, shares=shares, usage=usage, children=children)


def filling_tree(
    root: ShareNode,
    users: Mapping[Account, ShareNode],
    running: Mapping[Account, Resources],
    jobs: Mapping[Account, list[QueuedJob]],
) -> Filling:
    """Return the same tree for progressive filling.

    Args:
        root: the tree, whose shares are normalized.
        users: its users by account.
        running: the part of the fleet that each account has.
        jobs: the waiting jobs of each account.
    """
    accounts = {id(node): account for account, node in users.items()}

    def filling_of(node: ShareNode) -> Filling:
        if node.is_user:
            account = accounts[id(node)]
            given = running.get(account, Resources())
            return Filling(node.normalized_shares, allocated=given, jobs=jobs.get(account, []))
        return Filling(node.normalized_shares, [filling_of(child) for child in node.children])

    return filling_of(root)
