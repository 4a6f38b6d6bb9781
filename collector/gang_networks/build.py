"""The part that makes networks of gangs on this appliance, and what it can do."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from collector.config import AgentConfig
from collector.gang_networks.abilities import (
    AbilitiesReader,
    permission_problem,
    simulated_abilities,
)
from collector.gang_networks.settings import NetworkSettings
from collector.jobs.preparations import Preparation, PreparationError
from jobqueue.executors.base import Executor
from plugins.simulation.appliance import SimulatedAppliance
from protocol.attempts import AttemptSpec
from protocol.gangs import JobNetwork, NetworkAbilities

log = logging.getLogger(__name__)

EXECUTOR = "docker"


@dataclass(frozen=True, slots=True)
class GangNetworks:
    """The abilities for the inventory, and what prepares attempts."""

    abilities: Callable[[], NetworkAbilities]
    preparation: Preparation | None = None


def build_gang_networks(
    config: AgentConfig,
    executor: Executor | None,
    *,
    owner: str,
    simulation: SimulatedAppliance | None,
) -> GangNetworks:
    """Return what makes networks for the attempts of an executor."""
    if simulation is not None:
        return GangNetworks(simulated_abilities)
    if executor is None or executor.name != EXECUTOR:
        abilities = _reader(config.network, config.portal_urls, problem="", can_use_host=False)
        return GangNetworks(abilities)
    problem = permission_problem() if config.network.enabled else "It is disabled in [network]."
    if not problem:
        try:
            return _working(config, owner)
        except _UnableError as error:
            problem = str(error)
    log.info("no private networks for gangs: %s", problem)
    abilities = _reader(config.network, config.portal_urls, problem=problem, can_use_host=True)
    return GangNetworks(abilities, Refusal(problem))


class _UnableError(Exception):
    """The host can't make networks; the text says why."""


class Refusal(Preparation):
    """Prepares attempts on a host that makes no networks: members of gangs with one fail."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    def prepare(self, spec: AttemptSpec) -> AttemptSpec | None:
        """Return the attempt, unless it needs a network.

        Raises:
            PreparationError: it does.
        """
        if spec.network == JobNetwork.GANG:
            raise PreparationError("network_failed", self._problem)
        return spec


def _working(config: AgentConfig, owner: str) -> GangNetworks:
    # They need the package pyroute2, which not every agent has.
    from collector.gang_networks.containers import NetworkContainers  # noqa: PLC0415
    from collector.gang_networks.host import host_abilities  # noqa: PLC0415
    from collector.gang_networks.maker import NetworkMaker  # noqa: PLC0415
    from collector.gang_networks.preparation import GangNetworkPreparation  # noqa: PLC0415
    from collector.gang_networks.wireguard import load_key, public_text  # noqa: PLC0415

    host = host_abilities()
    if host.problem:
        raise _UnableError(host.problem)
    try:
        key = load_key(config.data_dir)
    except OSError as error:
        raise _UnableError(f"The key of WireGuard can't be stored: {error}.") from error
    containers = NetworkContainers(config.docker_url, owner)
    maker = NetworkMaker(containers, owner=owner, key=key, has_wireguard=host.has_kernel_wireguard)
    abilities = _reader(
        config.network,
        config.portal_urls,
        public_key=public_text(key) if host.has_wireguard else "",
        mtu_of=host.mtu_of,
        can_use_host=True,
    )
    return GangNetworks(abilities, GangNetworkPreparation(maker, containers))


def _reader(
    settings: NetworkSettings,
    portal_urls: Sequence[str],
    *,
    can_use_host: bool,
    problem: str = "",
    public_key: str = "",
    mtu_of: Callable[[str], int] = lambda _: 0,
) -> AbilitiesReader:
    return AbilitiesReader(
        settings,
        portal_urls,
        wireguard_public_key=public_key,
        problem=problem,
        can_use_host=can_use_host,
        mtu_of=mtu_of,
    )
