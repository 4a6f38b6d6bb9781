"""What a job uses, read from the time series: its container's CPU and memory, and its GPUs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from core.clock import NS_PER_SECOND, to_ns
from core.units import unit_of
from jobqueue.models import Job
from timeseries.store import RangeQuery, Series, Store

LIVE_WINDOW = timedelta(minutes=10)
MAX_POINTS = 120
SHORTEST_STEP_SECONDS = 2
CONTAINER_FIELDS = ("cpu_percent", "memory_bytes")
GPU_FIELDS = ("utilization_percent", "memory_used_bytes", "power_watts", "temperature_celsius")


@dataclass(frozen=True, slots=True)
class UsageSeries:
    """Values of one field over time; `gpu` is a GPU's index, empty for the container."""

    field: str
    gpu: str
    unit: str
    times_ms: list[int]
    values: list[float]


@dataclass(frozen=True, slots=True)
class JobUsage:
    """All series of one job."""

    step_seconds: float
    series: list[UsageSeries]


def job_usage(
    store: Store, job: Job, *, tenants: tuple[str, ...] | None, now: datetime
) -> JobUsage:
    """Return the last minutes of a running job, or the whole run of one that has ended.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    if job.started_at is None:
        return JobUsage(step_seconds=SHORTEST_STEP_SECONDS, series=[])
    start_at, end_at = _window(job.started_at, job.finished_at, now)
    span_seconds = (end_at - start_at).total_seconds()
    step_seconds = max(SHORTEST_STEP_SECONDS, int(span_seconds / MAX_POINTS))

    def read(measurement: str, fields: tuple[str, ...], group_by: tuple[str, ...]) -> list[Series]:
        return store.query_range(
            RangeQuery(
                measurement=measurement,
                fields=fields,
                start_ns=to_ns(start_at),
                end_ns=to_ns(end_at),
                step_ns=step_seconds * NS_PER_SECOND,
                tenants=tenants,
                filters={"job": (job.id,)},
                group_by=group_by,
            )
        )

    found = [*read("attempt", CONTAINER_FIELDS, ()), *read("gpu", GPU_FIELDS, ("gpu",))]
    return JobUsage(step_seconds=step_seconds, series=list(_shaped(found)))


def _window(
    started_at: datetime, finished_at: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    end_at = (finished_at or now) + timedelta(seconds=SHORTEST_STEP_SECONDS)
    start_at = started_at if finished_at else max(started_at, now - LIVE_WINDOW)
    return min(start_at, end_at), end_at


def _shaped(found: Iterable[Series]) -> Iterable[UsageSeries]:
    for series in found:
        yield UsageSeries(
            field=series.field,
            gpu=series.tags.get("gpu", ""),
            unit=unit_of(series.field).symbol,
            times_ms=[time_ns // 1_000_000 for time_ns in series.times_ns],
            values=series.values,
        )
