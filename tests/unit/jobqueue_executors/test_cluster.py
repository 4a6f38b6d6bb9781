"""The reading of a cluster in the background, whatever it answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest

from jobqueue.executors import cluster
from jobqueue.executors.base import ExecutorUnavailableError
from jobqueue.executors.cluster import MAX_BYTES, ClusterExecutor, fitting
from jobqueue.executors.recorded import ExecutorSite, Record
from jobqueue.executors.settings import ClusterSettings
from protocol.attempts import AttemptObservation, AttemptSpec
from protocol.clusters import MAX_NODES, ClusterKind, ClusterNode, ClusterQueue, ClusterReport
from tests.fixtures.polling import eventually

REPORT = ClusterReport(kind=ClusterKind.SLURM, version="22.05", nodes=[ClusterNode(name="n1")])


class ScriptedCluster(ClusterExecutor[ClusterSettings]):
    """Gives its readings in turn, the last one for ever."""

    kind = ClusterKind.SLURM

    def __init__(self, folder: Path, readings: Sequence[Callable[[], ClusterReport]]) -> None:
        super().__init__(ClusterSettings(), ExecutorSite(owner="head", state_dir=folder))
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


def large_report(**changes: Any) -> ClusterReport:  # noqa: ANN401 - the fields of a node
    fields: dict[str, Any] = {"queues": [f"partition-{number:03}" for number in range(20)]}
    nodes = [
        ClusterNode(name=f"node-{number:04}", **{**fields, **changes})
        for number in range(MAX_NODES)
    ]
    return ClusterReport(kind=ClusterKind.SLURM, nodes=nodes)


def test_a_report_that_fits_a_heartbeat_stays_as_it_is() -> None:
    report = large_report(queues=["gpu"], reason="")
    assert fitting(report) is report


@pytest.mark.parametrize(("changes", "queues"), [({}, 4), ({"reason": "x" * 300}, 0)])
def test_a_report_that_exceeds_a_heartbeat_keeps_its_nodes(
    changes: dict[str, Any], queues: int
) -> None:
    report = fitting(large_report(**changes))
    assert len(msgspec.json.encode(report)) <= MAX_BYTES
    assert len(report.nodes) == MAX_NODES
    assert {len(node.queues) for node in report.nodes} == {queues}


def test_even_the_longest_names_fit_a_heartbeat() -> None:
    nodes = large_report(queues=["\x00" * 100] * 500, gpu_model="\x00" * 100).nodes
    queues = [ClusterQueue(name="\x00" * 100)] * 500
    report = fitting(ClusterReport(kind=ClusterKind.SLURM, nodes=nodes[:1000], queues=queues))
    assert len(msgspec.json.encode(report)) <= MAX_BYTES
    assert report.nodes
