"""Clusters that people already run: what a connector tells of them.

A *connector* is an agent on a head node that stands for a whole cluster. The cluster's own queue
decides where an attempt runs; the nodes are appliances without an agent.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import msgspec

MAX_NODES = 5000
MAX_QUEUES = 500
MAX_NODE_GPUS = 64
MAX_DATA_ROOTS = 100
MAX_CLUSTER_TEXT = 300
Text = Annotated[str, msgspec.Meta(max_length=MAX_CLUSTER_TEXT)]
Name = Annotated[str, msgspec.Meta(max_length=100)]
Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
REQUESTED_GPU = "requested-"
# Between the models of a node that has GPUs of several.
MODEL_SEPARATOR = " / "


class ClusterKind(StrEnum):
    """The kinds of clusters; also the names of their executors."""

    SLURM = "slurm"
    RAY = "ray"
    KUBERNETES = "kubernetes"


class NodeState(StrEnum):
    """A drained node finishes its jobs and gets no others; nothing runs on one that is down."""

    UP = "up"
    DRAINED = "drained"
    DOWN = "down"


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster, with what the jobs of all its users have allocated.

    Attributes:
        name: on the cluster.
        state: whether it takes jobs.
        reason: why it does not, in the cluster's words.
        queues: the partitions that it is in.
        cpus: threads that jobs may allocate.
        memory_bytes: likewise.
        gpus: likewise, usually of one model.
        gpu_model: as the cluster names it; "" if it does not; several by `MODEL_SEPARATOR`.
        gpu_memory_bytes: of each; 0 while unknown.
        allocated_cpus: of them.
        allocated_memory_bytes: of it.
        allocated_gpus: of them.
    """

    name: Name
    state: NodeState = NodeState.UP
    reason: Text = ""
    queues: Annotated[list[Name], msgspec.Meta(max_length=MAX_QUEUES)] = []
    cpus: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    memory_bytes: Amount = 0
    gpus: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODE_GPUS)] = 0
    gpu_model: Name = ""
    gpu_memory_bytes: Amount = 0
    allocated_cpus: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    allocated_memory_bytes: Amount = 0
    allocated_gpus: Annotated[int, msgspec.Meta(ge=0, le=MAX_NODE_GPUS)] = 0


class ClusterQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of Slurm, or a queue of Kueue.

    Attributes:
        name: on the cluster.
        is_default: jobs that name none go there.
        is_open: it takes jobs.
        time_limit_seconds: the longest that a job may have; 0 is none.
    """

    name: Name
    is_default: bool = False
    is_open: bool = True
    time_limit_seconds: Amount = 0


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster as its connector sees it.

    Attributes:
        kind: its scheduler.
        name: what its admins call it.
        version: of the scheduler.
        problem: why it takes no jobs now, with its own words; "" if it does.
        runs_images: whether jobs run in containers; else only those without an image do.
        needs_image: whether jobs without an image can't run.
        refuses_secrets: whether jobs with secrets can't run.
        data_roots: those that jobs can mount from; None if they can mount any path of their node,
            or the agent is of a version that does not tell.
        waiting_jobs: how many jobs of all users wait in its queue.
        max_waiting: how many attempts Vedette may have waiting there.
        nodes: all of them.
        queues: those that its jobs may name.
    """

    kind: ClusterKind
    name: Name = ""
    version: Name = ""
    problem: Text = ""
    runs_images: bool = False
    needs_image: bool = False
    refuses_secrets: bool = False
    data_roots: Annotated[list[Text], msgspec.Meta(max_length=MAX_DATA_ROOTS)] | None = None
    waiting_jobs: Amount = 0
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1000
    nodes: Annotated[list[ClusterNode], msgspec.Meta(max_length=MAX_NODES)] = []
    queues: Annotated[list[ClusterQueue], msgspec.Meta(max_length=MAX_QUEUES)] = []


# Options of a job, by the kind of cluster: what they mean to its scheduler.
OPTIONS: dict[ClusterKind, dict[str, str]] = {
    ClusterKind.SLURM: {
        "partition": "Partition; several by commas.",
        "account": "Account that is charged.",
        "qos": "Quality of service.",
        "constraint": "Features that the node must have.",
        "reservation": "Reservation to run in.",
        "dependency": "Jobs of Slurm to wait for, such as afterok:1234.",
        "gres": "Further resources beside GPUs, such as shard:2.",
        "nice": "Lowers the priority.",
    },
    ClusterKind.RAY: {
        "runtime_env": "Runtime environment, as JSON.",
        "resources": "Resources of the entry point beside CPUs, GPUs and memory, as JSON.",
    },
    ClusterKind.KUBERNETES: {
        "queue": "Queue of Kueue.",
        "priority_class": "Priority class of the pod.",
        "node_selector": "Labels that the node must have, such as pool=a,zone=b.",
        "service_account": "Service account of the pod.",
        "image_pull_secret": "Secret with the credentials of the registry.",
    },
}


def option_names() -> list[str]:
    """Return the names of all options, such as `slurm.partition`."""
    return [f"{kind}.{name}" for kind, names in OPTIONS.items() for name in names]


def options_of(kind: ClusterKind, options: dict[str, str]) -> dict[str, str]:
    """Return the options for one kind of cluster, without its name before them."""
    prefix = f"{kind}."
    return {
        name.removeprefix(prefix): value
        for name, value in options.items()
        if name.startswith(prefix)
    }


def root_of(path: str, roots: Iterable[str]) -> str | None:
    """Return the data root that a path is in, the longest of several; None if it is in none."""
    containing = [root for root in roots if path == root or path.startswith(f"{root.rstrip('/')}/")]
    return max(containing, key=len, default=None)


def requested_gpus(count: int) -> list[str]:
    """Return names for GPUs that the cluster has yet to choose."""
    return [f"{REQUESTED_GPU}{number}" for number in range(count)]


def are_requested(gpu_uuids: Iterable[str]) -> bool:
    """Return whether the cluster has yet to choose GPUs, or does not tell which it has chosen."""
    return any(uuid.startswith(REQUESTED_GPU) for uuid in gpu_uuids)


def node_gpu_uuid(node_id: str, index: int) -> str:
    """Return the name of a GPU of a node, whose UUID the cluster does not tell."""
    return f"{node_id}-gpu-{index}"
