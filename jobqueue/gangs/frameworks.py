"""What frameworks expect in the environment of a gang's members.

Each variable has the meaning that its framework gives it, and is never set where the job sets it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from core.secretbox import SecretBox
from jobqueue.gangs.topology import topology_variables
from jobqueue.gangs.variables import Place, Variable, place_of
from jobqueue.models import Attempt, Job
from protocol.gangs import LAUNCHER_DIR, LED_BY_FIRST, Framework, Gang, NetworkAbilities
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
    place = place_of(job, gang)
    variables = [*_rank(place.rank, place.size), _members(place)]
    variables += _OF_FRAMEWORK.get(framework, _nothing)(place)
    if gang is not None and framework in LED_BY_FIRST:
        variables += _launcher(place, framework)
    return [*variables, *topology_variables(place, gang, abilities or NetworkAbilities())]


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
