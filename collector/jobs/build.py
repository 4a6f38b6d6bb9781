"""The preparations of an agent's attempts."""

from collections.abc import Sequence

from collector.datasets.stager import Stager
from collector.jobs.preparations import Preparation
from collector.jobs.staging import DatasetPreparation


def build_preparations(*, stager: Stager | None) -> Sequence[Preparation]:
    """Return what prepares attempts, in the order in which it does."""
    return (DatasetPreparation(stager),)
