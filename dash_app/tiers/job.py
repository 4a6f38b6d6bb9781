"""The job tier: GPUs, CPU and memory of one job from its start to its end."""

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from core.errors import NotFoundError
from core.quantities import format_duration, format_size
from dash_app import components
from dash_app.charts import Chart, with_earlier
from dash_app.components import badge, framed, graph, panel, stat
from dash_app.context import Dashboard, Page, View
from dash_app.figures import message_figure, time_figures
from dash_app.markup import area
from dash_app.notes import Note
from dash_app.queries.job import JobDetail, comparable_jobs, job_detail, reported_names
from dash_app.queries.training import MAX_CHARTS, slot_of
from dash_app.routes import PREFIX, appliance_path, gpu_path, job_path
from dash_app.tiers.appliance import GPU_PANELS
from dash_app.tiers.hardware import process_table, processes_on
from dash_app.timerange import Controls
from jobqueue.jobs.shown import with_attempts
from jobqueue.models import Job
from jobqueue.partitions.measures import slice_label, slice_of
from jobqueue.states import JobState
from protocol.clusters import are_requested

ATTEMPT_PANELS = {
    "attempt-cpu_percent": "CPU (100 % = 1 core)",
    "attempt-memory_bytes": "Memory",
    "attempt-diskio": "Disk I/O",
    "attempt-network": "Network",
}
PANELS = GPU_PANELS | ATTEMPT_PANELS
PEER = "job:"
Charts = Mapping[str, Chart]
_TONES = {
    JobState.SUCCEEDED: "success",
    JobState.FAILED: "danger",
    JobState.LOST: "danger",
    JobState.RUNNING: "primary",
    JobState.STARTING: "primary",
}


def layout(view: View) -> Page:
    """Return the page of one job."""
    options = with_attempts()
    job = view.scope.get(view.session, Job, view.route.ident, kind="job", options=options)
    gpu_panels, attempt_panels = (
        [panel(f"job-{key}", title, has_own_time=True) for key, title in panels.items()]
        for panels in (GPU_PANELS, ATTEMPT_PANELS)
    )
    tabs = {
        "Dashboard": f"{job_path(job.id)}{view.controls.search}",
        "Details and log": f"/jobs/{job.id}",
        "Results": f"/jobs/{job.id}/results",
        "Logs": view.controls.logs_path(job_id=job.id, since=job.submitted_at),
    }
    # Without knowing which GPUs a cluster has chosen, there is nothing to chart of them.
    are_unknown = job.attempt is not None and are_requested(job.attempt.gpu_uuids)
    has_gpus = job.wants_gpus and not are_unknown
    body = [
        components.tabs("Pages of this job", tabs, chosen="Dashboard"),
        area("job-header", "vdd-header"),
        area("job-stats", "vdd-stats is-seven"),
        html.Div(gpu_panels, className="vdd-panels", hidden=not has_gpus),
        _training(view, job),
        html.Div(attempt_panels, className="vdd-panels"),
        html.Section(
            [html.H2("GPU processes", className="vdd-group"), area("job-processes", "vdd-box")],
            hidden=not has_gpus,
        ),
    ]
    crumbs = (("Fleet", f"{PREFIX}{view.controls.search}"), ("Jobs", "/jobs"))
    peers = {
        f"{PEER}{peer.id}": f"{peer.name}, {view.controls.time_text(peer.started_at)}"
        for peer in comparable_jobs(view.session, view.scope, job)
        if peer.started_at is not None
    }
    return Page(title=job.name, crumbs=crumbs, body=body, has_range=False, peers=peers)


def refresh(view: View) -> dict[str, Any]:
    """Return the data of a job."""
    detail = job_detail(view.session, view.store, view.scope, view.route.ident, now=view.now)
    if detail.span is None:
        has_ended = detail.job.state.is_final
        text = "The job never started" if has_ended else "The job has not started yet"
        figures = dict.fromkeys(PANELS, message_figure(text))
    else:
        charts, training = _compared(view, detail)
        figures = time_figures(charts, detail.span, revision=detail.job.id)
        drawn = time_figures(training, detail.span, revision=detail.job.id)
        figures |= {f"chart.{slot_of(name)}": figure for name, figure in drawn.items()}
    return {
        "problem": components.warning(detail.problem),
        "header": _header(detail, view.controls.search),
        "stats": _stats(detail, view.controls),
        "processes": _processes(detail, view.controls.search),
        **figures,
    }


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=("header", "stats", "processes"),
    panels=tuple(PANELS),
    parts={"chart": "figure"},
)


