"""Samples of the cluster that the agent stands for: one point for it, and one for each node."""

from datetime import datetime

from core.clock import to_ns
from jobqueue.executors.base import Executor
from jobqueue.executors.cluster import ClusterExecutor
from protocol.clusters import ClusterNode, ClusterReport, NodeState
from timeseries.points import Point


class ClusterSamples:
    """The samples of a connector; other agents have none."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._sampled: ClusterReport | None = None

    def points(self, now: datetime) -> list[Point]:
        """Return the points of a reading that has none yet.

        A cluster that can't be read has none: its last values may be wrong.
        """
        if not isinstance(self._executor, ClusterExecutor):
            return []
        report = self._executor.cluster()
        if report is self._sampled or report.problem:
            return []
        self._sampled = report
        return cluster_points(report, now)


def cluster_points(report: ClusterReport, now: datetime) -> list[Point]:
    """Return a point for a cluster, and one for each of its nodes."""
    at_ns = to_ns(now)
    fields = {
        "waiting_jobs": float(report.waiting_jobs),
        "nodes": float(len(report.nodes)),
        "nodes_up": float(sum(node.state is NodeState.UP for node in report.nodes)),
        "nodes_drained": float(sum(node.state is NodeState.DRAINED for node in report.nodes)),
        "cpus": sum(node.cpus for node in report.nodes),
        "cpus_allocated": sum(node.allocated_cpus for node in report.nodes),
        "memory_bytes": float(sum(node.memory_bytes for node in report.nodes)),
        "memory_allocated_bytes": float(sum(node.allocated_memory_bytes for node in report.nodes)),
        "gpus": float(sum(node.gpus for node in report.nodes)),
        "gpus_allocated": float(sum(node.allocated_gpus for node in report.nodes)),
    }
    return [
        Point("cluster", {}, fields, at_ns),
        *(Point("cluster_node", {"node": node.name}, _of(node), at_ns) for node in report.nodes),
    ]


def _of(node: ClusterNode) -> dict[str, float]:
    fields = {
        "up": float(node.state is not NodeState.DOWN),
        "cpus": node.cpus,
        "cpus_allocated": node.allocated_cpus,
        "memory_bytes": float(node.memory_bytes),
        "memory_allocated_bytes": float(node.allocated_memory_bytes),
    }
    if node.gpus:
        fields |= {"gpus": float(node.gpus), "gpus_allocated": float(node.allocated_gpus)}
    return fields
