"""The job tier: what a job's GPUs, cores and memory did over its life."""

from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update

from core.errors import NotFoundError
from core.units import format_value
from dash_app import components
from dash_app.components import badge, panel, stat
from dash_app.context import Context, Page, View
from dash_app.figures import message_figure, time_figure
from dash_app.live import Areas, area
from dash_app.queries.job import JobDetail, find_job, job_detail
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.tiers.appliance import span_words
from dash_app.timerange import Controls
from jobqueue.models import Job
from jobqueue.states import JobState

NOT_STARTED = "The job has not started yet"
GPU_PANELS = {
    "gpu-utilization_percent": "GPU utilisation",
    "gpu-memory_used_bytes": "GPU memory used",
    "gpu-temperature_celsius": "GPU temperature",
    "gpu-power_watts": "GPU power",
}
ATTEMPT_PANELS = {
    "attempt-cpu_percent": "CPU, 100 % a core",
    "attempt-memory_bytes": "Memory",
}
PANELS = GPU_PANELS | ATTEMPT_PANELS
AREAS = Areas("job", ("job-header", "job-stats"))
_TONES = {JobState.SUCCEEDED: "success", JobState.FAILED: "danger", JobState.LOST: "danger",
          JobState.RUNNING: "primary", JobState.STARTING: "primary"}  # fmt: skip


def layout(view: View) -> Page:
    """Return the skeleton of one job's dashboard."""
    found = find_job(view.session, view.scope, view.route.ident)
    keys = PANELS if found.gpus else ATTEMPT_PANELS
    body = html.Div(
        [
            dcc.Store(id="job-subject", data=found.id),
            html.Div(id="job-problem"),
            *AREAS.stores(),
            area("job-header", classes="vdd-header"),
            area("job-stats", classes="vdd-stats"),
            html.Div(
                [
                    panel(f"job-{key}", title, classes="" if key in keys else "d-none")
                    for key, title in PANELS.items()
                ],
                className="vdd-panels",
            ),
        ]
    )
    crumbs = (("Fleet", f"{PREFIX}{view.controls.search}"), ("Jobs", "/jobs"))
    return Page(title=found.name, crumbs=crumbs, body=body, has_range=False)


def register(app: Dash, context: Context) -> None:
    """Register the callback that refreshes a job's dashboard."""
    AREAS.register(app)

    @app.callback(
        Output("job-problem", "children"),
        *AREAS.outputs(),
        *[Output(f"job-{key}", "figure") for key in PANELS],
        Input("tick", "n_intervals"),
        Input("url", "search"),
        Input("job-subject", "data"),
        AREAS.state(),
    )
    def refresh(
        _ticks: int | None, search: str | None, job_id: str, shown: dict[str, str] | None
    ) -> tuple[Any, ...]:
        controls = Controls.parse(search)
        try:
            with context.reading() as (session, scope):
                found = job_detail(session, context.store, scope, job_id, now=context.clock())
        except NotFoundError as error:
            kept = [no_update] * (len(AREAS.outputs()) + len(PANELS))
            return (components.problem_note(error.message), *kept)
        return (
            components.problem_note(found.problem),
            *AREAS.fill(
                shown,
                {"job-header": _header(found, controls.search), "job-stats": _stats(found)},
            ),
            *[_figure(found, key) for key in PANELS],
        )


def _figure(found: JobDetail, key: str) -> dict[str, Any]:
    if found.span is None:
        return message_figure(NOT_STARTED)
    return time_figure(found.charts[key], found.span, revision=found.job.id)


def _header(found: JobDetail, search: str) -> list[Any]:
    job = found.job
    reason = job.message or job.reason.value.replace("_", " ")
    where: list[Any] = []
    if found.appliance is not None:
        link = f"{appliance_path(found.appliance.id)}{search}"
        where = [dcc.Link(found.appliance.name, href=link)]
    where += [
        [" · ", dcc.Link(f"GPU {gpu}", href=f"{gpu_path(appliance_id, gpu)}{search}")]
        for appliance_id, gpu in found.gpus
    ]
    return [
        badge(job.state.value, tone=_TONES.get(job.state, "secondary")),
        html.Span(reason, className="vdd-muted") if reason else None,
        html.Span([part for piece in where for part in (piece if isinstance(piece, list) else
                   [piece])], className="vdd-facts"),
        html.A("Job page and log", href=f"/jobs/{job.id}", className="vdd-header-link"),
    ]  # fmt: skip


def _stats(found: JobDetail) -> list[Any]:
    job = found.job
    run_time = span_words(found.ran_seconds) if found.span else components.ABSENT
    return [
        stat("Run time", run_time, note=_times(job)),
        stat("GPUs", str(job.gpus),
             note=f"at least {format_value('_bytes', job.gpu_memory_bytes)} each"
             if job.gpu_memory_bytes else ""),
        stat("CPU cores", f"{job.cpus:g}"),
        stat("Memory", format_value("_bytes", job.memory_bytes)),
        stat("Attempts", str(len(job.attempts))),
    ]  # fmt: skip


def _times(job: Job) -> str:
    if job.started_at is None:
        return f"submitted {job.submitted_at:%b %d %H:%M} UTC"
    until = f"{job.finished_at:%b %d %H:%M}" if job.finished_at else "now"
    return f"{job.started_at:%b %d %H:%M} to {until} UTC"
