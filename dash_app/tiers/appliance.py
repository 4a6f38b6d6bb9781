"""The appliance tier: one host with its GPUs, now and over the range."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update

from core.errors import NotFoundError
from core.units import format_value
from dash_app import components
from dash_app.components import badge, panel, percent_text, stat, value_text
from dash_app.context import Context, Page, View
from dash_app.figures import time_figure
from dash_app.health import findings_list, health_badge
from dash_app.live import Areas, area
from dash_app.queries.appliance import ApplianceDetail, GPURow, appliance_detail, find_appliance
from dash_app.queries.health import health_of, names_of
from dash_app.queries.telemetry import number
from dash_app.routes import PREFIX, gpu_path, job_path
from dash_app.timerange import Controls
from jobqueue.executors.health import GPUHealth, HealthState
from tenants.fleet.life import LifeState, life_of
from tenants.models import Appliance, ApplianceState

# Key to title, in reading order.
GPU_PANELS = {
    "gpu-utilization_percent": "GPU utilisation",
    "gpu-memory_used_bytes": "GPU memory used",
    "gpu-temperature_celsius": "GPU temperature",
    "gpu-power_watts": "GPU power",
}
HOST_PANELS = {
    "cpu": "CPU",
    "memory": "Memory",
    "load": "Load",
    "disk": "Disk use",
    "diskio": "Disk I/O",
    "network": "Network",
}
PANELS = GPU_PANELS | HOST_PANELS
AREAS = Areas(
    "appliance", ("appliance-header", "appliance-stats", "appliance-health", "appliance-gpus")
)
_GPU_HEADINGS = (
    "GPU",
    "Model",
    "Health",
    "Utilisation",
    "Memory",
    "Temperature",
    "Power",
    "Held by",
)


def layout(view: View) -> Page:
    """Return the skeleton of one appliance's dashboard."""
    found = find_appliance(view.session, view.scope, view.route.ident)
    has_gpus = bool(found.inventory.get("gpus"))
    body = html.Div(
        [
            dcc.Store(id="appliance-subject", data=found.id),
            html.Div(id="appliance-problem"),
            *AREAS.stores(),
            area("appliance-header", classes="vdd-header"),
            area("appliance-stats", classes="vdd-stats"),
            area("appliance-health", classes="vdd-box vdd-health"),
            html.Section(
                [
                    html.H2("GPUs", className="vdd-group"),
                    area("appliance-gpus", classes="vdd-box"),
                    html.Div(_panels(GPU_PANELS), className="vdd-panels is-four"),
                ],
                hidden=not has_gpus,
                id="appliance-gpu-section",
            ),
            html.H2("Host", className="vdd-group"),
            html.Div(_panels(HOST_PANELS), className="vdd-panels"),
        ]
    )
    return Page(title=found.name, crumbs=(("Fleet", f"{PREFIX}{view.controls.search}"),), body=body)


def register(app: Dash, context: Context) -> None:
    """Register the callback that refreshes an appliance's dashboard."""
    AREAS.register(app)

    @app.callback(
        Output("appliance-problem", "children"),
        *AREAS.outputs(),
        Output("appliance-gpu-section", "hidden"),
        *[Output(f"appliance-{key}", "figure") for key in PANELS],
        Input("tick", "n_intervals"),
        Input("url", "search"),
        Input("appliance-subject", "data"),
        AREAS.state(),
    )
    def refresh(
        _ticks: int | None, search: str | None, appliance_id: str, shown: dict[str, str] | None
    ) -> tuple[Any, ...]:
        controls = Controls.parse(search)
        now = context.clock()
        span = controls.span(now)
        try:
            with context.reading() as (session, scope):
                found = appliance_detail(session, context.store, scope, appliance_id, span=span)
        except NotFoundError as error:
            kept = [no_update] * (len(AREAS.outputs()) + 1 + len(PANELS))
            return (components.problem_note(error.message), *kept)
        revision = f"{appliance_id}:{controls.time_key}"
        return (
            components.problem_note(found.problem),
            *AREAS.fill(
                shown,
                {
                    "appliance-header": header(found.appliance, now=now),
                    "appliance-stats": _stats(found),
                    "appliance-health": _findings(found),
                    "appliance-gpus": _gpu_table(appliance_id, found.gpus, controls.search),
                },
            ),
            not found.gpus,
            *[time_figure(found.charts[key], span, revision=revision) for key in PANELS],
        )


def header(found: Appliance, *, now: datetime) -> list[Any]:
    """Return the line that says what and how an appliance is, with the way to its page."""
    inventory, told, life = found.inventory, health_of(found).told, life_of(found)
    facts = [
        found.site,
        found.region,
        inventory.get("os", ""),
        inventory.get("cpu_model", ""),
        f"{inventory['cpu_count']} cores" if inventory.get("cpu_count") else "",
        format_value("_bytes", inventory["memory_bytes"]) if inventory.get("memory_bytes") else "",
        _gpu_fact(inventory.get("gpus", [])),
        f"driver {inventory['driver_version']}" if inventory.get("driver_version") else "",
        f"agent {found.agent_version}" if found.agent_version else "",
    ]
    return [
        html.Span(
            [components.state_dot(life), html.Strong(life.value.capitalize())],
            className="vdd-state",
        ),
        badge("drained") if found.drained_at and life is not LifeState.DRAINED else None,
        health_badge(told.state) if told else badge("health unknown"),
        badge(told.appliance_class) if told and told.appliance_class else None,
        html.Span(_seen(found, now), className="vdd-muted"),
        html.Span(" · ".join(fact for fact in facts if fact), className="vdd-facts"),
        html.A("Appliance page", href=f"/appliances/{found.id}", className="vdd-header-link"),
    ]


