"""Builders for tests of health: an eight-GPU server, its readings, and its monitor."""

# ruff: noqa: ANN401 - builders pass any field on

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collector.health.evaluation import evaluate_health
from collector.health.monitor import HealthMonitor
from collector.health.signals import GPUSignals, Signals
from core.clock import to_ns
from protocol.health import GPUHealth
from protocol.inventory import GPUInfo, Inventory
from tests.cast import NOON
from timeseries.points import FieldValue, Point

GIB = 1024**3
BOOT = "7d4a5c2e-0001-4c1f-9b39-2f6a1c5d0e11"
OTHER_BOOT = "7d4a5c2e-0002-4c1f-9b39-2f6a1c5d0e11"


def gpu_info(index: int = 0, **changes: Any) -> GPUInfo:
    """An H100 SXM, by the figures of its driver."""
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81559 * 1024**2,
        "core_count": 16896,
        "memory_bus_bits": 5120,
        "sm_clock_max_hertz": 1_980_000_000,
        "memory_clock_max_hertz": 2_619_000_000,
    }
    return GPUInfo(**(fields | changes))


def inventory(gpus: int = 8) -> Inventory:
    """A server with so many of them."""
    return Inventory(hostname="dgx", gpus=[gpu_info(index) for index in range(gpus)])


def signs(**changes: Any) -> GPUSignals:
    """A GPU in order, but for the changes; `reading` is added to a loaded GPU's."""
    reading = {
        "utilization_percent": 97.0,
        "nvlinks": 18.0,
        "nvlinks_active": 18.0,
        "pcie_width": 16.0,
        "pcie_width_max": 16.0,
        "pcie_generation": 5.0,
        "pcie_generation_max": 5.0,
        "ecc_uncorrected_volatile": 0.0,
        "lost": 0.0,
    } | changes.pop("reading", {})
    fields: dict[str, Any] = {"index": 0, "uuid": "GPU-0", "info": gpu_info(), "reading": reading}
    return GPUSignals(**(fields | changes))


def judged(gpu: GPUSignals, now: datetime = NOON) -> GPUHealth:
    """The judgment of one GPU."""
    return evaluate_health(Signals(gpus=(gpu,)), now).gpus[0]


def after(seconds: float) -> datetime:
    """Return the time this many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def gpu_point(seconds: float = 0.0, index: int = 0, **fields: FieldValue) -> Point:
    """A reading of a GPU, so long after noon."""
    tags = {"gpu": str(index), "uuid": f"GPU-{index}", "model": "NVIDIA H100 80GB HBM3"}
    return Point("gpu", tags, fields or {"lost": 0}, to_ns(after(seconds)))


def xid_point(code: int, seconds: float = 0.0, index: int = 0) -> Point:
    """An XID of a GPU, so long after noon."""
    tags = {"gpu": str(index), "uuid": f"GPU-{index}", "xid": str(code)}
    return Point("gpu_xid", tags, {"events": 1}, to_ns(after(seconds)))


def process_point(seconds: float, *, used: int, owner: str = "host", **tags: str) -> Point:
    """Somebody's use of GPU 0, so long after noon."""
    every = {"gpu": "0", "uuid": "GPU-0", "owner": owner} | tags
    return Point("gpu_process", every, {"memory_used_bytes": used}, to_ns(after(seconds)))


def monitor(folder: Path, *, boot: str = BOOT, **changes: Any) -> HealthMonitor:
    """The monitor of an agent that starts, on a kernel that was booted so."""
    proc = folder / "proc"
    boot_id = proc / "sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text(f"{boot}\n", encoding="ascii")
    return HealthMonitor(folder / "data", proc=proc, **({"gpu_interval_seconds": 10.0} | changes))


@pytest.fixture
def eight(tmp_path: Path) -> HealthMonitor:
    """A server of eight GPUs that was just read for the first time."""
    health_monitor = monitor(tmp_path)
    health_monitor.set_inventory(inventory())
    health_monitor.observe([gpu_point(index=index) for index in range(8)], NOON)
    return health_monitor


def feed(health_monitor: HealthMonitor, points: Iterable[Point], *, until: float) -> None:
    """Give the monitor points, at so many seconds after noon."""
    health_monitor.observe(points, after(until))


def first(health_monitor: HealthMonitor, seconds: float = 0.0) -> GPUHealth:
    """Return the judgment of the first GPU."""
    return health_monitor.report(after(seconds)).gpus[0]


def reasons(health_monitor: HealthMonitor, seconds: float = 0.0) -> list[str]:
    """Return why the first GPU is not healthy."""
    return [finding.reason for finding in first(health_monitor, seconds).findings]
