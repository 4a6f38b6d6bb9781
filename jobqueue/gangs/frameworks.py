"""What frameworks and communication libraries expect in the environment of a gang's members.

Each variable has the meaning that its framework gives it, and is never set where the job sets it.

Sources of those that follow from network and GPUs: NCCL's documentation, "Environment Variables";
PyTorch's, "Choosing the network interface to use"; the MCA parameters of Open MPI; UCX's FAQ.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from sqlalchemy.orm import Session

from core.secretbox import SecretBox
from jobqueue.gangs.members import gangs_of, network_of
from jobqueue.models import Attempt, Job
from protocol.gangs import (
    GANG_INTERFACE,
    LAUNCHER_DIR,
    LED_BY_FIRST,
    Framework,
    Gang,
    GangMember,
    JobNetwork,
    NetworkAbilities,
)
from tenants.models.appliances import decode_inventory

SECRET_VARIABLE = "VEDETTE_GANG_SECRET"  # noqa: S105 - its name
RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - its name
_LAUNCHER_PORT = 7070
_TORCH_PORT, _TENSORFLOW_PORT, _PADDLE_PORT = 29500, 2222, 37777
_JAX_PORT, _RAY_PORT = 1234, 6379
# Members start at different times: images are pulled.
_JOIN_SECONDS = 1800
# The dataset of one may take hours that another one has cached. The portal ends a member that
# waits for one that has failed.
_DATA_JOIN_SECONDS = 24 * 3600
_LOOPBACK = "127.0.0.1"
# Ports on the appliance's own network, where several gangs may meet.
_FIRST_HOST_PORT, _HOST_PORTS = 20_000, 10_000
_OWN = "The job sets it."
_HIDDEN = "The job sets it as a secret."


class Variable(NamedTuple):
    """An environment variable that a member gets unless its job sets it."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a member in its gang.

    Attributes:
        hosts: by rank, what the others reach each member by.
        addresses: by rank.
        processes: of each member; one for each GPU, or one.
        run_id: differs between gangs.
    """

    job: Job
    network: JobNetwork
    rank: int
    hosts: list[str]
    addresses: list[str]
    processes: int
    run_id: str

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.hosts)

    def port(self, usual: int) -> int:
        """Return the port for a purpose: the usual one, unless other gangs may listen there."""
        if self.network is not JobNetwork.HOST or not self.run_id:
            return usual
        return _FIRST_HOST_PORT + crc32(f"{self.run_id}/{usual}".encode()) % _HOST_PORTS


@dataclass(frozen=True, slots=True)
class FrameworkDescription:
    """The framework of a job.

    Attributes:
        framework: that it has.
        network: which its containers have.
        rank: of this member.
        size: the number of members.
        members: as others reach them; none before the job is placed.
        variables: which the member gets; none before the job is placed.
    """

    framework: Framework
    network: JobNetwork
    rank: int
    size: int
    members: Sequence[GangMember] = field(default_factory=tuple)
    variables: Sequence[Variable] = field(default_factory=tuple)


def framework_variables(
    job: Job, gang: Gang | None, abilities: NetworkAbilities | None = None
) -> list[Variable]:
    """Return the variables of a member.

    Args:
        job: the member.
        gang: of the member; None for a job that is in none.
        abilities: what its appliance offers to gangs.
    """
    framework = Framework(job.framework)
    if gang is None and job.nodes > 1:
        return [*_rank(job.array_index or 0, job.nodes)]
    if gang is None and framework is Framework.NONE:
        return []
    place = _place_of(job, gang)
    variables = [*_rank(place.rank, place.size), _members(place)]
    variables += _OF_FRAMEWORK.get(framework, _nothing)(place)
    if gang is not None and framework in LED_BY_FIRST:
        variables += _launcher(place, framework)
    return [*variables, *_topology(place, gang, abilities or NetworkAbilities())]


def framework_env(
    job: Job, gang: Gang | None, abilities: NetworkAbilities | None = None
) -> Mapping[str, str]:
    """Return the variables that a job's framework expects; those of the job itself go first."""
    return {name: value for name, value, _ in framework_variables(job, gang, abilities)}


def abilities_of(attempt: Attempt) -> NetworkAbilities | None:
    """Return what an attempt's appliance offers to gangs, if that matters to its job."""
    if not attempt.job.uses_rdma:
        return None
    return decode_inventory(attempt.appliance.inventory).network


def framework_secrets(gang: Gang | None, box: SecretBox) -> Mapping[str, str]:
    """Return the secret by which members that the first one leads authenticate each other."""
    if gang is None or gang.framework not in LED_BY_FIRST:
        return {}
    secrets = {SECRET_VARIABLE: box.derive(f"gang:{gang.gang_id}")}
    if gang.framework is Framework.RAY:
        secrets[RAY_TOKEN] = box.derive(f"ray:{gang.gang_id}")
    return secrets


