"""Clusters, their nodes and the jobs on them, as pages show them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.paging import Page
from jobqueue.models import Attempt, Job
from jobqueue.states import ALLOCATED_STATES
from portal.query_string import asked_page
from protocol.clusters import ClusterNode, ClusterReport
from tenants.fleet.clusters import (
    NODE_SORTS,
    TITLES,
    ClusterTotals,
    ListedNode,
    cluster_totals,
    list_nodes,
    read_cluster,
)
from tenants.models import Appliance, ApplianceState
from tenants.scope import Scope

_IMAGES: Final = {
    (True, False): "with and without an image",
    (True, True): "with an image",
    (False, False): "without an image",
    (False, True): "none: it runs no images, but needs one",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A cluster for the page of its connector; `jobs` are those of Vedette, by node."""

    report: ClusterReport
    title: str
    images: str
    totals: ClusterTotals
    nodes: Page[ListedNode]
    sort: str
    jobs: Mapping[str, list[Any]]
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Allocation:
    """How much of a resource of a node is allocated."""

    label: str
    field: str
    used: float
    total: float


def cluster_view(
    session: Session, scope: Scope, connector: Appliance, sort: str
) -> ClusterView | None:
    """Return the cluster of a connector with a page of its nodes; None for other appliances."""
    report = read_cluster(connector)
    if report is None:
        return None
    # By default those that need attention first.
    sort = sort if sort.removeprefix("-") in NODE_SORTS else "state"
    nodes = list_nodes(session, scope, connector.id, sort=sort, **asked_page())
    return ClusterView(
        report=report,
        title=TITLES[report.kind],
        images=_IMAGES[report.runs_images, report.needs_image],
        totals=cluster_totals(session, [connector.id]).get(connector.id, ClusterTotals()),
        nodes=nodes,
        sort=sort,
        jobs=_jobs_by_node(session, scope, [listed.id for listed in nodes.items if listed.id]),
        is_stale=connector.state is not ApplianceState.ONLINE,
    )


def allocations_of(node: ClusterNode) -> list[Allocation]:
    """Return what is allocated of a node."""
    rows = [
        Allocation("CPUs", "cpus", node.allocated_cpus, node.cpus),
        Allocation("Memory", "memory_bytes", node.allocated_memory_bytes, node.memory_bytes),
    ]
    gpus = Allocation("GPUs", "gpus", node.allocated_gpus, node.gpus)
    return [*rows, gpus] if node.gpus else rows


def cluster_titles(appliances: Iterable[Appliance]) -> dict[str, str]:
    """Return the kinds of cluster of those appliances that are connectors, by id."""
    titles = {kind.value: title for kind, title in TITLES.items()}
    return {
        appliance.id: titles.get(appliance.cluster_kind, appliance.cluster_kind)
        for appliance in appliances
        if appliance.cluster_kind
    }


def _jobs_by_node(
    session: Session, scope: Scope, node_ids: Collection[str]
) -> Mapping[str, list[Any]]:
    """Return id and name of the jobs that run on nodes."""
    statement: Any = (
        select(Attempt.node_id, Job.id, Job.name)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.node_id.in_(node_ids), Attempt.state.in_(ALLOCATED_STATES))
        .order_by(Job.id)
    )
    jobs: dict[str, list[Any]] = defaultdict(list)
    for row in session.execute(scope.select(statement, Job)) if node_ids else ():
        jobs[row.node_id].append(row)
    return jobs
