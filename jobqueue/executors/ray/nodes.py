"""The nodes of a Ray cluster, from its state API and its dashboard."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from jobqueue.executors.base import AttemptUsage
from jobqueue.executors.ray.client import Answer
from protocol.clusters import (
    MAX_CLUSTER_TEXT,
    MAX_NODE_GPUS,
    MAX_NODES,
    ClusterNode,
    NodeState,
)

# Ray lists nodes for ever that are gone; those that are gone for longer are left out.
GONE_SECONDS = 3600.0
MAX_NAME = 100
ACCELERATOR = "accelerator_type:"
_ID_CHARS = 8

Summaries = Mapping[str, Answer]
"""What the dashboard tells of each node, by its id."""


def summaries_of(answer: Answer) -> Summaries:
    """Return what `/nodes?view=summary` has of each node."""
    rows = (answer.get("data") or {}).get("summary") or []
    return {row["raylet"]["nodeId"]: row for row in rows if (row.get("raylet") or {}).get("nodeId")}


def usage_of(answer: Answer) -> Mapping[str, Mapping[str, Any]]:
    """Return what `/api/cluster_status` has of the use of nodes; empty if it has nothing."""
    status = (answer.get("data") or {}).get("clusterStatus") or {}
    return (status.get("loadMetricsReport") or {}).get("usageByNode") or {}


def names_of(nodes: Iterable[Answer], summaries: Summaries) -> dict[str, str]:
    """Return the names of nodes by their ids: host names, with a part of the id where needed.

    A node that has come back has its name again, as long as no other one of this name is alive.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for node in sorted(nodes, key=lambda node: (node["state"] != "ALIVE", node["start_time_ms"])):
        ident = node["node_id"]
        raylet = summaries.get(ident, {}).get("raylet") or {}
        name = node.get("node_name") or ""
        if not name or name == node.get("node_ip"):
            name = raylet.get("nodeManagerHostname") or node.get("node_ip") or ident
        if name in taken and node["state"] == "ALIVE":
            name = f"{name[: MAX_NAME - _ID_CHARS - 1]}-{ident[:_ID_CHARS]}"
        taken.add(name)
        names[ident] = name[:MAX_NAME]
    return names


def nodes_of(
    nodes: Iterable[Answer],
    names: Mapping[str, str],
    summaries: Summaries,
    usage: Mapping[str, Mapping[str, Any]],
) -> list[ClusterNode]:
    """Return the nodes that live or have died within an hour, each name once."""
    reported: dict[str, ClusterNode] = {}
    for node in sorted(nodes, key=lambda node: (node["state"] != "ALIVE", -node["start_time_ms"])):
        name = names[node["node_id"]]
        ended_at = (node.get("end_time_ms") or 0) / 1000
        is_gone = node["state"] != "ALIVE" and time.time() - ended_at > GONE_SECONDS
        if name not in reported and not is_gone and len(reported) < MAX_NODES:
            summary = summaries.get(node["node_id"], {})
            reported[name] = _node(node, name, summary, usage.get(node["node_id"], {}))
    return [reported[name] for name in sorted(reported)]


def _node(node: Answer, name: str, summary: Answer, usage: Mapping[str, Any]) -> ClusterNode:
    total = node.get("resources_total") or {}
    state, reason = _state(node, summary)
    models = [key.removeprefix(ACCELERATOR) for key in sorted(total) if key.startswith(ACCELERATOR)]
    gpus = min(int(total.get("GPU", 0)), MAX_NODE_GPUS)
    return ClusterNode(
        name=name,
        state=state,
        reason=reason[:MAX_CLUSTER_TEXT],
        cpus=float(total.get("CPU", 0)),
        memory_bytes=int(total.get("memory", 0)),
        gpus=gpus,
        gpu_model=models[0][:MAX_NAME] if models and gpus else "",
        gpu_memory_bytes=_gpu_memory(summary) if gpus else 0,
        allocated_cpus=_used(usage, "CPU"),
        allocated_memory_bytes=int(_used(usage, "memory")),
        # A GPU of which a job has a part takes no whole one.
        allocated_gpus=min(gpus, -int(-_used(usage, "GPU") // 1)),
    )


def _state(node: Answer, summary: Answer) -> tuple[NodeState, str]:
    if node["state"] != "ALIVE":
        return NodeState.DOWN, str(node.get("state_message") or "The node is dead.")
    snapshot = (summary.get("raylet") or {}).get("stateSnapshot") or {}
    if snapshot.get("state") == "DRAINING":
        return NodeState.DRAINED, str(node.get("state_message") or "Ray drains the node.")
    return NodeState.UP, ""


def _used(usage: Mapping[str, Any], name: str) -> float:
    used = usage.get(name)
    return max(0.0, float(used[0])) if isinstance(used, list) and used else 0.0


def _gpu_memory(summary: Answer) -> int:
    gpus = summary.get("gpus") or []
    return int(gpus[0].get("memoryTotal") or 0) * 2**20 if gpus else 0


def gpu_indices_of(actors: Iterable[Answer], summaries: Summaries) -> dict[str, list[int]]:
    """Return the GPUs that the jobs' entry points have on their nodes, by their actors' names."""
    slots = {
        worker.get("actorId"): worker
        for summary in summaries.values()
        for worker in _workers(summary)
    }
    indices = {}
    for actor in actors:
        worker = slots.get(actor["actor_id"]) or {}
        gpus = ((worker.get("usedResources") or {}).get("GPU") or {}).get("resourceSlots") or []
        if numbers := sorted(int(slot["slot"]) for slot in gpus if slot.get("allocation")):
            indices[actor["name"]] = numbers
    return indices


def nodes_with(drivers: set[str], summaries: Summaries) -> list[str]:
    """Return the ids of the nodes on which tasks or actors of some drivers are."""
    return [
        node_id
        for node_id, summary in summaries.items()
        if drivers.intersection(str(worker.get("jobId")) for worker in _workers(summary))
    ]


def usage_by_driver(
    summaries: Summaries, processes: Mapping[str, list[Answer]]
) -> dict[str, AttemptUsage]:
    """Return what tasks and actors use by the id of their driver, from the processes of nodes."""
    sums: dict[str, tuple[float, int]] = {}
    for node_id, rows in processes.items():
        drivers = {row.get("pid"): row.get("jobId") for row in _workers(summaries[node_id])}
        for process in rows:
            if driver := drivers.get(process.get("pid")):
                cpu, memory = sums.get(driver, (0.0, 0))
                own = (process.get("memoryInfo") or {}).get("rss") or 0
                sums[driver] = cpu + float(process.get("cpuPercent") or 0), memory + int(own)
    return {
        driver: AttemptUsage(cpu_percent=round(cpu, 1), memory_bytes=memory)
        for driver, (cpu, memory) in sums.items()
    }


def _workers(summary: Answer) -> list[Answer]:
    return (summary.get("raylet") or {}).get("coreWorkersStats") or []