def framework_description(session: Session, job: Job) -> FrameworkDescription:
    """Return what a job's latest attempt gets for its framework."""
    attempt = job.attempt
    gang = gangs_of(session, [attempt]).get(attempt.id) if attempt else None
    variables = framework_variables(job, gang, abilities_of(attempt)) if attempt else []
    return FrameworkDescription(
        framework=Framework(job.framework),
        network=network_of(job),
        rank=job.array_index or 0 if job.nodes > 1 else 0,
        size=job.nodes,
        members=gang.members if gang else (),
        variables=[_as_set(job, variable) for variable in variables],
    )


def _as_set(job: Job, variable: Variable) -> Variable:
    """Return a variable as the container gets it: those of the job go first."""
    if variable.name in job.secret_names:
        return Variable(variable.name, "", _HIDDEN)
    if variable.name in job.env:
        return Variable(variable.name, job.env[variable.name], _OWN)
    return variable


def _place_of(job: Job, gang: Gang | None) -> Place:
    """Return the place of a member; a job without a gang is the only member of its own."""
    members = [] if gang is None else gang.members
    return Place(
        job=job,
        network=network_of(job),
        rank=0 if gang is None else gang.rank,
        hosts=[_LOOPBACK] if gang is None else gang.hosts,
        addresses=[member.address for member in members] or [_LOOPBACK],
        processes=job.gpus or 1,
        run_id="" if gang is None else gang.gang_id,
    )


def _rank(rank: int, size: int) -> Iterator[Variable]:
    yield Variable("VEDETTE_GANG_RANK", str(rank), "The member's rank.")
    yield Variable("VEDETTE_GANG_SIZE", str(size), "The number of members.")


def _members(place: Place) -> Variable:
    reason = "The members by rank, as each reaches the others."
    return Variable("VEDETTE_GANG_MEMBERS", ",".join(place.hosts), reason)


def _nothing(_place: Place) -> Sequence[Variable]:
    return ()


def _torch(place: Place) -> Iterator[Variable]:
    """Yield what torchrun and `init_process_group` read.

    torchrun takes each option from `PET_` and its name. The static rendezvous gives the first
    member rank 0; that of c10d numbers members as they come.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html and
    https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization;
    the names are those of Kubeflow's PyTorchJob.
    """
    env = place.job.env
    address = env.get("MASTER_ADDR", place.hosts[0])
    port = env.get("MASTER_PORT", str(place.port(_TORCH_PORT)))
    world = place.size * place.processes
    yield Variable("MASTER_ADDR", address, "The first member.")
    yield Variable("MASTER_PORT", port, "Where the first member listens.")
    yield Variable("NODE_RANK", str(place.rank), "The member's rank.")
    yield Variable("WORLD_SIZE", str(world), "Processes of all members.")
    if place.processes == 1:
        single = "A member has one process, which also runs without torchrun."
        yield Variable("RANK", str(place.rank), single)
        yield Variable("LOCAL_RANK", "0", single)
    yield Variable("PET_NNODES", str(place.size), "torchrun: the number of members.")
    yield Variable("PET_NODE_RANK", str(place.rank), "torchrun: the member's rank.")
    per_member = "torchrun: one process for each GPU." if place.job.gpus else "torchrun: no GPUs."
    yield Variable("PET_NPROC_PER_NODE", str(place.processes), per_member)
    yield Variable("PET_MASTER_ADDR", address, "torchrun: the first member.")
    yield Variable("PET_MASTER_PORT", port, "torchrun: where the first member listens.")
    yield Variable("PET_RDZV_BACKEND", "static", "torchrun: process 0 is on the first member.")
    yield Variable("PET_RDZV_ENDPOINT", f"{address}:{port}", "torchrun: the first member.")
    yield Variable("PET_RDZV_ID", place.run_id or place.job.id, "torchrun: the gang.")
    seconds = _join_seconds(place)
    waits = f"timeout={seconds},join_timeout={seconds}"
    late = "torchrun: waits for members whose image is pulled, or whose data is fetched."
    yield Variable("PET_RDZV_CONF", waits, late)


def _tensorflow(place: Place) -> Iterator[Variable]:
    """Yield what `MultiWorkerMirroredStrategy` reads.

    Source: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
    """
    port = place.port(_TENSORFLOW_PORT)
    # Members of one appliance share its network on `host`.
    ports = [port + rank for rank in range(place.size)]
    workers = [f"{host}:{number}" for host, number in zip(place.hosts, ports, strict=True)]
    task = {"type": "worker", "index": place.rank}
    config = {"cluster": {"worker": workers}, "task": task}
    yield Variable("TF_CONFIG", json.dumps(config), "The cluster, and this member's task in it.")


