"""Which executor runs this appliance's attempts."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from collector.config import AgentConfig
from core.clock import Clock
from jobqueue.executors.base import AttemptSpec, Executor
from jobqueue.executors.simulated import SimulatedExecutor
from plugins.simulation.appliance import SimulatedAppliance, Workload


def build_executor(
    config: AgentConfig, *, simulation: SimulatedAppliance | None, clock: Clock
) -> Executor | None:
    """Return the executor that the configuration asks for; None runs no jobs.

    `auto` is Docker: its engine may appear later, and until then no job is placed here.
    """
    if config.executor == "none":
        return None
    if simulation is not None:
        return simulated_executor(simulation, clock=clock, data_dir=config.data_dir)
    # The engine's client is not loaded where it is not used.
    from jobqueue.executors.docker import DockerExecutor  # noqa: PLC0415

    return DockerExecutor(
        spool_dir=config.data_dir / "attempts", url=config.docker_url, clock=clock
    )


def simulated_executor(
    model: SimulatedAppliance, *, clock: Clock, data_dir: Path
) -> SimulatedExecutor:
    """Return an executor whose attempts load the simulated appliance."""
    return SimulatedExecutor(
        clock,
        on_work=_adder(model),
        on_end=model.remove,
        state_path=data_dir / "simulated-attempts.json",
    )


def _adder(model: SimulatedAppliance) -> Callable[[AttemptSpec, datetime], None]:
    def add(spec: AttemptSpec, started_at: datetime) -> None:
        model.add(
            Workload(
                workload_id=spec.attempt_id,
                gpu_uuids=tuple(spec.gpu_uuids),
                cpus=spec.cpus,
                memory_bytes=spec.memory_bytes,
                is_service=spec.is_service,
                started_at=started_at,
            )
        )

    return add
