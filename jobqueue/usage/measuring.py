"""Measure GPU use by samples: the pure part of ledger and efficiency.

A driver's `utilization_percent` is the share of time in which a kernel ran, so its integral is the
time that a GPU was *used*; of a MIG slice, `graphics_engine_active_percent` is. Where there are
samples but no kernel ran, it was *idle*. The rest of an allocation was not measured: the job was
starting, the appliance sent no samples, or the driver can't tell the activity of a slice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from core.clock import NS_PER_SECOND
from jobqueue.partitions.measures import ACTIVITY
from protocol.gpu_slices import WHOLE_GPU
from timeseries.store import TENANT_TAG, RangeQuery, Store

# Also the width of the finest roll-ups: an hour gives the same figures after its samples expired.
WINDOW_NS = 300 * NS_PER_SECOND
_NS_PER_MILLISECOND = 1_000_000
UTILIZATION, POWER = "utilization_percent", "power_watts"


@dataclass(frozen=True, slots=True)
class Period:
    """The time from `since` to before `until`."""

    since: datetime
    until: datetime


class GPUKey(NamedTuple):
    """Whose samples these are: a sender can't choose its tenant, but all other tags."""

    tenant_id: str
    job_id: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Use:
    """GPU time in milliseconds of single GPUs, and energy; a slice counts as its share."""

    allocated_milliseconds: int = 0
    used_milliseconds: int = 0
    idle_milliseconds: int = 0
    energy_joules: int = 0

    def __add__(self, other: "Use") -> "Use":
        return Use(*(a + b for a, b in zip(self.figures, other.figures, strict=True)))

    def __sub__(self, other: "Use") -> "Use":
        return Use(*(a - b for a, b in zip(self.figures, other.figures, strict=True)))

    def part(self, milli: int) -> "Use":
        """Return some thousandths of it."""
        return Use(*(round(figure * milli / WHOLE_GPU) for figure in self.figures))

    @property
    def figures(self) -> tuple[int, int, int, int]:
        """The four figures in the order of the fields."""
        return (
            self.allocated_milliseconds,
            self.used_milliseconds,
            self.idle_milliseconds,
            self.energy_joules,
        )


@dataclass(slots=True)
class GPUWindows:
    """The averages of one GPU by the start of their window, in nanoseconds since the epoch."""

    utilization: Mapping[int, float]
    power: Mapping[int, float]


NO_WINDOWS = GPUWindows({}, {})


def gpu_windows(
    store: Store,
    *,
    start_ns: int,
    end_ns: int,
    step_ns: int = WINDOW_NS,
    tenants: tuple[str, ...] | None = None,
    jobs: Iterable[str] = (),
    has_slices: bool = False,
) -> dict[GPUKey, GPUWindows]:
    """Return the windows of the GPUs of jobs, of all if no `jobs` are given.

    With `has_slices`, those of MIG slices are there, too.

    Raises:
        StoreUnavailableError: the store is unavailable.
    """
    query = RangeQuery(
        measurement="gpu",
        fields=(UTILIZATION, POWER),
        start_ns=start_ns // step_ns * step_ns,
        end_ns=-(-end_ns // step_ns) * step_ns,
        step_ns=step_ns,
        tenants=tenants,
        filters={"job": chosen} if (chosen := tuple(jobs)) else {},
        group_by=(TENANT_TAG, "job", "uuid"),
    )
    series_list = store.query_range(query)
    if has_slices:
        of_slices = replace(query, measurement="gpu_slice", fields=(ACTIVITY,))
        series_list += store.query_range(of_slices)
    windows_by_gpu: dict[GPUKey, GPUWindows] = {}
    for series in series_list:
        key = GPUKey(*(series.tags.get(tag, "") for tag in query.group_by))
        if not key.job_id:
            continue
        windows = windows_by_gpu.setdefault(key, GPUWindows({}, {}))
        values = dict(zip(series.times_ns, series.values, strict=True))
        if series.field == POWER:
            windows.power = values
        else:
            windows.utilization = values
    return windows_by_gpu


def gpu_use(windows: GPUWindows, *, start_ns: int, end_ns: int, step_ns: int = WINDOW_NS) -> Use:
    """Return the use of one GPU that was allocated from `start_ns` to `end_ns`."""
    used_ns = measured_ns = joules = 0.0
    for at_ns, percent in windows.utilization.items():
        overlap_ns = min(at_ns + step_ns, end_ns) - max(at_ns, start_ns)
        if overlap_ns > 0:
            measured_ns += overlap_ns
            used_ns += overlap_ns * min(max(percent, 0.0), 100.0) / 100
    for at_ns, watts in windows.power.items():
        overlap_ns = min(at_ns + step_ns, end_ns) - max(at_ns, start_ns)
        if overlap_ns > 0:
            joules += max(watts, 0.0) * overlap_ns / NS_PER_SECOND
    used = round(used_ns / _NS_PER_MILLISECOND)
    return Use(
        allocated_milliseconds=max(0, end_ns - start_ns) // _NS_PER_MILLISECOND,
        used_milliseconds=used,
        idle_milliseconds=round(measured_ns / _NS_PER_MILLISECOND) - used,
        energy_joules=round(joules),
    )