def _paddle(place: Place) -> Iterator[Variable]:
    """Yield what `paddle.distributed.launch` and `init_parallel_env` read.

    Source: `python/paddle/distributed/launch/context/args_envs.py` of PaddlePaddle, and Kubeflow's
    PaddleJob.
    """
    port = place.port(_PADDLE_PORT)
    own = place.addresses[place.rank]
    launch = "paddle.distributed.launch"
    yield Variable("PADDLE_MASTER", f"{place.addresses[0]}:{port}", f"{launch}: the first member.")
    yield Variable("PADDLE_NNODES", str(place.size), f"{launch}: the number of members.")
    yield Variable("PADDLE_NPROC_PER_NODE", str(place.processes), f"{launch}: one for each GPU.")
    yield Variable("PADDLE_JOB_ID", place.run_id or place.job.id, f"{launch}: the gang.")
    yield Variable("POD_IP", own, f"{launch}: the member's address.")
    yield Variable("PADDLE_TRAINER_ID", str(place.rank), "The member's rank.")
    yield Variable("PADDLE_TRAINERS_NUM", str(place.size), "The number of members.")
    if place.processes == 1:
        single = "A member has one process, which also runs without the launcher."
        ends = [f"{host}:{port + 1 + rank}" for rank, host in enumerate(place.addresses)]
        yield Variable("PADDLE_TRAINER_ENDPOINTS", ",".join(ends), single)
        yield Variable("PADDLE_CURRENT_ENDPOINT", ends[place.rank], single)


def _jax(place: Place) -> Iterator[Variable]:
    """Yield the arguments of `jax.distributed.initialize`, of which it reads the first itself.

    Source: https://docs.jax.dev/en/latest/multi_process.html
    """
    port = place.port(_JAX_PORT)
    first = f"{place.hosts[0]}:{port}"
    yield Variable("JAX_COORDINATOR_ADDRESS", first, "The first member coordinates.")
    yield Variable("JAX_NUM_PROCESSES", str(place.size), "One process for each member.")
    yield Variable("JAX_PROCESS_ID", str(place.rank), "The member's rank.")


def _mpi(place: Place) -> Iterator[Variable]:
    """Yield what lets the `mpirun` of Open MPI 4 and 5, MPICH and Intel MPI start its daemons.

    Source: the MCA parameters of Open MPI and PRRTE, the variables of MPICH's and Intel's Hydra,
    as Kubeflow's MPI operator sets them.
    """
    for library in ("OMPI", "PRTE"):
        root = "Root of a container is none of the appliance."
        yield Variable(f"{library}_ALLOW_RUN_AS_ROOT", "1", root)
        yield Variable(f"{library}_ALLOW_RUN_AS_ROOT_CONFIRM", "1", root)
    if not place.run_id:
        return
    launch, hosts = f"{LAUNCHER_DIR}/launch", f"{LAUNCHER_DIR}/hostfile"
    hydra_hosts = f"{LAUNCHER_DIR}/hydra-hosts"
    agent, listed = "Starts daemons on members, in place of ssh.", "The members."
    yield Variable("OMPI_MCA_plm_rsh_agent", launch, agent)
    yield Variable("OMPI_MCA_orte_default_hostfile", hosts, listed)
    yield Variable("PRTE_MCA_plm_ssh_agent", launch, agent)
    yield Variable("PRTE_MCA_prte_default_hostfile", hosts, listed)
    yield Variable("HYDRA_LAUNCHER", "ssh", "MPICH: starts daemons by the next program.")
    yield Variable("HYDRA_LAUNCHER_EXEC", launch, agent)
    yield Variable("HYDRA_HOST_FILE", hydra_hosts, listed)
    yield Variable("I_MPI_HYDRA_BOOTSTRAP", "ssh", "Intel MPI: starts daemons by the next program.")
    yield Variable("I_MPI_HYDRA_BOOTSTRAP_EXEC", launch, agent)
    yield Variable("I_MPI_HYDRA_HOST_FILE", hydra_hosts, listed)


