"""Fields of a job that executors can't honor, by the executor's name.

Placement leaves such an appliance out, and its executor refuses the attempt. The tables of
`docs/executors-by-field.md` are compared with this by a test.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

from protocol.attempts import AttemptSpec
from protocol.clusters import ClusterKind, options_of
from protocol.gangs import LED_BY_FIRST, JobNetwork, job_network


class Need(StrEnum):
    """A part of a job that not every executor honors; most are names of fields."""

    SERVICE = "service"
    GPUS = "gpus"
    WORKING_DIR = "working_dir"
    SHARED_MEMORY = "shared_memory_bytes"
    MOUNTS = "mounts"
    PORTS = "ports"
    STOP_GRACE = "stop_grace_seconds"
    IMAGE_COMMAND = "no command"
    GPU_SLICE = "gpu_slice"
    GANG_NETWORK = "network gang"
    HOST_NETWORK = "network host"
    RDMA = "uses_rdma"
    GANG = "gang"
    DATASETS = "datasets"
    OUTPUTS = "outputs"
    NO_IMAGE = "no image"
    MEMBERS = "nodes"
    SLURM_OPTIONS = "slurm options"
    RAY_OPTIONS = "ray options"
    KUBERNETES_OPTIONS = "kubernetes options"


_FIELDS = (
    *(Need.WORKING_DIR, Need.SHARED_MEMORY, Need.MOUNTS, Need.PORTS, Need.STOP_GRACE),
    *(Need.RDMA, Need.DATASETS, Need.OUTPUTS),
)
_ON_DOCKER = "which only appliances with the executor docker offer"
# What only the Docker executor does.
_DOCKER_ONLY: Mapping[Need, str] = {
    Need.GPU_SLICE: "runs jobs on whole GPUs only; request gpus in place of a part of one",
    Need.GANG: f"starts no members that the first one leads, as mpi and ray need, {_ON_DOCKER}",
    Need.GANG_NETWORK: f"makes no private network for the members of a gang, {_ON_DOCKER}",
    Need.HOST_NETWORK: f"gives no job the host's network, {_ON_DOCKER}",
    Need.RDMA: f"passes no RDMA devices, {_ON_DOCKER}",
    Need.DATASETS: f"fetches no datasets, {_ON_DOCKER}",
    Need.OUTPUTS: f"keeps no results, {_ON_DOCKER}",
}


# What no cluster does: its own queue decides where a job runs, and its nodes have no agent.
_NOT_ON_CLUSTERS: Mapping[Need, str] = {
    Need.SERVICE: "runs jobs that end, not services",
    Need.MEMBERS: "runs each job on one node; the members of a gang need appliances of their own",
    Need.GPU_SLICE: _DOCKER_ONLY[Need.GPU_SLICE],
    Need.PORTS: "publishes no ports",
    Need.HOST_NETWORK: _DOCKER_ONLY[Need.HOST_NETWORK],
    Need.RDMA: _DOCKER_ONLY[Need.RDMA],
    Need.DATASETS: _DOCKER_ONLY[Need.DATASETS],
    Need.OUTPUTS: _DOCKER_ONLY[Need.OUTPUTS],
}
# What clusters of one kind don't.
_NO_SHARED_MEMORY = "leaves jobs the /dev/shm of their node; remove shared_memory_bytes"
_ON_KINDS: Mapping[ClusterKind, Mapping[Need, str]] = {
    ClusterKind.SLURM: {
        Need.IMAGE_COMMAND: "requires a command; add it to the job",
        Need.SHARED_MEMORY: _NO_SHARED_MEMORY,
    },
    ClusterKind.RAY: {
        Need.IMAGE_COMMAND: "requires a command; add it to the job",
        Need.SHARED_MEMORY: _NO_SHARED_MEMORY,
        Need.MOUNTS: "mounts no folders; use the paths of the nodes in the command",
    },
    ClusterKind.KUBERNETES: {Need.NO_IMAGE: "runs containers; set an image"},
}
_OPTIONS: Mapping[ClusterKind, Need] = {
    ClusterKind.SLURM: Need.SLURM_OPTIONS,
    ClusterKind.RAY: Need.RAY_OPTIONS,
    ClusterKind.KUBERNETES: Need.KUBERNETES_OPTIONS,
}
CLUSTERS = frozenset(kind.value for kind in ClusterKind)


class Limit(NamedTuple):
    """Needs that an executor can't meet together, and why."""

    executor: str
    needs: frozenset[Need]
    reason: str


def _own_containerizer(executor: str) -> tuple[Limit, Limit]:
    runs_them = "runs jobs with GPUs under Mesos' own containerizer, which"
    return (
        Limit(
            executor,
            frozenset({Need.GPUS, Need.WORKING_DIR}),
            f"{executor} {runs_them} can't set working_dir; remove it, or change the folder in the "
            "command",
        ),
        Limit(
            executor,
            frozenset({Need.GPUS, Need.SHARED_MEMORY}),
            f"{executor} {runs_them} can't set shared_memory_bytes; remove it",
        ),
    )


def _docker_only(executor: str) -> Iterator[Limit]:
    for need, reason in _DOCKER_ONLY.items():
        yield Limit(executor, frozenset({need}), f"{executor} {reason}")


