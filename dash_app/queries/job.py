"""The job tier's data: GPUs, CPU and memory of a job from its start to its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from dash_app.charts import Chart, Line
from dash_app.queries.appliance import GPU_FIELDS
from dash_app.queries.telemetry import Result, Telemetry, by_index
from dash_app.queries.training import metric_names, training_charts
from dash_app.timerange import Span, span_between
from jobqueue.jobs.shown import with_attempts
from jobqueue.models import Job
from jobqueue.partitions.measures import (
    NOT_MEASURABLE,
    activity_of,
    memory_measurement,
    slice_of,
)
from protocol.gpu_slices import GPUSlice
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Series, Store

_MEMORY = "memory_used_bytes"
_WHOLE_ONLY = ("temperature_celsius", "power_watts")
ATTEMPT_FIELDS = ("cpu_percent", "memory_bytes")
# Panel to the fields of containers and their labels.
CONTAINER_PANELS: Mapping[str, Mapping[str, str]] = {
    "diskio": {"read_bytes_per_second": "read", "written_bytes_per_second": "write"},
    "network": {"received_bytes_per_second": "in", "sent_bytes_per_second": "out"},
}
CONTAINER_FIELDS = tuple(name for fields in CONTAINER_PANELS.values() for name in fields)
MAX_COMPARABLE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """The data of one refresh.

    Attributes:
        appliance: where its latest attempt runs; None on a rented one.
        place: the name of where it runs.
        rented: the contracts under which it ran, which its samples have as their appliance.
        span: from its start to its end or now, at least a minute; None before it starts.
        run_seconds: time since the start of its first attempt.
        gpus: (appliance id, index) of its GPUs that have samples.
        charts: by panel; empty before it starts.
        training: of the metrics that it reports, by name.
    """

    job: Job
    appliance: Appliance | None
    place: str
    rented: frozenset[str]
    span: Span | None
    run_seconds: float
    gpus: tuple[tuple[str, str], ...]
    charts: Mapping[str, Chart]
    problem: str
    training: Mapping[str, Chart] = field(default_factory=dict)


def job_detail(
    session: Session, store: Store, scope: Scope, job_id: str, *, now: datetime
) -> JobDetail:
    """Return one job with its charts."""
    job = scope.get(session, Job, job_id, kind="job", options=with_attempts())
    appliance = job.attempt.own_appliance if job.attempt else None
    place = job.attempt.place_name if job.attempt else ""
    rented = frozenset(attempt.contract_id for attempt in job.attempts if attempt.contract_id)
    starts = [attempt.started_at for attempt in job.attempts if attempt.started_at is not None]
    if not starts:
        return JobDetail(
            job=job,
            appliance=appliance,
            place=place,
            rented=rented,
            span=None,
            run_seconds=0.0,
            gpus=(),
            charts={},
            problem="",
        )
    start_at, end_at = min(starts), job.finished_at or now
    span = span_between(start_at, end_at)
    telemetry = Telemetry(store, scope, span, filters={"job": (job.id,)})
    gpus = _GPUs(telemetry, slice_of(job.attempt.gpu_slice) if job.attempt else None)
    attempts = telemetry.charted("attempt", ATTEMPT_FIELDS, group_by=("attempt",))
    containers = telemetry.charted("container", CONTAINER_FIELDS)
    return JobDetail(
        job=job,
        appliance=appliance,
        place=place,
        rented=rented,
        span=span,
        run_seconds=(end_at - start_at).total_seconds(),
        gpus=gpus.keys(),
        charts=gpus.charts(_names(session, scope, gpus.memory))
        | _attempt_charts(job, attempts)
        | _container_charts(containers),
        training=training_charts(telemetry, job),
        problem=telemetry.problem,
    )


def reported_names(store: Store, scope: Scope, job: Job, *, now: datetime) -> list[str]:
    """Return the names of the metrics that a job has reported so far."""
    starts = [attempt.started_at for attempt in job.attempts if attempt.started_at is not None]
    if not starts:
        return []
    span = span_between(min(starts), job.finished_at or now)
    return metric_names(Telemetry(store, scope, span, filters={"job": (job.id,)}))


def comparable_jobs(session: Session, scope: Scope, job: Job) -> list[Job]:
    """Return jobs of the same tenant that have started, newest first, namesakes before others."""
    statement = (
        select(Job)
        .where(Job.tenant_id == job.tenant_id, Job.started_at.is_not(None), Job.id != job.id)
        .order_by(Job.id.desc())
        .limit(MAX_COMPARABLE)
    )
    others = scope.select(statement, Job)
    jobs = [
        *session.scalars(others.where(Job.name == job.name)).unique(),
        *session.scalars(others).unique(),
    ]
    return list(dict.fromkeys(jobs))[:MAX_COMPARABLE]


def _gpu_key(series: Series) -> tuple[str, str]:
    return series.tags.get(APPLIANCE_TAG, ""), series.tags.get("gpu", "")


def _by_gpu(series: tuple[Series, ...]) -> list[Series]:
    return sorted(
        series,
        key=lambda gpu_series: (
            gpu_series.tags.get(APPLIANCE_TAG, ""),
            by_index(gpu_series.tags.get("gpu", "")),
        ),
    )


def _names(session: Session, scope: Scope, result: Result) -> dict[str, str]:
    idents = {series.tags.get(APPLIANCE_TAG, "") for series in result.series}
    statement: Any = select(Appliance.id, Appliance.name).where(Appliance.id.in_(idents))
    rows = session.execute(scope.select(statement, Appliance))
    return {ident: name for ident, name in rows}  # noqa: C416 - rows, not pairs


class _GPUs:
    """The samples of the GPUs of a job, or of its slice of one."""

    def __init__(self, telemetry: Telemetry, own: GPUSlice | None) -> None:
        self._own = own
        by_gpu = (APPLIANCE_TAG, "gpu")
        # What has the memory of a slice has its activity, too, if anything has.
        activity = activity_of(own)
        of_slice = (_MEMORY, *([activity[1]] if activity else []))
        fields = GPU_FIELDS if own is None else of_slice
        measurement = memory_measurement(own)
        self.memory = telemetry.charted(measurement, fields, group_by=by_gpu)
        self._activity = activity[1] if activity else ""

    def keys(self) -> tuple[tuple[str, str], ...]:
        """Return the appliance and index of each."""
        return tuple(dict.fromkeys(map(_gpu_key, _by_gpu(self.memory.of(_MEMORY)))))

    def charts(self, names: Mapping[str, str]) -> dict[str, Chart]:
        """Return the charts; `names` of appliances are shown where the job ran on several."""
        return {f"gpu-{field}": self._chart(field, names) for field in GPU_FIELDS}

    def _chart(self, field: str, names: Mapping[str, str]) -> Chart:
        name = self._activity if field == "utilization_percent" else field
        lines = []
        for series in _by_gpu(self.memory.of(name)):
            appliance_id, gpu = _gpu_key(series)
            prefix = f"{names.get(appliance_id, '')} " if len(names) > 1 else ""
            lines.append(
                self.memory.line(series, name=f"{prefix}GPU {gpu}", color=by_index(gpu)[0])
            )
        problem = self.memory.problem
        if self._own is not None and not lines and field != _MEMORY:
            problem = problem or f"Not measurable: {self._reason(field)}"
        return Chart(field=field, lines=tuple(lines), problem=problem)

    def _reason(self, field: str) -> str:
        if self._own is None or field in _WHOLE_ONLY:
            return "the driver reports it of the whole GPU only"
        return NOT_MEASURABLE[self._own.mode]


def _attempt_charts(job: Job, result: Result) -> dict[str, Chart]:
    numbers = {attempt.id: attempt.number for attempt in job.attempts}

    def lines(field: str) -> tuple[Line, ...]:
        drawn = []
        for color, series in enumerate(result.of(field)):
            number = numbers.get(series.tags.get("attempt", ""), "")
            drawn.append(result.line(series, name=f"attempt {number}".strip(), color=color))
        return tuple(drawn)

    return {
        f"attempt-{field}": Chart(field=field, lines=lines(field), problem=result.problem)
        for field in ATTEMPT_FIELDS
    }


def _container_charts(result: Result) -> dict[str, Chart]:
    charts = {}
    for panel, fields in CONTAINER_PANELS.items():
        lines = tuple(
            result.line(series, name=label, color=color)
            for color, (name, label) in enumerate(fields.items())
            for series in result.of(name)
        )
        charts[f"attempt-{panel}"] = Chart(
            field=next(iter(fields)), lines=lines, problem=result.problem
        )
    return charts