def _seen(found: Appliance, now: datetime) -> str:
    if found.last_seen_at is None:
        return "never seen"
    if found.state is ApplianceState.ONLINE:
        return f"last seen {found.last_seen_at:%H:%M:%S} UTC"
    seconds = max(0, int((now - found.last_seen_at).total_seconds()))
    return f"last seen {span_words(seconds)} ago, {found.last_seen_at:%b %d %H:%M:%S} UTC"


def span_words(seconds: float) -> str:
    """Return a length of time in its largest two units, such as `2 h 5 min`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


def _gpu_fact(gpus: Sequence[dict[str, Any]]) -> str:
    models = sorted({str(gpu.get("model", "GPU")) for gpu in gpus})
    return f"{len(gpus)} x {', '.join(models)}" if gpus else ""


def _panels(panels: dict[str, str]) -> list[Any]:
    return [panel(f"appliance-{key}", title) for key, title in panels.items()]


def _stats(found: ApplianceDetail) -> list[Any]:
    cpu = number(found.cpu, "usage_percent")
    memory = number(found.memory, "used_percent")
    fullest = max(found.disks, key=lambda r: number(r.values, "used_percent") or 0, default=None)
    disk = number(fullest.values, "used_percent") if fullest else None
    powers = [p for gpu in found.gpus if (p := number(gpu.values, "power_watts")) is not None]
    used = [u for g in found.gpus if (u := number(g.values, "utilization_percent")) is not None]
    held = sum(gpu.job is not None for gpu in found.gpus)
    use = sum(used) / len(used) if used else None
    tiles = [
        stat("CPU", percent_text(cpu), percent=cpu or 0, warns=True, note=_load_note(found)),
        stat("Memory", percent_text(memory), percent=memory or 0, warns=True,
             note=_of(found.memory, "used_bytes", "total_bytes")),
        stat("Disk", percent_text(disk), percent=disk or 0, warns=True,
             note=fullest.tags.get("mount", "") if fullest else ""),
    ]  # fmt: skip
    if found.gpus:
        tiles += [
            stat("GPU utilisation", percent_text(use), percent=use or 0),
            stat("GPUs held by jobs", f"{held} / {len(found.gpus)}",
                 percent=100 * held / len(found.gpus)),
            stat("GPU power", value_text("_watts", sum(powers) if powers else None)),
        ]  # fmt: skip
    return tiles


def _findings(found: ApplianceDetail) -> list[Any]:
    findings = [("Appliance", one) for one in found.health.own_findings]
    for gpu in found.gpus:
        findings += [
            (f"GPU {gpu.index}", one) for one in (gpu.health.findings if gpu.health else [])
        ]
    worst_first = sorted(findings, key=lambda item: item[1].state is not HealthState.FAILED)
    return [findings_list(worst_first)] if worst_first else []


def _load_note(found: ApplianceDetail) -> str:
    loads = [number(found.load, name) for name in ("load1", "load5", "load15")]
    return (
        "load " + "  ".join(f"{load:.1f}" for load in loads if load is not None)
        if loads[0] is not None
        else ""
    )


def _of(values: Any, part: str, whole: str) -> str:  # noqa: ANN401 - a mapping of readings
    used, total = number(values, part), number(values, whole)
    if used is None or total is None:
        return ""
    return f"{format_value(part, used)} of {format_value(whole, total)}"


def _gpu_table(appliance_id: str, gpus: Sequence[GPURow], search: str) -> Any:  # noqa: ANN401
    return components.table(
        _GPU_HEADINGS,
        [_gpu_cells(appliance_id, gpu, search) for gpu in gpus],
        empty="This appliance has no GPU.",
    )


def _gpu_cells(appliance_id: str, gpu: GPURow, search: str) -> list[Any]:
    use = number(gpu.values, "utilization_percent")
    temperature = value_text("_celsius", number(gpu.values, "temperature_celsius"))
    return [
        dcc.Link(f"GPU {gpu.index}", href=f"{gpu_path(appliance_id, gpu.index)}{search}"),
        html.Span(gpu.model, title=gpu.uuid),
        _health_cell(gpu.health),
        html.Div([components.bar(use, warns=False), html.Span(percent_text(use))],
                 className="vdd-cell-meter"),
        _of(gpu.values, "memory_used_bytes", "memory_total_bytes") or components.ABSENT,
        [temperature, badge("throttled", tone="warning")]
        if number(gpu.values, "throttled") else temperature,
        value_text("_watts", number(gpu.values, "power_watts")),
        dcc.Link(gpu.job.name, href=f"{job_path(gpu.job.id)}{search}")
        if gpu.job else html.Span("out of service" if is_out_of_service(gpu) else "free",
                                  className="vdd-muted"),
    ]  # fmt: skip


def is_out_of_service(gpu: GPURow) -> bool:
    """Return whether no job is given this GPU because it failed."""
    return gpu.health is not None and gpu.health.state is HealthState.FAILED


def _health_cell(health: GPUHealth | None) -> Any:  # noqa: ANN401 - a Dash component
    if health is None:
        return html.Span("unknown", className="vdd-muted")
    mark = health_badge(health.state) or html.Span(health.state.value)
    return html.Span([mark, html.Span(health.tier, className="vdd-muted vdd-tier")],
                     title=names_of(health.findings) or None)  # fmt: skip
