"""The preparations of an agent's attempts."""

from collections.abc import Sequence

from collector.config import AgentConfig
from collector.jobs.launcher.preparation import GangLauncher
from collector.jobs.preparations import Preparation


def build_preparations(config: AgentConfig) -> Sequence[Preparation]:
    """Return what prepares attempts, in the order in which it does."""
    return (GangLauncher(config.data_dir),)
