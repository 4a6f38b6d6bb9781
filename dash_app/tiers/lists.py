"""Short tables of what stands out in a fleet, each row with a link to its cause."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from dash_app import components
from dash_app.components import percent_text, value_text
from dash_app.job_links import job_link
from dash_app.queries.rankings import GPUAt, ModelCapacity, Rankings
from dash_app.routes import appliance_path, gpu_path, job_path

SHARED_NOTE = " GPUs in slices count apart, with the slots or shares that are free."
GPU_HOURS_NOTE = "Allocated in this time range, the current hour included."
Rows = Sequence[Sequence[Any]]


def lists(ranked: Rankings, *, search: str) -> list[Any]:
    """Return the tables; `search` is the query string of their links."""

    def gpus(ranking: Sequence[tuple[GPUAt, float]], field: str) -> Rows:
        return [[_gpu_link(gpu_at, search), value_text(field, value)] for gpu_at, value in ranking]

    idle = [
        [
            _gpu_link(gpu_at, search),
            _job_link(gpu_at, search),
            value_text("utilization_percent", share),
        ]
        for gpu_at, share in ranked.idle
    ]
    fullest = [
        [
            dcc.Link(
                f"{card.name} · {card.disk_mount}",
                href=f"{appliance_path(card.appliance_id)}{search}",
            ),
            percent_text(card.disk_percent),
        ]
        for card in ranked.fullest
    ]
    is_allocated = any(model.allocated for model in ranked.capacity)
    has_shared = any(model.shared for model in ranked.capacity)
    capacity = [
        [
            model.model,
            model.total,
            model.allocated,
            model.busy,
            model.idle,
            model.free,
            *([_shared_text(model)] if has_shared else []),
            model.failed,
        ]
        for model in ranked.capacity
    ]
    jobs = [
        [dcc.Link(job.name, href=f"{job_path(job.key)}{search}"), f"{job.allocated_gpu_hours:,.1f}"]
        for job in ranked.jobs
    ]
    return [
        _list(
            "Capacity by GPU model",
            (
                *("Model", "GPUs", "Allocated", "Busy", "Idle", "Free"),
                *(["In slices"] if has_shared else []),
                "Out of service",
            ),
            capacity,
            empty="No GPUs.",
            note="Busy and idle GPUs are allocated: busy ones had a mean utilization of at least "
            "5 % in this time range." + (SHARED_NOTE if has_shared else ""),
        ),
        _list(
            "Hottest GPUs",
            ("GPU", "Now"),
            gpus(ranked.hottest, "temperature_celsius"),
            empty="No temperatures.",
        ),
        _list(
            "Most throttled",
            ("GPU", "Share of the time"),
            gpus(ranked.throttled, "throttled_percent"),
            empty="No GPU was throttled in this time range.",
        ),
        _list(
            "Allocated but idle",
            ("GPU", "Job", "Utilization"),
            idle,
            empty="All allocated GPUs are busy." if is_allocated else "No GPU is allocated.",
        ),
        _list(
            "Fullest disks",
            ("File system", "Used"),
            fullest,
            empty="No disks.",
        ),
        _list(
            "Jobs by GPU-hours",
            ("Job", "GPU-hours"),
            jobs,
            empty="No jobs with GPUs.",
            note=GPU_HOURS_NOTE,
        ),
        _list(
            "Users by GPU-hours",
            ("User", "GPU-hours"),
            [
                [user.name or "deleted user", f"{user.allocated_gpu_hours:,.1f}"]
                for user in ranked.users
            ],
            empty="No jobs with GPUs.",
            note=GPU_HOURS_NOTE,
        ),
    ]


def _list(title: str, headings: Sequence[str], rows: Rows, *, empty: str, note: str = "") -> Any:  # noqa: ANN401 - a Dash component
    parts = [html.H2(title), components.table(headings, rows, empty=empty)]
    if note and rows:
        parts.append(html.P(note, className="vdd-muted vdd-list-note"))
    return html.Section(parts, className="vdd-panel vdd-list")


def _shared_text(model: ModelCapacity) -> str:
    return f"{model.shared}, {model.free_slots} of {model.slots} free" if model.shared else "0"


def _gpu_link(gpu_at: GPUAt, search: str) -> Any:  # noqa: ANN401 - a Dash component
    card, gpu = gpu_at
    path = gpu_path(card.appliance_id, gpu.index)
    return dcc.Link(f"{card.name} · GPU {gpu.index}", href=f"{path}{search}")


def _job_link(gpu_at: GPUAt, search: str) -> Any:  # noqa: ANN401 - a Dash component
    job = gpu_at[1].job
    return job_link(job, search) if job else ""
