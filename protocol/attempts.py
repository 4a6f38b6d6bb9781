"""Attempts between portal and agent: desired state, observations and logs.

An *attempt* is one try at running a job on one appliance. The portal publishes the attempts that
should run, with a generation number; the agent makes its executor match and reports what it
observes. Everything is fenced by the attempt's id, so nothing runs twice.
"""

from enum import StrEnum

import msgspec

from protocol.challenges import ChallengeOrder, ChallengeResult
from protocol.datasets import DatasetOrders, StagedDataset
from protocol.gangs import Gang, JobNetwork
from protocol.gpu_slices import GPUPartition, GPUSlice
from protocol.job_spec import ContainerPolicy, ContainerSpec
from protocol.results import OutputFolders


class ObservedState(StrEnum):
    """The state of an attempt on its executor; the last three are final."""

    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether the attempt has ended."""
        return self in {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.STOPPED}


class Health(StrEnum):
    """The health of a running attempt; unknown without a check.

    It is `restarting` between the exit of a service and its next start.
    """

    UNKNOWN = ""
    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    RESTARTING = "restarting"


class RegistryToken(msgspec.Struct, frozen=True, kw_only=True):
    """A short-lived token to pull the attempts' images from the portal's registry, by its host.

    Agents keep it in memory only.
    """

    host: str
    token: str


class AttemptSpec(ContainerSpec, frozen=True, kw_only=True):
    """The container of a job with what one attempt adds, as its executor gets it.

    Attributes:
        secrets: further environment variables, which are never logged.
        gpu_uuids: the GPUs allocated to it; none for a CPU job.
        gpu_models: on a cluster, the models that its GPUs may be of, as the cluster names them, the
            one that most nodes offer first; empty for any.
        gpu_slice: the part that it gets of its only GPU; None for whole GPUs.
        uses_host_ipc: whether it gets the host's shared memory; the agent sets it for MPS.
        is_service: restarted when it exits; a batch attempt ends with its exit code.
        container_policy: one of `ContainerPolicy`; an agent rejects one that it does not know.
        gang: the gang that it is a member of.
        network: one of `JobNetwork`; an agent rejects one that it does not know.
        sandbox: the container whose network it joins; the agent sets it for `gang`.
        uses_rdma: whether it gets the appliance's RDMA devices.
        datasets: what is staged before it starts.
        outputs: the folders whose files are its results.
        always_pulls: whether its image is pulled even if it is stored, without credentials of the
            appliance: it may be there for a tenant who may pull it, and this one may not.
        registry: the token to pull its image, where that of the appliance is not for it.
    """

    attempt_id: str
    job_id: str
    secrets: dict[str, str] = {}
    gpu_uuids: list[str] = []
    gpu_models: list[str] = []
    gpu_slice: GPUSlice | None = None
    uses_host_ipc: bool = False
    is_service: bool = False
    container_policy: str = ContainerPolicy.RESTRICTED.value
    gang: Gang | None = None
    network: str = JobNetwork.BRIDGE.value
    sandbox: str = ""
    uses_rdma: bool = False
    datasets: list[StagedDataset] = []
    outputs: OutputFolders | None = None
    always_pulls: bool = False
    registry: RegistryToken | None = None


class StagingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the data of an attempt is, before it starts.

    Attributes:
        staged_bytes: of `total_bytes`, with what was cached.
        remaining_seconds: by the rate of the last minute; None while unknown.
    """

    staged_bytes: int
    total_bytes: int
    remaining_seconds: float | None = None


