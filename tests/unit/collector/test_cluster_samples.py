"""Samples of the cluster that a connector stands for."""

from collections.abc import Mapping
from pathlib import Path

from collector.jobs.cluster_samples import ClusterSamples, cluster_points
from jobqueue.executors.cluster import ClusterExecutor
from jobqueue.executors.recorded import ExecutorSite, Record
from jobqueue.executors.settings import ClusterSettings
from protocol.attempts import AttemptObservation, AttemptSpec
from protocol.clusters import ClusterKind, ClusterReport, NodeState
from tests.cast import NOON
from tests.fixtures.clusters import GIB, cluster, node
from timeseries.declared import DECLARED


class ListedCluster(ClusterExecutor[ClusterSettings]):
    """A cluster without jobs, of which a test sets what was read last."""

    kind = ClusterKind.SLURM
    read = ClusterReport(kind=kind)

    def cluster(self) -> ClusterReport:
        return self.read

    def read_cluster(self) -> ClusterReport:
        return self.read

    def _unsupported(self, spec: AttemptSpec) -> str:
        return f"{spec.attempt_id} is not run"

    def _submit(self, spec: AttemptSpec) -> None:
        raise NotImplementedError

    def _stop(self, attempt_id: str) -> None:
        raise NotImplementedError

    def _delete(self, attempt_id: str) -> None:
        raise NotImplementedError

    def _read(self) -> Mapping[str, AttemptObservation]:
        return {}

    def _copy_output(self, record: Record) -> None:
        raise NotImplementedError


REPORT = cluster(
    node("n1", allocated_cpus=32.0, allocated_gpus=1, allocated_memory_bytes=GIB),
    node("n2", state=NodeState.DRAINED),
    node("n3", state=NodeState.DOWN, gpus=0),
    waiting_jobs=7,
)


def test_a_reading_is_sampled_once_and_not_while_there_is_a_problem(tmp_path: Path) -> None:
    executor = ListedCluster(ClusterSettings(), ExecutorSite(owner="login", state_dir=tmp_path))
    samples = ClusterSamples(executor)
    executor.read = REPORT
    assert len(samples.points(NOON)) == 4
    assert samples.points(NOON) == []
    executor.read = cluster(*REPORT.nodes, problem="slurmctld: refused")
    assert samples.points(NOON) == []
    executor.read = cluster(*REPORT.nodes)
    assert len(samples.points(NOON)) == 4


def test_the_points_have_totals_and_nodes() -> None:
    whole, first, second, third = cluster_points(REPORT, NOON)
    assert whole.fields == {
        "waiting_jobs": 7.0,
        "nodes": 3.0,
        "nodes_up": 1.0,
        "nodes_drained": 1.0,
        "cpus": 192.0,
        "cpus_allocated": 32.0,
        "memory_bytes": 1536.0 * GIB,
        "memory_allocated_bytes": 1.0 * GIB,
        "gpus": 8.0,
        "gpus_allocated": 1.0,
    }
    assert first.tags == {"node": "n1"}
    assert first.fields["gpus_allocated"] == 1.0
    assert (second.fields["up"], third.fields["up"]) == (1.0, 0.0)
    assert "gpus" not in third.fields
    for point in (whole, first):
        assert point.fields.keys() == DECLARED[point.measurement].fields
