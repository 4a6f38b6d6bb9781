"""A replay of a million recorded jobs: its time, and the memory of its process.

The jobs arrive at random, and request on average as many GPUs as there are, so queues build up and
drain. Sizes and limits are few, as in real recordings; run times are all different.
"""

import random
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.shared.document import Figures, Outcome, Promise, rounded
from benchmarks.shared.fleet import GIB, GPUS
from jobqueue.placement.policies import DEFAULT_POLICY, LEAST_FRAGMENTATION
from jobqueue.simulation.recording import (
    QueueRules,
    RecordedAppliance,
    RecordedGPU,
    RecordedJob,
    Recording,
    read_recording,
    write_recording,
)
from jobqueue.simulation.replay import Replay
from jobqueue.simulation.results import figures

MOST_SECONDS = 600.0
MOST_MEBIBYTES = 2048.0
_MEAN_RUN_SECONDS = 3600.0
_GPUS_OF_JOBS = (0, 1, 1, 1, 1, 1, 1, 2, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The number of appliances with 8 GPUs, and of jobs."""

    appliances: int = 500
    jobs: int = 1_000_000


FULL = Plan()
QUICK = Plan(appliances=50, jobs=20_000)


def measure(plan: Plan, folder: Path) -> Outcome:
    """Replay the jobs under two policies, each in a process of its own."""
    path = folder / "recording.jsonl"
    with path.open("wb") as target:
        target.writelines(write_recording(_recording(plan)))
    results: dict[str, Figures] = {}
    promises = []
    for policy in (DEFAULT_POLICY, LEAST_FRAGMENTATION):
        command = [sys.executable, "-m", "benchmarks.simulation", str(path), policy]
        ended = subprocess.run(command, check=True, capture_output=True)
        results[policy] = took = msgspec.json.decode(ended.stdout)
        promises += [
            Promise(f"replay, {policy}", took["seconds"], MOST_SECONDS, "s"),
            Promise(
                f"memory of a replay, {policy}",
                took["resident_mebibytes_max"],
                MOST_MEBIBYTES,
                "MiB",
            ),
        ]
    return Outcome({"replay": results}, promises)


def replay(path: Path, policy: str) -> Figures:
    """Read and replay a recording; return the time, the memory and what came out."""
    began, cpu_began = time.perf_counter(), time.process_time()
    recording = read_recording(path)
    recording.rules = QueueRules(policy=policy)
    results = figures(recording, Replay(recording, lambda _part: None).run())
    return {
        "seconds": rounded(time.perf_counter() - began),
        "cpu_seconds": rounded(time.process_time() - cpu_began),
        "resident_mebibytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "allocated_percent": rounded(100 * results.allocated_ratio),
        "wait_seconds_p95": results.waits.wait_seconds_p95,
    }


def _recording(plan: Plan) -> Recording:
    drawn = random.Random(1)  # noqa: S311 - a benchmark
    mean_gpus = sum(_GPUS_OF_JOBS) / len(_GPUS_OF_JOBS)
    rate = plan.appliances * GPUS / (mean_gpus * _MEAN_RUN_SECONDS)
    at, jobs = 0.0, []
    for _ in range(plan.jobs):
        at += drawn.expovariate(rate)
        run_seconds = drawn.expovariate(1 / _MEAN_RUN_SECONDS)
        jobs.append(
            RecordedJob(
                submitted_seconds=round(at, 3),
                run_seconds=round(run_seconds, 3),
                time_limit_seconds=drawn.choice([0, 4, 12, 24]) * 3600,
                gpus=drawn.choice(_GPUS_OF_JOBS),
                cpus=drawn.choice([4, 8, 16]),
                memory_bytes=drawn.choice([16, 64]) * GIB,
                user=drawn.randrange(1, 50),
                project=drawn.randrange(1, 6),
            )
        )
    appliances = [
        RecordedAppliance(
            name=f"dgx-{number:05}",
            cpus=128,
            memory_bytes=1024 * GIB,
            gpus=(RecordedGPU(model="H100", memory_bytes=80 * GIB),) * GPUS,
        )
        for number in range(plan.appliances)
    ]
    return Recording(appliances=appliances, jobs=jobs)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(replay(Path(sys.argv[1]), sys.argv[2])))
