"""The spec of a job: every field that a user may set, declared once.

`ContainerSpec` is the part that its appliance gets, `JobSpec` the part that stays with a job, and
`JobRequest` adds what counts only when it is submitted. The REST API, job files, the command line,
the client's types, the audit log and the lists of pages take their fields from here.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from core.spec import MAX_INTEGER, About
from protocol.autoscaling import MAX_INSTANCES, Autoscaling
from protocol.gangs import Framework, JobNetwork

GIB = 1024**3
MIN_MEMORY_BYTES = 16 * 1024**2
MAX_ENTRIES = 20
MAX_GPUS = 1024
MAX_NODES = 256
MAX_PRIORITY = 100
MAX_PORT = 65535
MAX_CHECK_SECONDS = 3600
MAX_PRICE = 10**6
DAY_SECONDS = 86400
MAX_STOP_GRACE_SECONDS = 900
# Samples come every few seconds; loading data between epochs is no idleness.
MIN_IDLE_SECONDS = 60


class JobKind(StrEnum):
    """`batch` ends with its exit code, `service` runs until stopped."""

    BATCH = "batch"
    SERVICE = "service"


class FailureClass(StrEnum):
    """A kind of failure that a job may be tried again after."""

    EXIT = "exit"
    OUT_OF_MEMORY = "out_of_memory"
    START = "start"
    APPLIANCE = "appliance"


class ContainerPolicy(StrEnum):
    """How far a container is confined; see `jobqueue.executors.confinement`."""

    RESTRICTED = "restricted"
    STANDARD = "standard"


class OnMemberLoss(StrEnum):
    """The action of a gang when a member fails or loses its appliance."""

    STOP = "stop"
    RESTART = "restart"
    CONTINUE = "continue"


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A host path in the container; the tenant's data roots must allow it."""

    source: Annotated[str, About("Path on the appliance.")]
    target: Annotated[str, About("Path in the container.")]
    is_read_only: bool = True


