"""Attempts as jobs of Slurm."""

from collections.abc import Mapping, Sequence

from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.recorded import ExecutorSite, Record
from jobqueue.executors.settings import SlurmSettings
from protocol.attempts import AttemptObservation, AttemptSpec
from protocol.clusters import ClusterKind, ClusterReport


class SlurmExecutor(ClusterExecutor):
    """Runs attempts through Slurm."""

    kind = ClusterKind.SLURM
    name = kind.value
    names: Sequence[str] = (name,)

    def __init__(self, settings: SlurmSettings, site: ExecutorSite) -> None:
        super().__init__(site)
        self._settings = settings

    def read_cluster(self) -> ClusterReport:
        """Return its nodes and queues."""
        raise NotImplementedError

    def _unsupported(self, spec: AttemptSpec) -> str:
        raise NotImplementedError

    def _submit(self, spec: AttemptSpec) -> None:
        raise NotImplementedError

    def _stop(self, attempt_id: str) -> None:
        raise NotImplementedError

    def _delete(self, attempt_id: str) -> None:
        raise NotImplementedError

    def _read(self) -> Mapping[str, AttemptObservation]:
        raise NotImplementedError

    def _copy_output(self, record: Record) -> None:
        raise NotImplementedError
