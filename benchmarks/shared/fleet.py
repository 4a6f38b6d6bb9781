"""A made-up fleet: the lines that each appliance sends at each tick, and batches of its GPUs.

A tick of an appliance is 18 lines with 156 values: a line of 15 for each of its eight GPUs, and ten
of the host with 36. Readings walk as real ones do, each GPU from a place of its own, so that a
store that compresses well may. The tag `host` names appliances in stores that stamp no identity;
every store gets it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from core.clock import NS_PER_SECOND
from timeseries.points import Batch, Block, FieldValue

GPUS = 8
LINES_OF_A_TICK = 18
VALUES_OF_A_TICK = 156
MODEL = "NVIDIA H100 80GB HBM3"
GIB = 2**30
GPU_MEMORY_BYTES = 80 * GIB
MINUTE_NS = 60 * NS_PER_SECOND
# The fields of GPUs that stores are filled with, when no lines are sent.
FIELDS = (
    "utilization_percent",
    "memory_used_percent",
    "temperature_celsius",
    "power_watts",
    "sm_clock_hertz",
)
_SEED = 4
_WALK_STEPS = 4_096
# Coprime to the walk's length, so that neighbors are far apart and no two GPUs meet for long.
_GPU_STRIDE, _HOST_STRIDE = 1_237, 2_411
_HOST_SERIES = (
    *("cpu,host={0}", "memory,host={0}", "swap,host={0}", "load,host={0}"),
    *("disk,device=nvme0n1p2,host={0},mount=/", "disk,device=md0,host={0},mount=/data"),
    *("diskio,device=nvme0n1,host={0}", "network,host={0},interface=ens1f0"),
    *("processes,host={0}", "uptime,host={0}"),
)

Fields = Mapping[str, int | float]


class Fleet:
    """Gives the lines of appliances, always the same."""

    def __init__(self) -> None:
        random = Random(_SEED)  # noqa: S311 - noise, not a secret
        self._gpu = [_field_text(fields) for fields in _gpu_walk(random)]
        self._host = [
            tuple(_field_text(fields) for fields in readings) for readings in _host_walk(random)
        ]
        self._gpu_heads: dict[int, list[str]] = {}

    def lines(self, appliance: int, *, tick: int, time_ns: int) -> list[str]:
        """Return all lines of an appliance at a tick."""
        host = name_of(appliance)
        if appliance not in self._gpu_heads:
            tags = f"host={host},model={MODEL}".replace(" ", "\\ ")
            self._gpu_heads[appliance] = [
                f"gpu,gpu={gpu},{tags},uuid={gpu_uuid(appliance, gpu)}" for gpu in range(GPUS)
            ]
        first = tick + appliance * GPUS * _GPU_STRIDE
        lines = [
            f"{head} {self._gpu[(first + gpu * _GPU_STRIDE) % _WALK_STEPS]} {time_ns}"
            for gpu, head in enumerate(self._gpu_heads[appliance])
        ]
        readings = self._host[(tick + appliance * _HOST_STRIDE) % _WALK_STEPS]
        series = zip(_HOST_SERIES, readings, strict=True)
        return lines + [f"{head.format(host)} {fields} {time_ns}" for head, fields in series]


def name_of(appliance: int) -> str:
    """Return an appliance's name by its number."""
    return f"gpu-{appliance:05d}"


