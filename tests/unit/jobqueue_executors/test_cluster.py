"""The reading of a cluster in the background, whatever it answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event

import pytest

from jobqueue.executors import cluster
from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.recorded import ExecutorSite, Record
from protocol.attempts import AttemptObservation, AttemptSpec
from protocol.clusters import ClusterKind, ClusterNode, ClusterReport
from tests.fixtures.polling import eventually

REPORT = ClusterReport(kind=ClusterKind.SLURM, version="22.05", nodes=[ClusterNode(name="n1")])


class ScriptedCluster(ClusterExecutor):
    """Gives its readings in turn, the last one for ever."""

    kind = ClusterKind.SLURM
    name = "slurm"
    names: Sequence[str] = ("slurm",)

    def __init__(self, folder: Path, readings: Sequence[Callable[[], ClusterReport]]) -> None:
        super().__init__(ExecutorSite(owner="head", state_dir=folder))
        self._readings = list(readings)

    def read_cluster(self) -> ClusterReport:
        """Return the next reading."""
        read = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        return read()

    def next_report(self) -> ClusterReport:
        """Read once, as the thread does."""
        self._read_once()
        return self.cluster()

    def _unsupported(self, spec: AttemptSpec) -> str:
        raise AssertionError(spec)

    def _submit(self, spec: AttemptSpec) -> None:
        raise AssertionError(spec)

    def _stop(self, attempt_id: str) -> None:
        raise AssertionError(attempt_id)

    def _delete(self, attempt_id: str) -> None:
        raise AssertionError(attempt_id)

    def _read(self) -> Mapping[str, AttemptObservation]:
        return {}

    def _copy_output(self, record: Record) -> None:
        raise AssertionError(record)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., ScriptedCluster]]:
    executors: list[ScriptedCluster] = []

    def open_cluster(*readings: Callable[[], ClusterReport]) -> ScriptedCluster:
        executors.append(ScriptedCluster(tmp_path, readings))
        return executors[-1]

    yield open_cluster
    for executor in executors:
        executor.close()


def test_nodes_stay_while_the_cluster_gives_no_answer(
    opened: Callable[..., ScriptedCluster],
) -> None:
    def refuse() -> ClusterReport:
        raise ExecutorUnavailableError("slurm_load_node: Unable to contact slurm controller")

    def confuse() -> ClusterReport:
        raise KeyError("nodes")

    executor = opened(lambda: REPORT, refuse, confuse, lambda: REPORT)
    seen = [executor.cluster(), *(executor.next_report() for _ in range(3))]
    assert all(report.nodes == REPORT.nodes for report in seen)
    assert "Unable to contact slurm controller" in seen[1].problem
    assert "not known" in seen[2].problem
    assert seen[3] == REPORT


def test_a_cluster_that_hangs_holds_up_no_heartbeat(
    opened: Callable[..., ScriptedCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "FIRST_SECONDS", 0.05)
    answers = Event()

    def hang() -> ClusterReport:
        answers.wait(20)
        return REPORT

    executor = opened(hang)
    assert executor.cluster().problem
    answers.set()
    eventually(lambda: executor.cluster() == REPORT, within_seconds=10, what="its answer")