def _training(view: View, job: Job) -> Any:  # noqa: ANN401 - a Dash component
    """Return a chart for each metric that the job has reported, so far as the page is opened."""
    names = reported_names(view.store, view.scope, job, now=view.now)
    panels = [
        framed(
            graph({"tier": "job", "part": "chart", "index": slot_of(name)}, has_own_time=True),
            name,
            Note(
                "Reported by the job; the last value of each step of the chart.", "job_metric.value"
            ),
            class_name="vdd-panel has-own-time",
        )
        for name in names[:MAX_CHARTS]
    ]
    hidden = len(names) - MAX_CHARTS
    note = [html.P(f"{hidden} more metrics are in the store.", className="vdd-muted")]
    return html.Section(
        [
            html.H2("Training", className="vdd-group"),
            html.Div(panels, className="vdd-panels"),
            *(note if hidden > 0 else []),
        ],
        hidden=not names,
    )


def _compared(view: View, detail: JobDetail) -> tuple[Charts, Charts]:
    """Return the charts with the lines of the job that the address names, from its start on."""
    ident = view.controls.compare.removeprefix(PEER)
    unchanged = detail.charts, detail.training
    if detail.span is None or not view.controls.compare.startswith(PEER) or ident == detail.job.id:
        return unchanged
    try:
        other = job_detail(view.session, view.store, view.scope, ident, now=view.now)
    except NotFoundError:
        return unchanged
    if other.span is None:
        return unchanged
    shift_ns = detail.span.start_ns - other.span.start_ns

    def beside(own: Charts, others: Charts) -> Charts:
        return {
            key: with_earlier(chart, others[key], shift_ns=shift_ns, label=other.job.name)
            if key in others
            else chart
            for key, chart in own.items()
        }

    return beside(detail.charts, other.charts), beside(detail.training, other.training)


def _header(detail: JobDetail, search: str) -> list[Any]:
    job = detail.job
    reason = job.message or job.reason.value.replace("_", " ")
    location: list[Any] = []
    if detail.appliance is not None:
        link = f"{appliance_path(detail.appliance.id)}{search}"
        location = [dcc.Link(detail.appliance.name, href=link)]
    elif detail.place:
        location = [detail.place]
    for appliance_id, gpu in detail.gpus:
        href = f"{gpu_path(appliance_id, gpu)}{search}"
        is_rented = appliance_id in detail.rented
        location += [" · ", f"GPU {gpu}" if is_rented else dcc.Link(f"GPU {gpu}", href=href)]
    return [
        badge(job.state.value, tone=_TONES.get(job.state, "secondary")),
        html.Span(reason, className="vdd-muted") if reason else None,
        html.Span(location, className="vdd-facts"),
    ]


def _stats(detail: JobDetail, controls: Controls) -> list[Any]:
    job = detail.job
    run_time = format_duration(detail.run_seconds) if detail.span else components.ABSENT
    return [
        stat("Runtime", run_time, note=_times(job, controls)),
        _gpu_stat(job),
        stat("CPU cores", f"{job.cpus:g}"),
        stat("Memory", format_size(job.memory_bytes)),
        stat("Attempts", str(len(job.attempts))),
    ]


def _gpu_stat(job: Job) -> Any:  # noqa: ANN401 - a Dash component
    own = slice_of(job.attempt.gpu_slice) if job.attempt else None
    if own is not None:
        memory = f"{format_size(own.memory_bytes)} of memory" if own.memory_bytes else ""
        return stat("GPU slice", slice_label(own), note=memory)
    part = f"at least {format_size(job.gpu_memory_bytes)} each" if job.gpu_memory_bytes else ""
    if job.wants_gpus and not job.gpus:
        return stat("GPUs", "a part of one" if job.attempt is None else "1")
    return stat("GPUs", str(job.gpus), note=part)


def _processes(detail: JobDetail, search: str) -> Any:  # noqa: ANN401 - a Dash component
    """Return the processes on the GPUs of a job that runs."""
    job = detail.job
    if detail.appliance is None or job.state is not JobState.RUNNING:
        where = " on an own appliance" if detail.rented else ""
        text = f"The processes of the job are here while it runs{where}."
        return html.P(text, className="vdd-muted")
    processes = processes_on(detail.appliance, job_id=job.id)
    own = slice_of(job.attempt.gpu_slice) if job.attempt else None
    names = {job.id: job.name} | ({own.uuid: own.profile} if own and own.uuid else {})
    return process_table(processes, names, appliance_id=detail.appliance.id, search=search)


def _times(job: Job, controls: Controls) -> str:
    if job.started_at is None:
        return f"submitted {controls.time_text(job.submitted_at)}"
    start = controls.time_text(job.started_at)
    if job.finished_at is None:
        return f"since {start}"
    return f"{start} to {controls.time_text(job.finished_at)}"
