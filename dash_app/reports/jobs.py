"""Report on jobs: how many, their outcomes, waits, runs, and how well they used their GPUs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from statistics import fmean, quantiles
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import joinedload, selectinload

from dash_app.reports.report import Cell, Column, ReportBy, Unit
from dash_app.reports.source import MAX_OBJECTS, REMOVED, Source, Table, largest_first
from jobqueue.models import Job
from jobqueue.states import JobState
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import UsageBy, usage_groups

NOT_PLACED = "(not placed)"


def jobs(source: Source) -> Table:
    """Return the jobs that were submitted in the period."""
    period = source.request.period
    statement: Any = select(Job).where(
        Job.submitted_at >= period.since, Job.submitted_at < period.until
    )
    scoped = source.scope.select(statement, Job)
    source.check_count(scoped)
    selected = source.selected
    measured = _measured(source)
    groups: dict[str, list[Job]] = defaultdict(list)
    scoped = scoped.options(joinedload(Job.user), selectinload(Job.attempts))
    for job in source.session.scalars(scoped.order_by(Job.submitted_at)).unique():
        place = job.attempt.place_id if job.attempt else None
        if selected is None or place in source.appliances:
            groups[_group(source, job, place)].append(job)
    everything = [job for group in groups.values() for job in group]
    columns = (
        Column("jobs", "Jobs"),
        Column("succeeded", "Succeeded"),
        Column("failed", "Failed"),
        Column("stopped", "Stopped"),
        Column("lost", "Lost"),
        Column("unfinished", "Unfinished"),
        Column("success_percent", "Success", Unit.PERCENT),
        Column("mean_wait_seconds", "Mean wait", Unit.SECONDS),
        Column("p95_wait_seconds", "95 % wait", Unit.SECONDS),
        Column("mean_run_seconds", "Mean run", Unit.SECONDS),
        Column("efficiency_percent", "GPU efficiency", Unit.PERCENT),
    )
    by = source.request.by
    rows = [
        (name, *_figures(jobs, measured, source.now)) for name, jobs in largest_first(groups, by)
    ]
    return Table(
        columns,
        rows,
        _figures(everything, measured, source.now),
        (
            "Jobs count by their submission; waits are of jobs that started.",
            "Success is the share of succeeded among succeeded, failed and lost ones.",
            "GPU efficiency is the share of the measured GPU time in which a kernel ran.",
        ),
    )


def percentile_95(values: Sequence[float]) -> float | None:
    """Return the value that 95 % don't exceed, between the nearest two; None without any."""
    if len(values) < 2:  # noqa: PLR2004 - quantiles need two
        return values[0] if values else None
    return quantiles(values, n=20, method="inclusive")[-1]


def _measured(source: Source) -> Mapping[str, tuple[float, float]]:
    """Return the used and the idle GPU-seconds of jobs by id, since the period began."""
    period = Period(source.request.period.since, source.now)
    live = live_use(source.session, source.store, source.scope, period, now=source.now)
    groups = usage_groups(
        source.session, source.scope, period, by=UsageBy.JOB, live=live, limit=MAX_OBJECTS
    )
    return {job.key: (job.used_gpu_seconds, job.idle_gpu_seconds) for job in groups}


def _figures(
    jobs: Sequence[Job], measured: Mapping[str, tuple[float, float]], now: datetime
) -> list[Cell]:
    counts = {state: sum(job.state is state for job in jobs) for state in JobState}
    ended = counts[JobState.SUCCEEDED] + counts[JobState.FAILED] + counts[JobState.LOST]
    waits = [(job.started_at - job.submitted_at).total_seconds() for job in jobs if job.started_at]
    runs = [
        ((job.finished_at or now) - job.started_at).total_seconds()
        for job in jobs
        if job.started_at
    ]
    used, idle = (sum(measured.get(job.id, (0, 0))[at] for job in jobs) for at in (0, 1))
    return [
        len(jobs),
        counts[JobState.SUCCEEDED],
        counts[JobState.FAILED],
        counts[JobState.STOPPED],
        counts[JobState.LOST],
        sum(not job.state.is_final for job in jobs),
        100 * counts[JobState.SUCCEEDED] / ended if ended else None,
        fmean(waits) if waits else None,
        percentile_95(waits),
        fmean(runs) if runs else None,
        100 * used / (used + idle) if used + idle else None,
    ]


def _group(source: Source, job: Job, appliance_id: str | None) -> str:
    by = source.request.by
    if by is ReportBy.USER:
        return job.user.email if job.user else REMOVED
    if by is ReportBy.DAY:
        return f"{job.submitted_at:%Y-%m-%d}"
    if by is ReportBy.TENANT:
        return source.tenant_names.get(job.tenant_id, REMOVED)
    return NOT_PLACED if appliance_id is None else source.group_of(appliance_id)