def _ray(place: Place) -> Iterator[Variable]:
    """Yield what `ray.init()` and `ray start` read.

    Source: https://docs.ray.io/en/latest/ray-core/starting-ray.html and, for Ray since 2.52,
    https://docs.ray.io/en/latest/ray-security/token-auth.html
    """
    yield Variable("RAY_USAGE_STATS_ENABLED", "0", "Ray reports nothing to its makers.")
    if not place.run_id:
        return
    address = f"{place.hosts[0]}:{place.port(_RAY_PORT)}"
    token = f"Members authenticate each other by {RAY_TOKEN}, which is not shown."
    yield Variable("RAY_AUTH_MODE", "token", token)
    cpus = max(1, int(place.job.cpus))
    yield Variable("RAY_ADDRESS", address, "The cluster's head is on the first member.")
    options = f"--num-cpus={cpus} --num-gpus={place.job.gpus}"
    yield Variable("VEDETTE_RAY_OPTIONS", options, "Options of `ray start`: what a member has.")


def _launcher(place: Place, framework: Framework) -> Iterator[Variable]:
    """Yield what the launcher reads that leads the members; see docs/training.md."""
    port = place.port(_LAUNCHER_PORT)
    yield Variable("VEDETTE_GANG_FRAMEWORK", framework.value, "What the first member starts.")
    yield Variable("VEDETTE_GANG_PORT", str(port), "Where members listen, each at its rank more.")
    if (seconds := _join_seconds(place)) != _JOIN_SECONDS:
        late = "The first member waits for those whose data is fetched."
        yield Variable("VEDETTE_GANG_JOIN_SECONDS", str(seconds), late)


def _join_seconds(place: Place) -> int:
    return _DATA_JOIN_SECONDS if place.job.datasets else _JOIN_SECONDS


_OF_FRAMEWORK: Mapping[Framework, Callable[[Place], Iterator[Variable] | Sequence[Variable]]] = {
    Framework.TORCH: _torch,
    Framework.TENSORFLOW: _tensorflow,
    Framework.PADDLE: _paddle,
    Framework.MPI: _mpi,
    Framework.RAY: _ray,
    Framework.JAX: _jax,
}


def _topology(place: Place, gang: Gang | None, abilities: NetworkAbilities) -> Iterator[Variable]:
    """Yield the variables of NCCL, Gloo, Open MPI and UCX for a member."""
    rdma_devices = abilities.rdma_devices if place.job.uses_rdma else []
    if place.job.framework == Framework.MPI:
        yield Variable(
            "OMPI_MCA_btl_vader_single_copy_mechanism",
            "none",
            "A container may not read the memory of another process.",
        )
    if gang is not None and place.network is JobNetwork.GANG:
        yield from _interface(place, has_rdma=bool(rdma_devices))
    if place.job.wants_gpus and place.size > 1:
        yield from _nccl(place, rdma_devices)
    if gang is not None and place.job.wants_gpus and place.network is JobNetwork.HOST:
        yield from _host_id(place, gang)
    if rdma_devices:
        devices = ",".join(f"{name}:1" for name in rdma_devices)
        yield Variable("UCX_NET_DEVICES", devices, "The appliance's RDMA devices.")


def _interface(place: Place, *, has_rdma: bool) -> Iterator[Variable]:
    reason = "The interface of the gang's network; others don't lead to members."
    yield Variable("GLOO_SOCKET_IFNAME", GANG_INTERFACE, reason)
    yield Variable("TP_SOCKET_IFNAME", GANG_INTERFACE, reason)
    if place.job.wants_gpus:
        yield Variable("NCCL_SOCKET_IFNAME", f"={GANG_INTERFACE}", reason)
    if place.job.framework != Framework.MPI:
        return
    yield Variable("OMPI_MCA_btl_tcp_if_include", GANG_INTERFACE, reason)
    yield Variable("OMPI_MCA_oob_tcp_if_include", GANG_INTERFACE, reason)
    yield Variable("PRTE_MCA_prte_if_include", GANG_INTERFACE, reason)
    if not has_rdma:
        yield Variable("UCX_NET_DEVICES", GANG_INTERFACE, reason)


def _nccl(place: Place, rdma_devices: list[str]) -> Iterator[Variable]:
    if rdma_devices:
        devices = f"={','.join(rdma_devices)}"
        yield Variable("NCCL_IB_HCA", devices, "The appliance's RDMA devices.")
    elif place.job.uses_rdma:
        yield Variable("NCCL_IB_DISABLE", "1", "The appliance has no RDMA devices.")
    else:
        yield Variable("NCCL_IB_DISABLE", "1", "The job has no RDMA devices: uses_rdma is not set.")
    if not place.job.gpus:
        reason = "Parts of GPUs don't reach each other's memory."
        yield Variable("NCCL_P2P_DISABLE", "1", reason)


def _host_id(place: Place, gang: Gang) -> Iterator[Variable]:
    members = Counter(member.appliance_id for member in gang.members)
    if members[gang.members[place.rank].appliance_id] > 1:
        yield Variable(
            "NCCL_HOSTID",
            f"member-{place.rank}",
            "Other members on this appliance are in containers of their own: they share no memory.",
        )
