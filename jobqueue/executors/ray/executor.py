"""Attempts as jobs of Ray."""

from collections.abc import Mapping, Sequence

from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.recorded import ExecutorSite, Record
from jobqueue.executors.settings import RaySettings
from protocol.attempts import AttemptObservation, AttemptSpec
from protocol.clusters import ClusterKind, ClusterReport


class RayExecutor(ClusterExecutor):
    """Runs attempts through Ray."""

    kind = ClusterKind.RAY
    name = kind.value
    names: Sequence[str] = (name,)

    def __init__(self, settings: RaySettings, site: ExecutorSite) -> None:
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
