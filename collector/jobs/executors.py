"""The executor of this appliance."""

import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from collector.config import AgentConfig
from collector.inventory import simulated_challenges
from core.clock import Clock
from jobqueue.executors.abilities import CLUSTERS
from jobqueue.executors.base import Executor
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.registry_token import CurrentRegistryToken
from jobqueue.executors.settings import KubernetesSettings, MesosSettings, SlurmSettings
from jobqueue.executors.simulated.executor import SimulatedExecutor
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import Workload
from plugins.simulation.host import DISK_BYTES
from protocol.attempts import AttemptSpec
from protocol.gpu_slices import GPUSlice, PartitionMode


def build_executor(
    config: AgentConfig,
    *,
    owner: str,
    simulation: SimulatedAppliance | None,
    registry_token: CurrentRegistryToken,
    clock: Clock,
) -> Executor | None:
    """Return the configured executor; None runs no jobs.

    `auto` is Docker: its engine may start later; until then no job is placed on this appliance.
    `owner` is this appliance's id, by which it knows its own jobs on a shared engine or cluster.
    Docker pulls from the portal's registry with `registry_token`; a Mesos agent has its own
    credentials.
    """
    if config.executor == "none":
        return None
    if simulation is not None:
        return simulated_executor(simulation, clock=clock, data_dir=config.data_dir)
    if config.executor == "marathon":
        return _marathon_executor(config, owner=owner, registry_token=registry_token, clock=clock)
    if config.executor in CLUSTERS:
        return _cluster_executor(config, owner=owner, clock=clock)
    return _docker_executor(config, registry_token, owner=owner, clock=clock)


def _cluster_executor(config: AgentConfig, *, owner: str, clock: Clock) -> Executor:
    """Return the executor of a connector; each needs packages of its own."""
    site = ExecutorSite(
        owner=owner,
        state_dir=config.data_dir / "attempts",
        stop_grace_seconds=config.stop_grace_seconds,
        clock=clock,
    )
    match config.executor:
        case "slurm":
            from jobqueue.executors.slurm.executor import SlurmExecutor  # noqa: PLC0415

            return SlurmExecutor(config.slurm or SlurmSettings(), site)
        case "ray" if config.ray is not None:
            from jobqueue.executors.ray.executor import RayExecutor  # noqa: PLC0415

            return RayExecutor(config.ray, site)
        case _:
            from jobqueue.executors.kubernetes.executor import KubernetesExecutor  # noqa: PLC0415

            return KubernetesExecutor(config.kubernetes or KubernetesSettings(), site)


def _marathon_executor(
    config: AgentConfig, *, owner: str, registry_token: CurrentRegistryToken, clock: Clock
) -> Executor:
    """Return the executor over the configured servers; Docker runs what none of them does."""
    # Imported only if they are used, to save memory.
    from jobqueue.executors.mesos.agent import MesosAgent  # noqa: PLC0415
    from jobqueue.executors.mesos.chronos import ChronosExecutor  # noqa: PLC0415
    from jobqueue.executors.mesos.executor import Site  # noqa: PLC0415
    from jobqueue.executors.mesos.marathon import MarathonExecutor  # noqa: PLC0415
    from jobqueue.executors.mesos.metronome import MetronomeExecutor  # noqa: PLC0415
    from jobqueue.executors.routed import RoutedExecutor  # noqa: PLC0415

    mesos = config.mesos or MesosSettings()
    site = Site(
        owner=owner,
        hostname=mesos.hostname or socket.getfqdn(),
        state_dir=config.data_dir / "attempts",
        mesos=MesosAgent(mesos) if mesos.url else None,
        pids_limit=config.container_pids_limit,
        stop_grace_seconds=config.stop_grace_seconds,
        clock=clock,
    )
    services: Executor | None = None
    batch: Executor | None = None
    if config.marathon is not None:
        services = MarathonExecutor(config.marathon, site)
    if config.metronome is not None:
        batch = MetronomeExecutor(config.metronome, site)
    elif config.chronos is not None:
        batch = ChronosExecutor(config.chronos, site)
    if services is None or batch is None:
        docker = _docker_executor(config, registry_token, owner=owner, clock=clock)
        services, batch = services or docker, batch or docker
    return RoutedExecutor("marathon", services=services, batch=batch)


def _docker_executor(
    config: AgentConfig, registry_token: CurrentRegistryToken, *, owner: str, clock: Clock
) -> Executor:
    from jobqueue.executors.docker.executor import DockerExecutor  # noqa: PLC0415

    return DockerExecutor(
        owner=owner,
        spool_dir=config.data_dir / "attempts",
        url=config.docker_url,
        clock=clock,
        pids_limit=config.container_pids_limit,
        docker_config=config.docker_config_file,
        registry_token=registry_token,
    )


def simulated_executor(
    model: SimulatedAppliance, *, clock: Clock, data_dir: Path
) -> SimulatedExecutor:
    """Return an executor whose attempts put load on the simulated appliance."""
    return SimulatedExecutor(
        clock,
        on_work=_adder(model),
        on_end=model.remove,
        on_fault=model.note_mps_fault,
        state_path=data_dir / "simulated-attempts.json",
        disk=lambda: (DISK_BYTES["/"], model.read(clock()).host.disk_used_bytes["/"]),
        challenges=simulated_challenges(model, clock=clock),
    )


def _adder(model: SimulatedAppliance) -> Callable[[AttemptSpec, datetime], None]:
    def add(spec: AttemptSpec, started_at: datetime) -> None:
        model.add(
            Workload(
                workload_id=spec.attempt_id,
                job_id=spec.job_id,
                gpu_uuids=() if spec.gpu_slice is not None else tuple(spec.gpu_uuids),
                gpu_slice=_slice_of(spec),
                cpus=spec.cpus,
                memory_bytes=spec.memory_bytes,
                is_service=spec.is_service,
                started_at=started_at,
            )
        )

    return add


def _slice_of(spec: AttemptSpec) -> GPUSlice | None:
    """Return the part of a GPU that an attempt has, with the UUID of its MIG instance."""
    if spec.gpu_slice is None or spec.gpu_slice.mode is not PartitionMode.MIG:
        return spec.gpu_slice
    return msgspec.structs.replace(spec.gpu_slice, uuid=spec.gpu_uuids[0])
