"""Addresses and credentials of the schedulers that run jobs: tables of `agent.toml`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[marathon]`, `[metronome]` and `[chronos]`.

    Attributes:
        url: address of the API, with a path on DC/OS (`https://dcos.example.com/service/marathon`).
        username: for HTTP basic, with `password_file`.
        token_file: the token of DC/OS, instead.
        ca_file: trusted authorities (PEM), in place of the system's.
        timeout_seconds: of a request.
    """

    url: str
    username: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    timeout_seconds: Annotated[float, Meta(gt=0)] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MesosSettings(ServerSettings):
    """`[mesos]`: the Mesos agent on this appliance.

    Attributes:
        url: address of its API, for output and reasons; without it there are none.
        hostname: as the agent reports it, by default this host's; `*` runs jobs on any agent.
    """

    url: str = ""
    hostname: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """What the tables of all clusters have.

    Attributes:
        name: of the cluster, for people; by default its own.
        max_waiting: how many attempts may wait in its queue.
    """

    name: str = ""
    max_waiting: Annotated[int, Meta(ge=1, le=100_000)] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings(ClusterSettings):
    """`[slurm]`: the agent runs on a login or head node, as the user whose jobs these are.

    Attributes:
        api: `commands` calls sbatch, squeue, scontrol, sacct and scancel; `rest` calls slurmrestd.
        url: of slurmrestd; `unix:///run/slurmrestd.sock` is a socket.
        token_file: a token of `scontrol token`, read for each request.
        user: whose token it is; by default that of the agent.
        bin_dir: where the commands are; by default they are searched for.
        work_dir: folder for scripts and output that all nodes share; by default in data_dir.
        partition: of jobs that name none.
        account: likewise.
        qos: likewise.
        containers: `oci` runs images by `--container`, from `image_dir`; `pyxis` by
            `--container-image`; `none` runs scripts only.
        image_dir: folder of OCI bundles, by the name of the image.
        timeout_seconds: of a command or request.
    """

    api: Literal["commands", "rest"] = "commands"
    url: str = ""
    token_file: Path | None = None
    user: str = ""
    bin_dir: Path | None = None
    work_dir: Path | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    containers: Literal["none", "oci", "pyxis"] = "none"
    image_dir: Path | None = None
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings(ClusterSettings):
    """`[ray]`: the address of the head's dashboard, which has the Jobs API.

    Attributes:
        url: such as `http://127.0.0.1:8265`.
        token_file: of Ray's token authentication.
        ca_file: trusted authorities (PEM), in place of the system's.
        headers: of every request, such as those of a proxy.
        runs_images: whether the nodes can run images (`image_uri` of the runtime environment).
        passes_secrets: whether jobs with secrets run: all users of the Ray cluster can read them.
        lost_seconds: how long a job may still run after Ray has lost it.
        timeout_seconds: of a request.
    """

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    runs_images: bool = False
    passes_secrets: bool = False
    lost_seconds: Annotated[float, Meta(ge=0)] = 75.0
    timeout_seconds: Annotated[float, Meta(gt=0)] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings(ClusterSettings):
    """`[kubernetes]`: in a pod, its service account; else a kubeconfig.

    Attributes:
        kubeconfig: the file; by default that of the service account of the agent's pod.
        context: of the kubeconfig; by default the current one.
        namespace: of the jobs: one for each tenant.
        queue: of Kueue, for jobs that name none.
        gpu_resource: what a GPU is called.
        volumes: persistent volume claims by the data root whose files they have.
        run_as_user: of all containers, which then are not root; 0 is the image's.
        service_accounts: that jobs may name; others are refused, as a pod gets their rights.
        image_pull_secret: of jobs that name none.
        timeout_seconds: of a request.
    """

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = "vedette"
    queue: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    volumes: dict[str, str] = field(default_factory=dict)
    run_as_user: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    service_accounts: list[str] = field(default_factory=list)
    image_pull_secret: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 10.0
