"""A made-up appliance with eight GPUs, whose readings vary as real ones do.

It stands in for a week of an NVIDIA DGX H100 with 96 cores in `benchmarks.partition`. Compression
must not be flattered, so nothing is smoother here than on a real machine:

- cores go through the real cpu plugin, from a `/proc/stat` that is written anew for every tick;
- rates come from counters through the plugins' own `CounterRates` and `Growth`, at intervals that
  jitter by the milliseconds by which a real agent's do;
- every link, sensor and interface has noise of its own, and what is an integer in the driver or the
  kernel is an integer here;
- seven GPUs train and one serves all the time: an idle GPU would cost nothing.

Fields and tags are those of docs/metrics.md; `tests/unit/benchmarks` holds the two together.
"""

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from benchmarks.appliance_cores import Cores
from benchmarks.appliance_gpu import GPU
from benchmarks.appliance_host import Host
from benchmarks.appliance_noise import Noise, with_fields
from core.clock import to_ns
from plugins.simulation.appliance import SimulatedAppliance
from plugins.simulation.config import GIB, SimulationConfig, Workload
from timeseries.points import FieldValue, Point

GPUS = 8
CORES = 96
CONTAINERS = 8
PLUGINS = (
    "cpu",
    "memory",
    "swap",
    "load",
    "disk",
    "diskio",
    "network",
    "processes",
    "uptime",
    "sensors",
    "nvml",
    "gpu_processes",
    "containers",
    "inventory",
)
JITTER_SECONDS = 0.004
CORES_PER_JOB = 6.0
IMAGE = "nvcr.io/nvidia/pytorch:24.10-py3"


class Appliance:
    """Gives the points of one tick after another.

    Args:
        seed: the same seed gives the same readings.
        scratch: a folder for the files that the real plugins read.
        started_at: the instant before the first tick.
        interval_seconds: from one tick to the next.
    """

    def __init__(
        self, *, seed: int, scratch: Path, started_at: datetime, interval_seconds: float
    ) -> None:
        self._random = Random(seed)  # noqa: S311 - noise, not a secret
        self._noise = Noise(self._random, interval_seconds=interval_seconds)
        self._now = started_at
        self._interval = timedelta(seconds=interval_seconds)
        config = SimulationConfig(seed=f"bench-{seed}", gpu_count=GPUS, cpu_count=CORES)
        self._model = SimulatedAppliance(config, started_at=started_at)
        self._jobs = _busy(self._model, config, started_at)
        self._gpus = [
            GPU(index, uuid, job=self._jobs[uuid], random=self._random)
            for index, uuid in enumerate(config.gpu_uuids)
        ]
        self._host = Host(self._model, self._noise)
        self._cores = Cores(
            CORES,
            scratch=scratch,
            random=self._random,
            interval_seconds=interval_seconds,
            busy_cores=CORES_PER_JOB * GPUS,
        )
        self._tick = 0
        list(self.tick())  # rates and shares need a reading before

    def tick(self) -> Iterator[Point]:
        """Yield the points of the next tick, each plugin's at its own instant."""
        self._tick += 1
        self._now += self._interval
        for points in (
            self._cores.points,
            self._host.general_points,
            self._host.rate_points,
            self._host.sensor_points,
            self._gpu_points,
            self._container_points,
            self._own_points,
        ):
            yield from points(self._instant())

    def close(self) -> None:
        """Close what the real plugins have open."""
        self._cores.close()

    def _instant(self) -> datetime:
        return self._now + timedelta(seconds=self._random.uniform(0, JITTER_SECONDS))

    def _gpu_points(self, now: datetime) -> Iterator[Point]:
        readings = self._model.read(now).gpus
        yield from itertools.chain.from_iterable(
            gpu.points(readings[gpu.uuid], now) for gpu in self._gpus
        )

    def _container_points(self, now: datetime) -> Iterator[Point]:
        for uuid, job in self._jobs.items():
            tags = {"container": uuid[4:16], "image": IMAGE, "job": job}
            rates = self._noise.rates(
                "container",
                tags,
                now=now,
                grown={
                    "read_bytes_per_second": self._noise.grown(30e6),
                    "written_bytes_per_second": self._noise.grown(4e6),
                    "received_bytes_per_second": self._noise.grown(5e6),
                    "sent_bytes_per_second": self._noise.grown(8e5),
                },
            )
            for point in rates:
                yield with_fields(
                    point,
                    {
                        "cpu_percent": round(self._random.gauss(100 * CORES_PER_JOB, 40), 2),
                        "memory_bytes": 60 * GIB + self._noise.pages(200_000),
                        "memory_limit_bytes": 200 * GIB,
                        "processes": 90 + self._random.randint(0, 4),
                        "restarts": 0,
                    },
                )
        counts = {"running": CONTAINERS, "paused": 0, "exited": 3}
        other_counts = {"created": 0, "restarting": 0, "dead": 0}
        yield Point("containers", {}, {**counts, **other_counts}, to_ns(now))

    def _own_points(self, now: datetime) -> Iterator[Point]:
        time_ns = to_ns(now)
        for name in PLUGINS:
            seconds = round(self._random.lognormvariate(-7, 0.5), 6)
            fields = {"duration_seconds": seconds, "samples": 100, "errors": 0, "timeouts": 0}
            yield Point("plugin", {"plugin": name}, fields, time_ns)
        yield Point("agent", {}, self._agent_fields(), time_ns)

    def _agent_fields(self) -> dict[str, FieldValue]:
        return {
            "buffered_bytes": 9_100 * self._tick + self._random.randint(0, 4_000),
            "buffered_points": 330 * self._tick,
            "backlog_points": 330 * self._tick,
            "dropped_points": 0,
            "dropped_by_age_points": 0,
            "dropped_by_size_points": 0,
            "damaged_bytes": 0,
            "sent_points": 0,
            "send_failures": self._tick // 3,
            "undeliverable_lines": 0,
            "gather_failures": 0,
            "cpu_percent": round(self._random.gauss(1.5, 0.1), 3),
            "resident_bytes": 58_000_000 + self._noise.pages(10),
        }


def _busy(
    model: SimulatedAppliance, config: SimulationConfig, started_at: datetime
) -> dict[str, str]:
    """Put a job on every GPU; return GPU UUID to job id."""
    jobs = {}
    for index, uuid in enumerate(config.gpu_uuids):
        job = f"01a1fe99-3165-71ca-a743-dc2375973c{index:02x}"
        jobs[uuid] = job
        model.add(
            Workload(
                workload_id=job,
                gpu_uuids=(uuid,),
                cpus=CORES_PER_JOB,
                memory_bytes=60 * GIB,
                is_service=index == GPUS - 1,
                intensity=0.8 + 0.02 * index,
                started_at=started_at - timedelta(hours=1),
            )
        )
    return jobs