def gpu_uuid(appliance: int, gpu: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{appliance:08x}-0000-4000-8000-{gpu:012x}"


def gpu_batch(appliance: int, times_ns: Sequence[int], *, tick: int = 0, job: str = "") -> Batch:
    """Return `FIELDS` of an appliance's GPUs at some times from a tick on, GPU by GPU."""
    walk = _chosen_walk()
    rows = [
        walk[(tick + after + (appliance * GPUS + gpu) * _GPU_STRIDE) % _WALK_STEPS]
        for gpu in range(GPUS)
        for after in range(len(times_ns))
    ]
    job_tags = {"job": job} if job else {}
    series = [
        {"gpu": str(gpu), "model": MODEL, "uuid": gpu_uuid(appliance, gpu)} | job_tags
        for gpu in range(GPUS)
    ]
    columns = dict(zip(FIELDS, zip(*rows, strict=True), strict=True))
    return Batch((block_of("gpu", series, columns=columns, times_ns=times_ns),))


def block_of(
    measurement: str,
    series: Sequence[Mapping[str, str]],
    *,
    columns: Mapping[str, Sequence[FieldValue]],
    times_ns: Sequence[int],
) -> Block:
    """Return samples of several series at the same times, series by series."""
    count = len(series) * len(times_ns)
    return Block(
        measurement=measurement,
        tags=tuple(series[0]),
        tag_sets=[tuple(tags.values()) for tags in series],
        tag_set_of=[number for number in range(len(series)) for _ in times_ns],
        fields=tuple(columns),
        kinds=tuple(type(values[0]) for values in columns.values()),
        values=tuple(columns.values()),
        times_ns=list(times_ns) * len(series),
        positions=range(count),
    )


@cache
def _chosen_walk() -> list[tuple[FieldValue, ...]]:
    walk = _gpu_walk(Random(_SEED))  # noqa: S311 - noise, not a secret
    return [tuple(fields[name] for name in FIELDS) for fields in walk]


def _field_text(fields: Fields) -> str:
    """Return fields as line protocol, integers as integers."""
    return ",".join(
        f"{name}={value}i" if isinstance(value, int) else f"{name}={value:.12g}"
        for name, value in fields.items()
    )


def _gpu_walk(random: Random) -> Iterator[Fields]:
    """Yield the readings of a GPU along a walk."""
    busy, heat, energy = 90.0, 60.0, 0.0
    for _ in range(_WALK_STEPS):
        busy = _step(random, busy, 3.0, limits=(0.0, 100.0))
        heat += 0.1 * (38 + 0.4 * busy - heat)
        watts = round(90 + 5.8 * busy + random.gauss(0, 9), 3)
        energy += 10 * watts
        used = int(GPU_MEMORY_BYTES * (0.2 + 0.007 * busy)) & ~0x1FFFFF
        yield {
            "utilization_percent": round(busy),
            "memory_utilization_percent": round(0.7 * busy),
            "memory_total_bytes": GPU_MEMORY_BYTES,
            "memory_used_bytes": used,
            "memory_used_percent": round(100 * used / GPU_MEMORY_BYTES, 2),
            "temperature_celsius": round(heat),
            "memory_temperature_celsius": round(heat) + random.randint(5, 9),
            "power_watts": watts,
            "power_limit_watts": 700.0,
            "energy_joules": round(energy, 3),
            "sm_clock_hertz": 15_000_000 * (132 - random.randint(0, 6)),
            "memory_clock_hertz": 2_619_000_000,
            "throttled": 0,
            "pcie_received_bytes_per_second": round(random.gauss(2.2e9, 1e8), 1),
            "nvlink_sent_bytes_per_second": round(random.gauss(9.5e9, 4e8), 1),
        }


def _host_walk(random: Random) -> Iterator[Iterable[Fields]]:
    """Yield the readings of a host along a walk, in the order of `_HOST_SERIES`."""
    busy, used = 40.0, 0.4
    shares = {"usage": 1.0, "user": 0.8, "system": 0.15, "iowait": 0.05}
    for step in range(_WALK_STEPS):
        busy = _step(random, busy, 2.0, limits=(1.0, 99.0))
        used = _step(random, used, 0.002, limits=(0.1, 0.9))
        cpu = {f"{name}_percent": round(share * busy, 2) for name, share in shares.items()}
        yield (
            {**cpu, "idle_percent": round(100 - busy, 2)},
            _room(2_048 * GIB, used, free_field="available_bytes"),
            {"used_bytes": 4_096 * random.randint(0, 9), "used_percent": 0.01},
            {f"load{n}": round(share * busy, 2) for n, share in ((1, 0.96), (5, 0.9), (15, 0.88))},
            _room(894 * GIB, 0.31, free_field="free_bytes"),
            _room(28_000 * GIB, 0.5 + 1e-5 * step, free_field="free_bytes"),
            *_traffic(random),
            {
                "total": 900 + random.randint(0, 20),
                "running": random.randint(1, 9),
                "sleeping": 880 + random.randint(0, 20),
            },
            {"uptime_seconds": 1_000_000 + 10 * step},
        )


def _room(size: int, share: float, *, free_field: str) -> Fields:
    used = int(size * share) & ~0xFFF
    return {
        "total_bytes": size,
        "used_bytes": used,
        free_field: size - used,
        "used_percent": round(100 * share, 2),
    }


def _traffic(random: Random) -> Iterator[dict[str, Any]]:
    """Yield the traffic of a disk, and that of a network."""
    means = {"read_bytes": 3e7, "written_bytes": 4e6, "reads": 300, "writes": 80}
    rates = {
        f"{name}_per_second": round(random.expovariate(1 / mean), 1) for name, mean in means.items()
    }
    yield {
        **rates,
        "busy_percent": round(20 * random.random(), 2),
        "in_flight": random.randint(0, 3),
    }
    yield {
        "received_bytes_per_second": round(random.gauss(5e6, 1e5), 1),
        "sent_bytes_per_second": round(random.gauss(8e5, 1e4), 1),
        "errors_per_second": 0.0,
        "drops_per_second": 0.0,
    }


def _step(random: Random, value: float, spread: float, *, limits: tuple[float, float]) -> float:
    return min(limits[1], max(limits[0], value + random.gauss(0, spread)))
