"""Attempts on a Slurm cluster, and what tests ask about them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.ids import new_id
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import SlurmSettings
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import AttemptObservation, AttemptSpec, ObservedState
from protocol.clusters import ClusterNode
from protocol.logs import plain_log
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import SlurmCluster

Open = Callable[..., SlurmExecutor]


@pytest.fixture
def site(tmp_path: Path) -> ExecutorSite:
    return ExecutorSite(owner=new_id(), state_dir=tmp_path / "state", stop_grace_seconds=1)


@pytest.fixture
def opened(slurm_cluster: SlurmCluster, site: ExecutorSite) -> Iterator[Open]:
    executors = []

    def open_executor(settings: SlurmSettings | None = None) -> SlurmExecutor:
        executors.append(SlurmExecutor(settings or slurm_cluster.settings(), site))
        return executors[-1]

    yield open_executor
    for executor in executors:
        executor.close()
    slurm_cluster.clear()


@pytest.fixture
def slurm(opened: Open) -> SlurmExecutor:
    return opened()


def spec_of(script: str, **changes: object) -> AttemptSpec:
    fields: dict[str, object] = {
        "attempt_id": new_id(),
        "job_id": "job-1",
        "name": "test",
        "image": "",
        "command": ["/bin/sh", "-c", script],
        "memory_bytes": 64 * 2**20,
    }
    return AttemptSpec(**{**fields, **changes})  # type: ignore[arg-type] # the caller's names


def with_options(script: str, **options: str) -> AttemptSpec:
    names = {f"slurm.{name}": value for name, value in options.items()}
    return spec_of(script, cluster_options=names)


def until(
    executor: SlurmExecutor, spec: AttemptSpec, done: Callable[[AttemptObservation], bool]
) -> AttemptObservation:
    def probe() -> AttemptObservation | None:
        seen = {seen.attempt_id: seen for seen in executor.observe()}.get(spec.attempt_id)
        return seen if seen is not None and done(seen) else None

    seen = eventually(probe, within_seconds=90, every_seconds=0.2)
    assert seen is not None
    return seen


def until_running(executor: SlurmExecutor, spec: AttemptSpec) -> AttemptObservation:
    return until(executor, spec, lambda seen: seen.state is ObservedState.RUNNING)


def until_ended(executor: SlurmExecutor, spec: AttemptSpec) -> AttemptObservation:
    return until(executor, spec, lambda seen: seen.state.is_final)


def output_of(executor: SlurmExecutor, spec: AttemptSpec) -> str:
    return plain_log(executor.read_log(spec.attempt_id, offset=0, limit=2**20)).decode()


def job_id_of(cluster: SlurmCluster, spec: AttemptSpec) -> str:
    lines = cluster.call("squeue", "-h", "-t", "all", "-o", "%i %j").splitlines()
    return next(line.split()[0] for line in lines if spec.attempt_id in line)


def node_of(executor: SlurmExecutor, name: str) -> ClusterNode:
    return next(node for node in executor.read_cluster().nodes if node.name == name)
