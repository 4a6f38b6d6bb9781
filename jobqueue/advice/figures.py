"""The figures that advice follows from: GPU-hours of each hour of a period, by GPU model.

demand = allocated + rented + waiting
short  = demand - capacity, as far as it waited or was rented
free   = capacity - allocated

Hours of the week are named in words, such as `Mon-Fri 09:00-17:00`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from itertools import groupby

import msgspec
import numpy as np

from jobqueue.usage.ledger import HOUR

DAYS, HOURS_PER_DAY = 7, 24
DAY_NAMES = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
# Hours with at least this part of the largest mean are named.
_HIGH_RATIO = 0.6
MAX_PARTS = 3
Ranges = tuple[tuple[int, int], ...]


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


def high_hours(week: np.ndarray) -> str:
    """Return the hours of a week with the highest means; nothing where all are 0, or alike.

    Args:
        week: means by day and hour, as of `FleetFigures.week`.
    """
    values = np.nan_to_num(week)
    highest = float(values.max())
    if highest <= 0:
        return ""
    is_high = values >= _HIGH_RATIO * highest
    if is_high.all():
        return "at all hours"
    days = [tuple(_ranges(is_high[day].tolist())) for day in range(DAYS)]
    parts = [
        (span, sum(values[day, begin:end].sum() for day in span for begin, end in ranges), ranges)
        for ranges, span in _alike(days)
        if ranges
    ]
    largest = sorted(parts, key=lambda part: -part[1])[:MAX_PARTS]
    texts = [_text(span, ranges) for span, _, ranges in sorted(largest, key=lambda part: part[0])]
    return "; ".join(texts) + (" and others" if len(parts) > MAX_PARTS else "")


def _alike(days: Sequence[Ranges]) -> Iterator[tuple[Ranges, list[int]]]:
    """Yield successive days with the same hours."""
    for ranges, group in groupby(range(DAYS), key=lambda day: days[day]):
        yield ranges, list(group)


def _ranges(is_high: Sequence[bool]) -> Iterator[tuple[int, int]]:
    hour = 0
    for value, group in groupby(is_high):
        length = len(list(group))
        if value:
            yield hour, hour + length
        hour += length


def _text(days: Sequence[int], ranges: Ranges) -> str:
    first, last = DAY_NAMES[days[0]], DAY_NAMES[days[-1]]
    named = first if first == last else f"{first}-{last}"
    if ranges == ((0, HOURS_PER_DAY),):
        return f"{named} all day"
    return f"{named} {', '.join(f'{begin:02}:00-{end:02}:00' for begin, end in ranges)}"
