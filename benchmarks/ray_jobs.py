"""How soon a job's command runs on Ray, through the executor beside `ray job submit`.

A head runs alone on this machine. In turns, an attempt is started by the executor and a job is
submitted by Ray's command; both write the time at which they run. The time is from the call, or the
start of the command, until then.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shared.document import Outcome
from benchmarks.shared.starts import compared_starts
from core.ids import new_id
from jobqueue.executors.ray.executor import RayExecutor
from jobqueue.executors.recorded import ExecutorSite
from jobqueue.executors.settings import RaySettings
from protocol.attempts import AttemptSpec
from tests.fixtures.polling import eventually
from tests.fixtures.ray_head import RayCluster, ray_cluster

CPUS, MEMORY_BYTES = 0.5, 2**26
SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of starts of each."""

    starts: int = 20


FULL = Plan()
QUICK = Plan(starts=2)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Start attempts and jobs in turns."""
    attempts, jobs = [], []
    with ray_cluster() as cluster:
        cluster.start()
        site = ExecutorSite(owner="bench", state_dir=folder / "state")
        executor = RayExecutor(RaySettings(url=cluster.url), site)
        for number in range(plan.starts + 1):
            attempt = _start(executor, folder / f"attempt-{number}")
            time.sleep(SETTLE_SECONDS)
            job = _submit(cluster, folder / f"job-{number}")
            time.sleep(SETTLE_SECONDS)
            if number:  # the first ones start Ray's processes
                attempts.append(attempt)
                jobs.append(job)
        executor.close()
    return compared_starts(("executor", attempts), ("ray job submit", jobs), what="start on Ray")


def _start(executor: RayExecutor, shown: Path) -> float:
    """Start an attempt; return the seconds until its command runs."""
    spec = AttemptSpec(
        attempt_id=new_id(),
        job_id=new_id(),
        name="bench",
        image="",
        command=["sh", "-c", _showing(shown)],
        cpus=CPUS,
        memory_bytes=MEMORY_BYTES,
    )
    began = time.time()
    executor.start(spec)
    return _shown_at(shown) - began


def _submit(cluster: RayCluster, shown: Path) -> float:
    """Submit a job by Ray's command; return the seconds until its command runs."""
    began = time.time()
    options = ["--no-wait", "--entrypoint-num-cpus", str(CPUS)]
    options += ["--entrypoint-memory", str(MEMORY_BYTES)]
    cluster.command("job", "submit", *options, "--", "sh", "-c", _showing(shown))
    return _shown_at(shown) - began


def _showing(shown: Path) -> str:
    return f"date +%s.%N > {shown}.new; mv {shown}.new {shown}"


def _shown_at(shown: Path) -> float:
    eventually(shown.exists, what="the start")
    return float(shown.read_text())