class DatasetMount(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset of the tenant, read-only in the container; fetched before the job starts."""

    dataset: Annotated[str, About("Name or ID of the dataset.")]
    target: Annotated[str, About("Path in the container.")]
    version: Annotated[int, About("Its number; 0 is the newest at the submission.")] = 0


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """A TCP port on which the container listens; name the one of a web page `web`."""

    container_port: Annotated[int, About(minimum=1, maximum=MAX_PORT)]
    name: Annotated[str, About("`web` for a web page.")] = ""


class HealthCheckKind(StrEnum):
    """How a service is checked."""

    HTTP = "http"
    TCP = "tcp"
    COMMAND = "command"


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check of a service; it is restarted after `max_failures` in a row."""

    kind: HealthCheckKind
    port: Annotated[int, About("The container's port, for http and tcp.", maximum=MAX_PORT)] = 0
    path: Annotated[str, About("For http: a status of 200 to 399 is healthy.")] = "/"
    command: Annotated[str, About("Shell command: exit code 0 is healthy.")] = ""
    interval_seconds: Annotated[
        float, About("Between two checks.", minimum=1, maximum=MAX_CHECK_SECONDS)
    ] = 10.0
    timeout_seconds: Annotated[
        float, About("Of each check.", minimum=1, maximum=MAX_CHECK_SECONDS)
    ] = 5.0
    grace_seconds: Annotated[
        float, About("Failures this soon after a start don't count.", maximum=MAX_CHECK_SECONDS)
    ] = 60.0
    max_failures: Annotated[int, About(minimum=1, maximum=100)] = 3


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The container of a job."""

    name: Annotated[str, About("For lists; several jobs may have the same.")]
    image: Annotated[
        str,
        About(
            "Container image, such as `python:3.13`; empty for the environment of a cluster's "
            "nodes."
        ),
    ] = ""
    command: Annotated[list[str], About("Words of the command; empty for the image's own.")] = []
    env: Annotated[
        dict[str, str], About("Environment variables, which all users of the tenant can read.")
    ] = {}
    cpus: Annotated[float, About("CPU cores; fractions are allowed.", maximum=65536)] = 1.0
    memory_bytes: Annotated[
        int, About("Memory of the container.", minimum=MIN_MEMORY_BYTES, maximum=MAX_INTEGER)
    ] = GIB
    shared_memory_bytes: Annotated[
        int,
        About("Size of /dev/shm; 0 is half of the memory.", maximum=MAX_INTEGER, is_listed=True),
    ] = 0
    working_dir: Annotated[
        str,
        About(
            "Absolute path in the container; empty for the image's.",
            "Working directory",
            is_listed=True,
        ),
    ] = ""
    mounts: Annotated[
        list[Mount], About("Host paths, in the data roots of the tenant.", maximum=MAX_ENTRIES)
    ] = []
    ports: Annotated[
        list[Port], About("Ports on which the container listens.", maximum=MAX_ENTRIES)
    ] = []
    # Agents store it with a decimal point.
    time_limit_seconds: float = 0.0
    stop_grace_seconds: Annotated[
        int,
        About(
            "From SIGTERM to SIGKILL when it is stopped; 0 is the appliance's setting.",
            "Stop grace period",
            maximum=MAX_STOP_GRACE_SECONDS,
            is_listed=True,
        ),
    ] = 0
    health_check: Annotated[HealthCheck | None, About("Of a service.")] = None
    cluster_options: Annotated[
        dict[str, str],
        About(
            "For the scheduler of a cluster, such as `slurm.partition`: the job runs on a cluster "
            "of that kind only.",
            "Cluster options",
            maximum=MAX_ENTRIES,
            is_listed=True,
        ),
    ] = {}


class JobSpec(ContainerSpec, frozen=True, kw_only=True):
    """A job as the portal stores it."""

    gpus: Annotated[int, About("Whole GPUs, all of one appliance.", maximum=MAX_GPUS)] = 0
    gpu_slice: Annotated[
        str,
        About(
            "MIG profile of the part of a GPU that it needs, such as `1g.10gb`; leave gpus at 0.",
            "GPU slice",
        ),
    ] = ""
    gpu_memory_bytes: Annotated[
        int,
        About(
            "The least memory of each GPU; with gpus at 0, of the part of a GPU that it gets.",
            maximum=MAX_INTEGER,
        ),
    ] = 0
    gpu_compute: Annotated[
        float,
        About(
            "The least share of a GPU's multiprocessors, such as 0.25, of the part that it gets.",
            "GPU compute share",
            maximum=1,
        ),
    ] = 0.0
    gpu_models: Annotated[
        list[str],
        About("Words of which one must be in the GPUs' model, such as H100.", is_listed=True),
    ] = []
    required_labels: Annotated[
        dict[str, str],
        About("Labels that the appliance must have.", maximum=MAX_ENTRIES, is_listed=True),
    ] = {}
    labels: Annotated[
        dict[str, str], About("For finding the job again.", maximum=MAX_ENTRIES, is_listed=True)
    ] = {}
    priority: Annotated[
        int,
        About(
            "A point counts as ten minutes of waiting; values above 0 are for admins.",
            minimum=-MAX_PRIORITY,
            maximum=MAX_PRIORITY,
        ),
    ] = 0
    is_preemptible: Annotated[
        bool, About("May stop for another job, and is queued again then.", is_listed=True)
    ] = False
    time_limit_seconds: Annotated[
        int, About("Of each attempt; 0 is none.", maximum=366 * DAY_SECONDS, is_listed=True)
    ] = 0
    max_retries: Annotated[int, About("Further attempts after failures.", maximum=20)] = 0
    retry_on: Annotated[list[str], About("Failures to retry.", choices=tuple(FailureClass))] = (
        msgspec.field(default_factory=lambda: list(map(str, FailureClass)))
    )
    idle_gpu_percent: Annotated[
        int,
        About("The job stops when its GPUs stay below this utilization; 0 is none.", maximum=100),
    ] = 0
    idle_gpu_seconds: Annotated[
        int,
        About(f"For how long they must, at least {MIN_IDLE_SECONDS}.", maximum=7 * DAY_SECONDS),
    ] = 0
    notify: Annotated[
        list[str],
        About(
            "Whom to notify at its end: `email` is you, others are names of receivers.",
            "Notifies",
            maximum=MAX_ENTRIES,
            is_listed=True,
        ),
    ] = []
    instances: Annotated[
        int, About("Of a service; each is placed by itself.", minimum=1, maximum=MAX_INSTANCES)
    ] = 1
    autoscaling: Annotated[
        Autoscaling | None,
        About("Of a service: how it changes its number of instances by itself."),
    ] = None
    nodes: Annotated[
        int,
        About(
            "Members of a gang: each gets the job's resources on an appliance, and all start "
            "together or none.",
            "Gang members",
            minimum=1,
            maximum=MAX_NODES,
        ),
    ] = 1
    on_member_loss: Annotated[
        str,
        About(
            "When a member of a gang fails: `stop` the others, `restart` all as far as retries "
            "allow, or `continue` without it.",
            "When a member fails",
            choices=tuple(OnMemberLoss),
        ),
    ] = OnMemberLoss.STOP.value
    framework: Annotated[
        str,
        About(
            "Sets what the members of a gang expect to find each other: variables of torch, "
            "tensorflow, paddle or jax, the host file and launcher of mpi, a cluster of ray.",
            choices=tuple(Framework),
            is_listed=True,
        ),
    ] = Framework.NONE.value
    network: Annotated[
        str,
        About(
            "`gang` is a private network of its members, `bridge` the engine's, `host` the "
            "appliance's, if the tenant allows it; empty is gang for a framework with several "
            "members, else bridge.",
            choices=("", *JobNetwork),
            is_listed=True,
        ),
    ] = ""
    uses_rdma: Annotated[
        bool,
        About(
            "Gets the appliance's RDMA devices, if the tenant allows it.",
            "RDMA",
            is_listed=True,
        ),
    ] = False
    datasets: Annotated[
        list[DatasetMount],
        About("Datasets that it reads, fetched before it starts.", maximum=MAX_ENTRIES),
    ] = []
    outputs: Annotated[
        list[str],
        About(
            "Folders in the container whose files are kept as its results, also for its next "
            "attempt.",
            maximum=MAX_ENTRIES,
        ),
    ] = []
    max_gpu_hour_price: Annotated[
        float,
        About(
            "Highest price of a GPU for an hour, for which it also runs on rented appliances; 0 is "
            "own appliances only.",
            "Highest price of a GPU-hour",
            maximum=MAX_PRICE,
            is_listed=True,
        ),
    ] = 0.0
    rental: Annotated[
        dict[str, str],
        About(
            "What a rented appliance must meet: `region`, `compliance`, `availability` in percent, "
            "`reputation` from 0 to 1.",
            "Rental requirements",
            maximum=MAX_ENTRIES,
            is_listed=True,
        ),
    ] = {}


class JobRequest(JobSpec, frozen=True, kw_only=True):
    """A job as a user submits it.

    Secrets are stored encrypted, and no text shows them.
    """

    kind: Annotated[
        JobKind, About("`batch` ends with its command, `service` runs until stopped.")
    ] = JobKind.BATCH
    secrets: Annotated[
        dict[str, str], About("Environment variables that are stored encrypted and never returned.")
    ] = {}
    secrets_from: Annotated[str | None, About("A job of yours, whose secrets are copied.")] = None
    after_ok: Annotated[
        list[str],
        About("Names or IDs of jobs that must succeed before it starts.", maximum=MAX_ENTRIES),
    ] = []
    after_any: Annotated[
        list[str],
        About("Names or IDs of jobs that must end before it starts.", maximum=MAX_ENTRIES),
    ] = []
    array: Annotated[
        str,
        About(
            "Indexes of an array's tasks, such as 0-99, or 0-99%10 with at most 10 running; each "
            "has VEDETTE_ARRAY_INDEX. Empty for one job."
        ),
    ] = ""
    container_policy: Annotated[
        str | None,
        About("One that the tenant allows; null is its default.", choices=tuple(ContainerPolicy)),
    ] = None
    appliance_id: Annotated[
        str | None, About("ID or name of the only appliance that may run it; null for any.")
    ] = None
    project: Annotated[
        str | None,
        About("ID or name of the project that it counts towards; null for the user's default."),
    ] = None

    def __repr__(self) -> str:
        return f"JobRequest({self.name!r})"
