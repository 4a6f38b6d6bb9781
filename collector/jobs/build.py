"""The preparations of an agent's attempts."""

from collections.abc import Sequence
from pathlib import Path

from collector.gang_networks.build import GangNetworks
from collector.jobs.launcher.preparation import GangLauncher
from collector.jobs.preparations import Preparation


def build_preparations(networks: GangNetworks, data_dir: Path) -> Sequence[Preparation]:
    """Return what prepares attempts, in the order in which it does."""
    own = [] if networks.preparation is None else [networks.preparation]
    return [*own, GangLauncher(data_dir)]
