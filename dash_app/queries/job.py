"""The job tier's figures: what a job's GPUs, cores and memory did over its life."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dash_app.charts import Chart, Line, line_of
from dash_app.queries.telemetry import Answer, Telemetry, by_index
from dash_app.timerange import Span, span_between
from jobqueue.models import Job
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Series, Store

GPU_FIELDS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
ATTEMPT_FIELDS = ("cpu_percent", "memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """Everything of one refresh of the job tier.

    Attributes:
        span: the job's life so far, at least a minute; None while it has not started.
        ran_seconds: how long it has run, from its first attempt's start.
        gpus: the indices of its GPUs that reported, with their appliance's id.
        charts: by panel key; empty while the job has not started.
    """

    job: Job
    appliance: Appliance | None
    span: Span | None
    ran_seconds: float
    gpus: tuple[tuple[str, str], ...]
    charts: Mapping[str, Chart]
    problem: str


def find_job(session: Session, scope: Scope, job_id: str) -> Job:
    """Return the job, or raise the one `NotFoundError` for missing and foreign ones."""
    return scope.get(session, Job, job_id, kind="job")


def job_detail(
    session: Session, store: Store, scope: Scope, job_id: str, *, now: datetime
) -> JobDetail:
    """Return one job with its charts over its life."""
    job = find_job(session, scope, job_id)
    appliance = job.attempt.appliance if job.attempt else None
    life = life_of(job, now=now)
    if life is None:
        return JobDetail(
            job=job, appliance=appliance, span=None, ran_seconds=0.0, gpus=(), charts={}, problem=""
        )
    span = span_between(*life)
    telemetry = Telemetry(store, scope, span, filters={"job": (job.id,)})
    gpus = telemetry.over_time("gpu", GPU_FIELDS, group_by=(APPLIANCE_TAG, "gpu"))
    attempts = telemetry.over_time("attempt", ATTEMPT_FIELDS, group_by=("attempt",))
    return JobDetail(
        job=job,
        appliance=appliance,
        span=span,
        ran_seconds=(life[1] - life[0]).total_seconds(),
        gpus=tuple(_gpu_key(series) for series in _by_gpu(gpus.of("utilization_percent"))),
        charts=_gpu_charts(gpus, _names(session, scope, gpus)) | _attempt_charts(job, attempts),
        problem=telemetry.problem,
    )


def life_of(job: Job, *, now: datetime) -> tuple[datetime, datetime] | None:
    """Return the first attempt's start and the job's end, or `now` while it runs."""
    starts = [attempt.started_at for attempt in job.attempts if attempt.started_at is not None]
    return (min(starts), job.finished_at or now) if starts else None


def _gpu_key(series: Series) -> tuple[str, str]:
    return series.tags.get(APPLIANCE_TAG, ""), series.tags.get("gpu", "")


def _by_gpu(series: tuple[Series, ...]) -> list[Series]:
    return sorted(series, key=lambda one: (one.tags.get(APPLIANCE_TAG, ""),
                                           by_index(one.tags.get("gpu", ""))))  # fmt: skip


def _names(session: Session, scope: Scope, answer: Answer) -> dict[str, str]:
    idents = {series.tags.get(APPLIANCE_TAG, "") for series in answer.series}
    statement: Any = select(Appliance.id, Appliance.name).where(Appliance.id.in_(idents))
    rows = session.execute(scope.select(statement, Appliance))
    return {ident: name for ident, name in rows}  # noqa: C416 - rows, not pairs


def _gpu_charts(answer: Answer, names: Mapping[str, str]) -> dict[str, Chart]:
    """Name the appliance beside the GPU only where the job moved between appliances."""

    def lines(field: str) -> tuple[Line, ...]:
        found = []
        for series in _by_gpu(answer.of(field)):
            appliance_id, gpu = _gpu_key(series)
            prefix = f"{names.get(appliance_id, '')} " if len(names) > 1 else ""
            found.append(line_of(series, name=f"{prefix}GPU {gpu}", color=by_index(gpu)[0]))
        return tuple(found)

    return {
        f"gpu-{field}": Chart(field=field, lines=lines(field), problem=answer.problem)
        for field in GPU_FIELDS
    }


def _attempt_charts(job: Job, answer: Answer) -> dict[str, Chart]:
    numbers = {attempt.id: attempt.number for attempt in job.attempts}
    charts = {}
    for field in ATTEMPT_FIELDS:
        lines = tuple(
            line_of(
                series,
                name=f"attempt {numbers.get(series.tags.get('attempt', ''), index + 1)}",
                color=index,
            )
            for index, series in enumerate(answer.of(field))
        )
        charts[f"attempt-{field}"] = Chart(field=field, lines=lines, problem=answer.problem)
    return charts
