"""Builders for tests of jobs on clusters: nodes like a DGX with 4 GPUs, and their connector."""

# ruff: noqa: ANN401 - builders pass any field on

from typing import Any

from jobqueue.placement.clusters import ClusterView
from jobqueue.placement.views import ApplianceView
from protocol.clusters import ClusterKind, ClusterNode, ClusterReport
from tests.unit.jobqueue.builders import GIB, appliance


def node(name: str, **changes: Any) -> ClusterNode:
    """An idle node with 4 H100 of 80 GiB, 64 CPUs and 512 GiB."""
    fields: dict[str, Any] = {
        "name": name,
        "cpus": 64.0,
        "memory_bytes": 512 * GIB,
        "gpus": 4,
        "gpu_model": "H100",
        "gpu_memory_bytes": 80 * GIB,
    }
    return ClusterNode(**(fields | changes))


def full(name: str, **changes: Any) -> ClusterNode:
    """Such a node, all of which is allocated."""
    taken = {"allocated_cpus": 64.0, "allocated_memory_bytes": 512 * GIB, "allocated_gpus": 4}
    return node(name, **(taken | changes))


def report(*nodes: ClusterNode, **changes: Any) -> ClusterReport:
    """What the connector of a Slurm cluster that runs images reports."""
    fields: dict[str, Any] = {"kind": ClusterKind.SLURM, "runs_images": True, "nodes": list(nodes)}
    return ClusterReport(**(fields | changes))


def connector(name: str, *nodes: ClusterNode, running: Any = (), **changes: Any) -> ApplianceView:
    """The connector of such a cluster as placement sees it; its id is its name."""
    view = ClusterView.of(report(*nodes, **changes))
    return appliance(
        name,
        gpus=0,
        executors=("slurm",),
        cpus=float(view.cpus[view.is_up].sum()),
        memory_bytes=int(view.memory_bytes[view.is_up].sum()),
        cluster=view,
        running=running,
    )
