"""Small pictures of how busy the GPUs of listed jobs are, for all jobs at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from core.clock import NS_PER_SECOND, to_ns
from core.errors import UnavailableError
from jobqueue.models import Job
from jobqueue.partitions.measures import ACTIVITY
from portal.context import current_scope, now, portal
from timeseries.store import APPLIANCE_TAG, RangeQuery, Series

# Jobs that ended before have no picture: its query would grow with the list's age.
RECENT = timedelta(hours=6)
WIDTH, HEIGHT = 72, 22
_MARGIN = 2
_STEPS = 180
_LEAST_STEP = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The line of a job: positions in a picture of `WIDTH` by `HEIGHT`, and its figures as text."""

    points: Sequence[tuple[float, float]]
    percent: str
    label: str


def sparklines(jobs: Sequence[Job]) -> dict[str, Sparkline]:
    """Return the mean GPU utilization over time of recent jobs with GPUs, by job id.

    Jobs without samples have none, and no job has one while the store is unavailable or the
    tenant runs too many other queries.
    """
    at, scope = now(), current_scope()
    recent = [
        job
        for job in jobs
        if job.attempt
        and job.attempt.gpu_uuids
        and job.started_at
        and (job.finished_at or at) > at - RECENT
    ]
    if not recent:
        return {}
    start_at = max(at - RECENT, min(job.started_at or at for job in recent))
    step = max(_LEAST_STEP, (at - start_at) / _STEPS)
    step_ns = round(step.total_seconds()) * NS_PER_SECOND
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        start_ns=to_ns(start_at) // step_ns * step_ns,
        end_ns=to_ns(at),
        step_ns=step_ns,
        tenants=scope.tenants,
        filters={
            "job": tuple(job.id for job in recent),
            APPLIANCE_TAG: tuple({attempt.place_id for job in recent for attempt in job.attempts}),
        },
        group_by=("job",),
    )
    with portal().queries.running(scope.tenant_id or "") as is_admitted:
        if not is_admitted:
            return {}
        try:
            series_list = portal().store.query_range(query)
            if any(job.attempt and job.attempt.gpu_slice for job in recent):
                of_slices = replace(query, measurement="gpu_slice", fields=(ACTIVITY,))
                # A job with a whole GPU has the slices of it, too.
                series_list = portal().store.query_range(of_slices) + series_list
            series_by_job = {series.tags["job"]: series for series in series_list}
        except UnavailableError:
            return {}
    return {
        job.id: _drawn(job, series_by_job[job.id], start_at, at)
        for job in recent
        if job.id in series_by_job
    }


def _drawn(job: Job, series: Series, start_at: datetime, at: datetime) -> Sparkline:
    start_ns = to_ns(max(job.started_at or start_at, start_at))
    width_ns = max(1, to_ns(job.finished_at or at) - start_ns)
    points = [
        (
            _MARGIN + (WIDTH - 2 * _MARGIN) * min(1.0, max(0.0, (time_ns - start_ns) / width_ns)),
            _MARGIN + (HEIGHT - 2 * _MARGIN) * (1 - min(1.0, max(0.0, percent / 100))),
        )
        for time_ns, percent in zip(series.times_ns, series.values, strict=True)
    ]
    mean = f"{sum(series.values) / len(series.values):z.0f} %"
    low, high = min(series.values), max(series.values)
    return Sparkline(
        points=[(round(x, 1), round(y, 1)) for x, y in points],
        percent=mean if job.finished_at else f"{series.values[-1]:z.0f} %",
        label=f"GPU utilization of {job.title}: {mean} on average, {low:z.0f} to {high:z.0f} %",
    )