def _without_ports(executor: str) -> Limit:
    return Limit(
        executor,
        frozenset({Need.PORTS}),
        f"{executor} publishes no ports; remove them, or submit a service",
    )


def _without_cluster(executor: str) -> Iterator[Limit]:
    """Yield what an executor that runs containers on its own host can't."""
    no_image = f"{executor} runs containers; set an image"
    yield Limit(executor, frozenset({Need.NO_IMAGE}), no_image)
    for kind, need in _OPTIONS.items():
        reason = (
            f"{executor} is no {kind.value.capitalize()} cluster, for which the job has options"
        )
        yield Limit(executor, frozenset({need}), reason)


def _of_cluster(kind: ClusterKind) -> Iterator[Limit]:
    for need, reason in (*_NOT_ON_CLUSTERS.items(), *_ON_KINDS[kind].items()):
        yield Limit(kind, frozenset({need}), f"{kind} {reason}")
    for other, need in _OPTIONS.items():
        if other is not kind:
            reason = (
                f"{kind} is no {other.value.capitalize()} cluster, for which the job has options"
            )
            yield Limit(kind, frozenset({need}), reason)


_NETWORKS = {JobNetwork.GANG: Need.GANG_NETWORK, JobNetwork.HOST: Need.HOST_NETWORK}
_HOSTS = ("docker", "simulated", "marathon", "metronome", "chronos")
LIMITS: Sequence[Limit] = (
    *(limit for name in _HOSTS for limit in _without_cluster(name)),
    *(limit for kind in ClusterKind for limit in _of_cluster(kind)),
    Limit("kubernetes", frozenset({Need.NO_IMAGE}), "kubernetes runs containers; set an image"),
    *(limit for name in ("marathon", "metronome", "chronos") for limit in _docker_only(name)),
    *_own_containerizer("marathon"),
    *_own_containerizer("metronome"),
    _without_ports("metronome"),
    _without_ports("chronos"),
    Limit(
        "chronos",
        frozenset({Need.IMAGE_COMMAND}),
        "chronos requires a command; add the one of the image to the job",
    ),
    Limit(
        ClusterKind.RAY,
        frozenset({Need.IMAGE_COMMAND}),
        "ray requires a command; add the one of the image to the job",
    ),
    Limit(
        "chronos",
        frozenset({Need.STOP_GRACE}),
        "chronos stops jobs after the time of Mesos; remove stop_grace_seconds",
    ),
)
# Executors of the kinds of jobs; where none of them is, any other of the appliance runs a job.
_SERVICES, _BATCH = frozenset({"marathon"}), frozenset({"metronome", "chronos"})


def needs_of(
    job: Any,  # noqa: ANN401 - see below
    *,
    is_service: bool,
    has_slice: bool = False,
) -> frozenset[Need]:
    """Return the needs of a job apart from its GPUs.

    `job` is an attempt's spec, a job, a request for one, or a row with these fields.
    """
    needs = {need for need in _FIELDS if getattr(job, need)}
    needs |= {Need.SERVICE} if is_service else set()
    needs |= {Need.GPU_SLICE} if has_slice else set()
    # A spec has the framework in its gang, and the network that was chosen.
    gang, nodes = getattr(job, "gang", None), getattr(job, "nodes", None) or 1
    framework = gang.framework if gang else getattr(job, "framework", None) or ""
    needs |= {Need.GANG} if framework in LED_BY_FIRST and (gang or nodes > 1) else set()
    needs |= {Need.MEMBERS} if nodes > 1 or gang else set()
    needs |= set() if job.image else {Need.NO_IMAGE}
    options = getattr(job, "cluster_options", None) or {}
    needs |= {need for kind, need in _OPTIONS.items() if options_of(kind, options)}
    network = _NETWORKS.get(job_network(job.network or "", framework, nodes))
    needs |= {network} if network is not None else set()
    return frozenset(needs if job.command else {*needs, Need.IMAGE_COMMAND})


def refusal(executor: str, spec: AttemptSpec) -> str:
    """Return why an executor can't run an attempt, as a sentence, or ""."""
    has_slice = spec.gpu_slice is not None
    needs = needs_of(spec, is_service=spec.is_service, has_slice=has_slice)
    reason = limit_of((executor,), needs, has_gpus=bool(spec.gpu_uuids))
    return f"{reason[:1].upper()}{reason[1:]}." if reason else ""


@cache
def limit_of(executors: tuple[str, ...], needs: frozenset[Need], *, has_gpus: bool) -> str:
    """Return why the executors of an appliance can't run a job, or "".

    A job runs on the executor of its kind. An agent of an earlier version does not name the one
    for batch jobs; it refuses the attempt itself.
    """
    of_kind = (_SERVICES if Need.SERVICE in needs else _BATCH).intersection(executors)
    # An appliance without one of these has a single executor.
    running = of_kind or frozenset(executors) - _SERVICES - _BATCH
    wanted = needs | ({Need.GPUS} if has_gpus else set())
    return next(
        (limit.reason for limit in LIMITS if limit.executor in running and limit.needs <= wanted),
        "",
    )
