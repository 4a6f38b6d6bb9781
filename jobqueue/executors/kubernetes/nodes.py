"""Nodes and queues of a cluster, from its objects: pure functions.

Source: Kubernetes API reference, Node v1; labels of NVIDIA's GPU feature discovery; Kueue's API
reference, `LocalQueue`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from jobqueue.executors.kubernetes.quantities import quantity
from protocol.clusters import (
    MAX_CLUSTER_TEXT,
    MAX_NODE_GPUS,
    ClusterNode,
    ClusterQueue,
    NodeState,
)

Object = Mapping[str, Any]
MODEL_LABEL, MEMORY_LABEL = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
MEBIBYTE = 2**20
MAX_NAME = 100
# Made by the cluster itself, beside the state that says the same.
STATE_TAINTS = frozenset({"node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"})
DEFAULT_QUEUE = "default"


def requested_by_node(pods: Iterable[Object], gpu_resource: str) -> dict[str, dict[str, float]]:
    """Return what pods that have not ended have requested, by node and resource.

    Init containers run before the others, so the larger of both counts.
    """
    requested: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
        node = spec.get("nodeName")
        if not node or phase in {"Succeeded", "Failed"}:
            continue
        for name in ("cpu", "memory", gpu_resource):
            together = sum(_request(item, name) for item in spec.get("containers") or ())
            first = max(
                (_request(item, name) for item in spec.get("initContainers") or ()), default=0.0
            )
            requested[node][name] += max(together, first)
    return requested


def node_of(node: Object, requested: Mapping[str, float], *, gpu_resource: str) -> ClusterNode:
    """Return a node, with what is requested of it."""
    metadata, status = node["metadata"], node.get("status") or {}
    allocatable, labels = status.get("allocatable") or {}, metadata.get("labels") or {}
    state, reason = _state(node, gpu_resource)
    gpus = min(MAX_NODE_GPUS, int(quantity(allocatable.get(gpu_resource, 0))))
    return ClusterNode(
        name=str(metadata["name"])[:MAX_NAME],
        state=state,
        reason=" ".join(reason.split())[:MAX_CLUSTER_TEXT],
        cpus=quantity(allocatable.get("cpu", 0)),
        memory_bytes=int(quantity(allocatable.get("memory", 0))),
        gpus=gpus,
        gpu_model=str(labels.get(MODEL_LABEL, ""))[:MAX_NAME] if gpus else "",
        gpu_memory_bytes=int(quantity(labels.get(MEMORY_LABEL, 0))) * MEBIBYTE if gpus else 0,
        allocated_cpus=round(requested.get("cpu", 0.0), 3),
        allocated_memory_bytes=int(requested.get("memory", 0)),
        allocated_gpus=min(MAX_NODE_GPUS, int(requested.get(gpu_resource, 0))),
    )


def queue_of(queue: Object, *, default: str) -> ClusterQueue:
    """Return a LocalQueue of Kueue."""
    name = str(queue["metadata"]["name"])
    conditions = (queue.get("status") or {}).get("conditions") or ()
    is_inactive = any(
        item.get("type") == "Active" and item.get("status") == "False" for item in conditions
    )
    policy = (queue.get("spec") or {}).get("stopPolicy", "None")
    return ClusterQueue(
        name=name[:MAX_NAME],
        is_default=name == (default or DEFAULT_QUEUE),
        is_open=not is_inactive and policy == "None",
    )


def is_waiting(pod: Object) -> bool:
    """Return whether a pod has no node yet."""
    phase = (pod.get("status") or {}).get("phase", "Pending")
    return phase == "Pending" and not (pod.get("spec") or {}).get("nodeName")


def _state(node: Object, tolerated: str) -> tuple[NodeState, str]:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready: Object = next((item for item in conditions if item.get("type") == "Ready"), {})
    spec = node.get("spec") or {}
    if ready.get("status") != "True":
        reason = ready.get("message") or ready.get("reason") or "The node has not reported."
        return NodeState.DOWN, str(reason)
    if spec.get("unschedulable"):
        return NodeState.DRAINED, "Cordoned: the node is unschedulable."
    for taint in spec.get("taints") or ():
        key = taint.get("key", "")
        is_hard = taint.get("effect") in {"NoSchedule", "NoExecute"}
        if is_hard and key != tolerated and key not in STATE_TAINTS:
            value = f"={taint['value']}" if taint.get("value") else ""
            return NodeState.DRAINED, f"Taint {key}{value}:{taint['effect']}"
    return NodeState.UP, ""


def _request(container: Object, name: str) -> float:
    resources = container.get("resources") or {}
    wanted = resources.get("requests") or {}
    return quantity(wanted.get(name, (resources.get("limits") or {}).get(name, 0)))
