"""The preparations of an agent's attempts."""

from collections.abc import Callable, Sequence

from collector.config import AgentConfig
from collector.datasets.stager import Stager
from collector.gang_networks.build import GangNetworks
from collector.jobs.images import ImagePreparation
from collector.jobs.launcher.preparation import GangLauncher
from collector.jobs.preparations import Preparation
from collector.jobs.staging import DatasetPreparation
from collector.results.preparation import OutputPreparation
from collector.sending.portal_connection import PortalConnection
from core.clock import Clock
from jobqueue.executors.base import Executor, PullsImages
from timeseries.points import Point

# Executors that mount a folder of the data folder. Simulated jobs write no files.
_MOUNTING, _SIMULATED = "docker", "simulated"


def keeps_results(config: AgentConfig, executor: Executor | None) -> bool:
    """Return whether jobs with output folders may run here."""
    names = executor.names if executor is not None else ()
    return config.results.enabled and not {_MOUNTING, _SIMULATED}.isdisjoint(names)


def build_preparations(
    config: AgentConfig,
    executor: Executor,
    *,
    networks: GangNetworks,
    stager: Stager | None,
    connect: Callable[[], PortalConnection] | None,
    add_points: Callable[[list[Point]], object],
    wake: Callable[[], object],
    clock: Clock,
) -> Sequence[Preparation]:
    """Return what prepares attempts, in the order in which it does.

    Args:
        config: of the agent.
        executor: runs the attempts.
        networks: makes the networks of gangs.
        stager: fetches datasets; None where it can't.
        connect: opens a connection to the portal for one thread; None without a portal.
        add_points: takes samples.
        wake: wakes the thread of attempts.
        clock: the time.
    """
    preparations: list[Preparation] = []
    if networks.preparation is not None:
        preparations.append(networks.preparation)
    preparations += [DatasetPreparation(stager), GangLauncher(config.data_dir)]
    if isinstance(executor, PullsImages):
        preparations.append(ImagePreparation(executor, wake=wake))
    if connect is not None and _MOUNTING in executor.names and keeps_results(config, executor):
        preparations.append(
            OutputPreparation(
                config.results,
                config.data_dir,
                connect,
                add_points=add_points,
                wake=wake,
                clock=clock,
            )
        )
    return preparations