class AttemptObservation(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as its executor reports it.

    Attributes:
        exit_code: of the container's main process, once it has ended.
        reason: a stable code if something went wrong, such as `image_not_found`,
            `image_pull_failed`, `start_failed` (any job could fail so here), `invalid_job` (only
            this one), `gpu_slice_failed` (it can't be made), `gpu_fault_of_neighbor` (another job
            on the same GPU ended it), `out_of_memory`, `exit_code`, `signal`, `time_limit`,
            `stopped_by_user`, `data_unavailable` (its datasets can't be fetched),
            `network_failed` (its gang's network can't be made), `preempted_by_cluster` (for another
            job of the cluster), `node_failed` (it ended with its node).
        message: shown on the job's page; while it starts, the progress.
        endpoints: where its ports listen, by the port's name or number: `127.0.0.1:49153`.
        health: of a service.
        restarts: how often a service was started again, as far as the executor knows.
        gpu_slice_uuid: of its MIG instance.
        staging: while it waits for its datasets or restored results.
        is_prepared: it could start, and waits for the other members of its gang.
        node: of the cluster, where it runs; "" on an appliance.
        gpu_indices: its GPUs on that node; empty if the cluster does not tell.
        started_at_ns, finished_at_ns: by the appliance's clock; None when not yet.
        pull_began_at_ns, pull_ended_at_ns: of its image, by the same clock; None without a pull,
            the second also while it goes on.
    """

    attempt_id: str
    state: ObservedState
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    started_at_ns: int | None = None
    finished_at_ns: int | None = None
    endpoints: dict[str, str] = {}
    health: Health = Health.UNKNOWN
    restarts: int = 0
    gpu_slice_uuid: str = ""
    staging: StagingProgress | None = None
    is_prepared: bool = False
    node: str = ""
    gpu_indices: list[int] = []
    pull_began_at_ns: int | None = None
    pull_ended_at_ns: int | None = None


class StopReason(StrEnum):
    """Why the agent stops an attempt."""

    USER = "stopped_by_user"
    TIME_LIMIT = "time_limit"


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The agent should start a tiny container, as jobs failed to start.

    Attributes:
        number: one that the agent has answered is not run again.
        gpu_uuids: GPUs that the container gets.
        image: if not empty, the engine must also find this image in its registry.
    """

    number: int
    gpu_uuids: list[str] = []
    image: str = ""


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the probe with a number ended; `problem` is empty if its container ran."""

    number: int
    problem: str = ""


class DesiredState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /agent/v1/desired?generation=N&wait_seconds=S: answered at once if N is not current.

    Else the answer is 204, after up to S seconds.

    `attempts` should run; `stopping` should end. The agent stops and removes attempts in neither
    list. `registry` is there if an attempt's image is in the portal's registry.
    While it `wants_tunnel`, the agent opens the tunnel of `protocol.tunnel`. When
    `storage_generation` changes, it reports its container storage (`protocol.storage`). `probe` is
    there while the appliance is quarantined. `gpu_partitions` has the GPUs of which the tenant's
    policy says how they are shared. `datasets` orders what its cache should have. `challenge` is
    there until its result was reported.
    """

    generation: int
    attempts: list[AttemptSpec] = []
    stopping: list[str] = []
    registry: RegistryToken | None = None
    wants_tunnel: bool = False
    storage_generation: int = 0
    probe: ProbeOrder | None = None
    gpu_partitions: list[GPUPartition] = []
    datasets: DatasetOrders = DatasetOrders()
    challenge: ChallengeOrder | None = None


class ObservedReport(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/observed: sent on every change, and every 10 s; `probe` is the last result.

    `challenge` is the result of the one that is ordered.
    """

    attempts: list[AttemptObservation]
    probe: ProbeResult | None = None
    challenge: ChallengeResult | None = None


class LogChunk(msgspec.Struct, frozen=True, kw_only=True):
    """New output of an attempt."""

    attempt_id: str
    offset: int
    data: bytes


class LogUpload(msgspec.Struct, frozen=True, kw_only=True):
    """POST /agent/v1/logs, as MessagePack: new output of attempts, one chunk of each."""

    chunks: list[LogChunk]


class LogAck(msgspec.Struct, frozen=True, kw_only=True):
    """The next offset to send of an attempt.

    A chunk at another offset than the stored size is not stored; the agent goes on from
    `next_offset`. `is_full`: the log reached its limit, and no more is stored. `is_unknown`: the
    appliance has no such attempt.
    """

    next_offset: int
    is_full: bool = False
    is_unknown: bool = False


class LogReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to `LogUpload`: a `LogAck` for each chunk, in their order."""

    acks: list[LogAck]
