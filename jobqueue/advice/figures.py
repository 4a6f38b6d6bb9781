"""The figures that advice follows from: GPU-hours of each hour of a period, by GPU model.

demand = allocated + rented + waiting
short  = demand - capacity, as far as it waited or was rented
free   = capacity - allocated
"""

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo

import msgspec
import numpy as np

from jobqueue.usage.ledger import HOUR

DAYS, HOURS_PER_DAY = 7, 24


class ModelFigures(msgspec.Struct, kw_only=True):
    """A GPU model; lists have the GPU-hours of each hour of the period.

    Attributes:
        gpu_model: as the driver names it; words that jobs asked for where no GPU has them.
        gpus: that own appliances have now.
        appliances: that have such GPUs now.
        jobs: that started in the period.
        wait_seconds_p50: how long they had waited, the median; None without any.
        wait_seconds_p95: what 95 % of them did not exceed.
        capacity: of own GPUs while their appliance could run jobs.
        allocated: on own GPUs, those of customers included.
        idle: allocated, but measured as idle.
        rented: what own jobs used of appliances of other tenants.
        waiting: what jobs asked for while they waited.
    """

    gpu_model: str
    gpus: int = 0
    appliances: int = 0
    jobs: int = 0
    wait_seconds_p50: float | None = None
    wait_seconds_p95: float | None = None
    capacity: list[float]
    allocated: list[float]
    idle: list[float]
    rented: list[float]
    waiting: list[float]

    def free(self) -> np.ndarray:
        """Return the GPU-hours that no job was allocated, by hour."""
        return np.maximum(np.subtract(self.capacity, self.allocated), 0.0)

    def short(self) -> np.ndarray:
        """Return the GPU-hours by which the demand exceeded the capacity, by hour."""
        elsewhere = np.add(self.rented, self.waiting)
        missing = np.subtract(np.add(self.allocated, elsewhere), self.capacity)
        short: np.ndarray = np.clip(missing, 0.0, elsewhere)
        return short

    def blocked(self) -> np.ndarray:
        """Return the GPU-hours that waited while as many were free, by hour."""
        blocked: np.ndarray = np.minimum(self.waiting, self.free())
        return blocked


class ApplianceFigures(msgspec.Struct, kw_only=True):
    """An own appliance or cluster; `last_used_at` is the end of the last hour with jobs."""

    id: str
    name: str
    gpu_model: str
    gpus: int
    capacity_gpu_hours: float
    allocated_gpu_hours: float
    idle_gpu_hours: float
    last_used_at: datetime | None = None


class Waiting(msgspec.Struct, kw_only=True):
    """How long the jobs with GPUs of a replay waited."""

    jobs: int
    wait_seconds_p50: float | None
    wait_seconds_p95: float | None
    waiting_gpu_hours: float


class Addition(msgspec.Struct, kw_only=True):
    """What one more appliance would have changed: a replay beside that of today's appliances."""

    gpu_model: str
    appliance: str
    gpus: int
    today: Waiting
    changed: Waiting


class FleetFigures(msgspec.Struct, kw_only=True):
    """All figures of a period of whole hours.

    Attributes:
        models: those with the most GPU-hours of capacity and demand first.
        appliances: those with the most free GPU-hours first.
        additions: for models that jobs waited for.
        replayed_since: the begin of what was replayed; None without replays.
        problem: why there are no, or fewer, replays.
    """

    since: datetime
    until: datetime
    models: list[ModelFigures]
    appliances: list[ApplianceFigures]
    additions: list[Addition] = []
    replayed_since: datetime | None = None
    problem: str = ""

    @property
    def hours(self) -> int:
        """The length of the period in hours."""
        return (self.until - self.since) // HOUR

    def slots(self, zone: tzinfo) -> np.ndarray:
        """Return the hour of the week of each hour in a time zone: 0 is Monday at 0 o'clock."""
        local = ((self.since + number * HOUR).astimezone(zone) for number in range(self.hours))
        hours = (at.weekday() * HOURS_PER_DAY + at.hour for at in local)
        return np.fromiter(hours, np.int64, self.hours)

    def week(self, values: Sequence[float] | np.ndarray, zone: tzinfo) -> np.ndarray:
        """Return the means of hourly values by day and hour of the week: 7 rows of 24.

        Hours that the period does not have are NaN.
        """
        slots, size = self.slots(zone), DAYS * HOURS_PER_DAY
        sums = np.bincount(slots, weights=np.asarray(values, np.float64), minlength=size)
        counts = np.bincount(slots, minlength=size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return means.reshape(DAYS, HOURS_PER_DAY)


def hour_edges(since: datetime, until: datetime) -> np.ndarray:
    """Return the edges of the hours of a period, in seconds since its begin."""
    return np.arange((until - since) // HOUR + 1) * timedelta(hours=1).total_seconds()
