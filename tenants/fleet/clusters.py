"""Clusters and their nodes as pages and the API show them: what the connector reported last."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.paging import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, Page, sort_terms
from protocol.clusters import ClusterKind, ClusterNode, ClusterReport, NodeState
from tenants.fleet.appliances import get_appliance
from tenants.fleet.nodes import cluster_of
from tenants.fleet.states import EffectiveStatus, effective_status_of, in_service
from tenants.models import Appliance
from tenants.scope import Scope

TITLES: Final = {
    ClusterKind.SLURM: "Slurm",
    ClusterKind.RAY: "Ray",
    ClusterKind.KUBERNETES: "Kubernetes",
}


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node with what its connector reported last.

    `id`, `name` and `status` are those of its appliance; it has none while a quota leaves it out.
    """

    id: str | None
    name: str
    status: EffectiveStatus | None
    node: ClusterNode


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """The nodes of a cluster in service, with their GPUs."""

    nodes: int = 0
    gpus: int = 0


_STATE_RANK: Final = {NodeState.DOWN: 0, NodeState.DRAINED: 1, NodeState.UP: 2}
NODE_SORTS: Final[Mapping[str, Callable[[ListedNode], Any]]] = {
    "name": lambda listed: listed.name,
    "state": lambda listed: _STATE_RANK[listed.node.state],
    "cpus": lambda listed: listed.node.cpus,
    "memory_bytes": lambda listed: listed.node.memory_bytes,
    "gpus": lambda listed: listed.node.gpus,
    "allocated_cpus": lambda listed: listed.node.allocated_cpus,
    "allocated_memory_bytes": lambda listed: listed.node.allocated_memory_bytes,
    "allocated_gpus": lambda listed: listed.node.allocated_gpus,
}


def read_cluster(appliance: Appliance) -> ClusterReport | None:
    """Return the cluster that a connector reported last; None for other appliances."""
    return cluster_of(appliance.inventory) if appliance.cluster_kind else None


def read_node(appliance: Appliance) -> ClusterNode | None:
    """Return a node as its connector reported it last; None if it doesn't any more."""
    report = read_cluster(appliance.connector) if appliance.connector else None
    name = appliance.inventory.get("hostname")
    nodes = report.nodes if report else []
    return next((node for node in nodes if node.name == name), None)


def list_nodes(
    session: Session,
    scope: Scope,
    appliance_id: str,
    *,
    sort: str = "name",
    page: int = 1,
    page_size: int = DEFAULT_PAGE_SIZE,
) -> Page[ListedNode]:
    """Return the nodes of a connector's cluster; none of other appliances."""
    terms = sort_terms(sort or "name", NODE_SORTS)
    connector = get_appliance(session, scope, appliance_id)
    report = read_cluster(connector)
    rows = {row.inventory.get("hostname"): row for row in _rows(session, connector.id)}
    listed = sorted(
        (
            ListedNode(row.id, row.name, effective_status_of(row), node)
            if (row := rows.get(node.name))
            else ListedNode(None, node.name, None, node)
            for node in (report.nodes if report else ())
        ),
        key=NODE_SORTS["name"],
    )
    for name, is_descending in reversed(terms):
        listed.sort(key=NODE_SORTS[name], reverse=is_descending)
    size = max(1, min(page_size, MAX_PAGE_SIZE))
    start = (page - 1) * size
    return Page(listed[start : start + size], len(listed), page, size)


def cluster_totals(session: Session, connector_ids: Collection[str]) -> dict[str, ClusterTotals]:
    """Return how many nodes and GPUs the clusters of connectors have, by the connector's id."""
    counts = (
        select(Appliance.connector_id, func.count(), func.sum(Appliance.gpu_count))
        .where(Appliance.connector_id.in_(connector_ids), in_service())
        .group_by(Appliance.connector_id)
    )
    rows: Any = session.execute(counts) if connector_ids else ()
    return {ident: ClusterTotals(nodes, int(gpus)) for ident, nodes, gpus in rows}


def connectors(session: Session, scope: Scope) -> list[Any]:
    """Return id, name and kind of cluster of the connectors in service, by name."""
    columns: Any = select(Appliance.id, Appliance.name, Appliance.cluster_kind)
    wanted = columns.where(Appliance.cluster_kind != "", in_service()).order_by(Appliance.name)
    return list(session.execute(scope.select(wanted, Appliance)))


def _rows(session: Session, connector_id: str) -> Any:  # noqa: ANN401 - rows of columns
    columns: Any = select(
        Appliance.id,
        Appliance.name,
        Appliance.inventory,
        Appliance.state,
        Appliance.drained_at,
        Appliance.quarantined_at,
        Appliance.fenced_at,
        Appliance.retired_at,
        Appliance.revoked_at,
    )
    return session.execute(columns.where(Appliance.connector_id == connector_id, in_service()))
