"""The lines of a made-up fleet: what each appliance sends at each tick.

A tick of an appliance is 18 lines with 156 values: a line of 15 for each of its eight GPUs, and ten
of the host with 36. Readings walk as real ones do, each GPU from a place of its own, so that a
store that compresses well may. The tag `host` tells appliances apart in stores that stamp no
identity; every store gets it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

GPUS = 8
LINES_OF_A_TICK = 18
VALUES_OF_A_TICK = 156
MODEL = "NVIDIA\\ H100\\ 80GB\\ HBM3"
GIB = 2**30
GPU_MEMORY_BYTES = 80 * GIB
WALK_STEPS = 4_096
CLOCK_STEP_HERTZ = 15_000_000
# Coprime to the walk's length, so that neighbors are far apart and no two GPUs meet for long.
GPU_STRIDE, _HOST_STRIDE = 1_237, 2_411


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """The line protocol fields of a GPU and of a host at each step of a walk."""

    gpu: Sequence[str]
    host: Sequence[tuple[str, ...]]


class Fleet:
    """Gives the lines of appliances.

    Args:
        seed: the same seed gives the same readings.
        names: how an appliance is called, by its number, in the tag `host`.
    """

    def __init__(self, *, seed: int, names: str = "gpu-{:05d}") -> None:
        self._readings = walk(Random(seed))  # noqa: S311 - noise, not a secret
        self._names = names
        self._gpu_heads: dict[int, tuple[str, ...]] = {}

    def name(self, appliance: int) -> str:
        """Return the appliance's name."""
        return self._names.format(appliance)

    def lines(self, appliance: int, *, tick: int, time_ns: int) -> list[str]:
        """Return all lines of an appliance at a tick."""
        host, step = self.name(appliance), tick + appliance * _HOST_STRIDE
        fields = self._readings.host[step % WALK_STEPS]
        heads = host_heads(host)
        lines = self.gpu_lines(appliance, tick=tick, time_ns=time_ns)
        lines += [f"{head} {field} {time_ns}" for head, field in zip(heads, fields, strict=True)]
        return lines

    def gpu_lines(self, appliance: int, *, tick: int, time_ns: int) -> list[str]:
        """Return the lines of an appliance's GPUs at a tick."""
        heads = self._gpu_heads.get(appliance)
        if heads is None:
            heads = self._gpu_heads[appliance] = gpu_heads(self.name(appliance), appliance)
        first, gpu = tick + appliance * GPUS * GPU_STRIDE, self._readings.gpu
        return [
            f"{head} {gpu[(first + index * GPU_STRIDE) % WALK_STEPS]} {time_ns}"
            for index, head in enumerate(heads)
        ]


def gpu_heads(host: str, appliance: int) -> tuple[str, ...]:
    """Return measurement and tags of each GPU of an appliance, tags sorted."""
    return tuple(
        f"gpu,gpu={index},host={host},model={MODEL},uuid={gpu_uuid(appliance, index)}"
        for index in range(GPUS)
    )


def gpu_uuid(appliance: int, index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{appliance:08x}-0000-4000-8000-{index:012x}"


def host_heads(host: str) -> tuple[str, ...]:
    """Return measurement and tags of each line about the host."""
    return (
        f"cpu,host={host}",
        f"memory,host={host}",
        f"swap,host={host}",
        f"load,host={host}",
        f"disk,device=nvme0n1p2,host={host},mount=/",
        f"disk,device=md0,host={host},mount=/data",
        f"diskio,device=nvme0n1,host={host}",
        f"network,host={host},interface=ens1f0",
        f"processes,host={host}",
        f"uptime,host={host}",
    )


def walk(random: Random) -> Readings:
    """Return the readings of a GPU and of a host along a walk."""
    return Readings(
        gpu=[field_text(fields) for fields in gpu_walk(random)], host=list(_host_walk(random))
    )


def field_text(fields: Mapping[str, int | float]) -> str:
    """Return fields as line protocol, integers as integers."""
    return ",".join(
        f"{name}={value}i" if isinstance(value, int) else f"{name}={value:.12g}"
        for name, value in fields.items()
    )


def gpu_walk(random: Random) -> Iterator[dict[str, int | float]]:
    """Yield the readings of a GPU along a walk."""
    busy, heat, energy = 90.0, 60.0, 0.0
    for _ in range(WALK_STEPS):
        busy = _step(random, busy, 3.0, low=0.0, high=100.0)
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
            "sm_clock_hertz": CLOCK_STEP_HERTZ * (132 - random.randint(0, 6)),
            "memory_clock_hertz": 2_619_000_000,
            "throttled": 0,
            "pcie_received_bytes_per_second": round(random.gauss(2.2e9, 1e8), 1),
            "nvlink_sent_bytes_per_second": round(random.gauss(9.5e9, 4e8), 1),
        }


def _host_walk(random: Random) -> Iterator[tuple[str, ...]]:
    busy, used = 40.0, 0.4
    for step in range(WALK_STEPS):
        busy = _step(random, busy, 2.0, low=1.0, high=99.0)
        used = _step(random, used, 0.002, low=0.1, high=0.9)
        fields = (
            _cpu(busy),
            _room(2_048 * GIB, used, free_field="available_bytes"),
            {"used_bytes": 4_096 * random.randint(0, 9), "used_percent": 0.01},
            {f"load{n}": round(share * busy, 2) for n, share in ((1, 0.96), (5, 0.9), (15, 0.88))},
            _room(894 * GIB, 0.31, free_field="free_bytes"),
            _room(28_000 * GIB, 0.5 + 1e-5 * step, free_field="free_bytes"),
            _traffic_of_a_disk(random),
            _traffic_of_a_network(random),
            {
                "total": 900 + random.randint(0, 20),
                "running": random.randint(1, 9),
                "sleeping": 880 + random.randint(0, 20),
            },
            {"uptime_seconds": 1_000_000 + 10 * step},
        )
        yield tuple(field_text(values) for values in fields)


def _cpu(busy: float) -> dict[str, float]:
    shares = {"usage": busy, "user": 0.8 * busy, "system": 0.15 * busy, "iowait": 0.05 * busy}
    return {
        f"{name}_percent": round(value, 2) for name, value in {**shares, "idle": 100 - busy}.items()
    }


def _room(size: int, share: float, *, free_field: str) -> dict[str, int | float]:
    used = int(size * share) & ~0xFFF
    return {
        "total_bytes": size,
        "used_bytes": used,
        free_field: size - used,
        "used_percent": round(100 * share, 2),
    }


def _traffic_of_a_disk(random: Random) -> dict[str, int | float]:
    return {
        "read_bytes_per_second": round(random.expovariate(1 / 3e7), 1),
        "written_bytes_per_second": round(random.expovariate(1 / 4e6), 1),
        "reads_per_second": round(random.expovariate(1 / 300), 1),
        "writes_per_second": round(random.expovariate(1 / 80), 1),
        "busy_percent": round(20 * random.random(), 2),
        "in_flight": random.randint(0, 3),
    }


def _traffic_of_a_network(random: Random) -> dict[str, float]:
    return {
        "received_bytes_per_second": round(random.gauss(5e6, 1e5), 1),
        "sent_bytes_per_second": round(random.gauss(8e5, 1e4), 1),
        "errors_per_second": 0.0,
        "drops_per_second": 0.0,
    }


def _step(random: Random, value: float, spread: float, *, low: float, high: float) -> float:
    return min(high, max(low, value + random.gauss(0, spread)))
