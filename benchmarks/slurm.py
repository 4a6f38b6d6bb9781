"""How soon a job starts through the Slurm connector, beside `sbatch`, and what 1,000 jobs cost.

A Slurm cluster of two nodes runs on this machine (slurmctld, slurmdbd on MariaDB, two slurmd). In
turns, an attempt is started by the executor and a script by `sbatch`; both write the time when they
run. Then many attempts are started at once: all must succeed, and the CPU time of slurmctld is read
beside that of as many plain `sbatch`.
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.document import Figures, Outcome, Promise, rounded
from benchmarks.shared.meter import cpu_seconds
from benchmarks.shared.starts import compared_starts
from core.clock import NS_PER_SECOND
from core.ids import new_id
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.slurm.executor import SlurmExecutor
from protocol.attempts import AttemptSpec, ObservedState
from tests.fixtures.polling import eventually
from tests.fixtures.slurm import SlurmCluster, running_cluster

END_SECONDS = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of starts of each in turns, and of jobs at once."""

    starts: int = 30
    jobs: int = 1000


FULL = Plan()
QUICK = Plan(starts=3, jobs=20)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Start attempts and scripts in turns, then many at once."""
    attempts, scripts = [], []
    with running_cluster() as cluster:
        site = ExecutorSite(owner="bench", state_dir=folder / "state")
        executor = SlurmExecutor(cluster.settings(), site)
        for number in range(plan.starts):
            path = folder / f"time-{number}"
            attempts.append(_seconds_to(path, lambda path=path: _start(executor, path)))  # type: ignore[misc]
            path.unlink()
            cluster.until_idle()
            scripts.append(_seconds_to(path, lambda path=path: _sbatch(cluster, path)))  # type: ignore[misc]
            cluster.until_idle()
        many = _many(cluster, executor, plan.jobs)
        plain = _plain(cluster, plan.jobs)
        executor.close()
    starts = compared_starts(("executor", attempts), ("sbatch", scripts), what="start")
    lost = float(plan.jobs) - (many["succeeded"] or 0)
    return Outcome(
        {**starts.results, "jobs": many, "jobs by sbatch": plain},
        [*starts.promises, Promise("jobs that were lost", lost, 0, "jobs")],
    )


def _seconds_to(path: Path, submit: Callable[[], object]) -> float:
    """Return the seconds from a submission to what its script wrote of the time."""
    began_ns = time.time_ns()
    submit()
    text = eventually(
        lambda: path.exists() and path.read_text().endswith("\n") and path.read_text(),
        what="the start of the job",
    )
    return (int(str(text)) - began_ns) / NS_PER_SECOND


def _start(executor: SlurmExecutor, path: Path) -> None:
    executor.start(_spec(f"date +%s%N > {path}"))


def _sbatch(cluster: SlurmCluster, path: Path) -> None:
    cluster.call("sbatch", "--mem=64M", "--output=/dev/null", "--wrap", f"date +%s%N > {path}")


def _spec(script: str) -> AttemptSpec:
    return AttemptSpec(
        attempt_id=new_id(),
        job_id="bench",
        name="bench",
        image="",
        command=["/bin/sh", "-c", script],
        memory_bytes=64 * 2**20,
    )


def _many(cluster: SlurmCluster, executor: SlurmExecutor, jobs: int) -> Figures:
    """Run many attempts; return how many succeeded, the time and the controller's CPU time."""
    pid = cluster.processes["slurmctld"].pid
    began, cpu = time.monotonic(), cpu_seconds(pid)
    specs = {spec.attempt_id for spec in (_started(executor) for _ in range(jobs))}
    submitted = time.monotonic()

    def ends() -> list[ObservedState]:
        states = [seen.state for seen in executor.observe() if seen.attempt_id in specs]
        return states if len(states) == jobs and all(state.is_final for state in states) else []

    states = eventually(ends, within_seconds=END_SECONDS, every_seconds=1, what="all jobs to end")
    return {
        "succeeded": float(states.count(ObservedState.SUCCEEDED)),
        "seconds": rounded(time.monotonic() - began),
        "submit_seconds": rounded(submitted - began),
        "controller_cpu_seconds": rounded(cpu_seconds(pid) - cpu),
    }


def _started(executor: SlurmExecutor) -> AttemptSpec:
    spec = _spec("true")
    executor.start(spec)
    return spec


def _plain(cluster: SlurmCluster, jobs: int) -> Figures:
    pid = cluster.processes["slurmctld"].pid
    began, cpu = time.monotonic(), cpu_seconds(pid)
    for _ in range(jobs):
        cluster.call("sbatch", "--mem=64M", "--output=/dev/null", "--wrap", "true")
    submitted = time.monotonic()

    def is_empty() -> bool:
        argv = [str(cluster.bin_dir / "squeue"), "--noheader"]
        return not subprocess.run(argv, check=True, capture_output=True).stdout

    eventually(is_empty, within_seconds=END_SECONDS, every_seconds=1, what="all jobs to end")
    return {
        "seconds": rounded(time.monotonic() - began),
        "submit_seconds": rounded(submitted - began),
        "controller_cpu_seconds": rounded(cpu_seconds(pid) - cpu),
    }
