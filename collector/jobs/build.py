"""The preparations of an agent's attempts."""

from collections.abc import Sequence

from collector.gang_networks.build import GangNetworks
from collector.jobs.preparations import Preparation


def build_preparations(networks: GangNetworks) -> Sequence[Preparation]:
    """Return what prepares attempts, in the order in which it does."""
    return [] if networks.preparation is None else [networks.preparation]
