"""The GPU tier: one device, now and over the range, and the jobs that held it."""

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update

from core.clock import NS_PER_SECOND
from core.errors import NotFoundError
from core.units import format_value
from dash_app import components
from dash_app.components import badge, panel, percent_text, stat, value_text
from dash_app.context import Context, Page, View
from dash_app.figures import time_figure
from dash_app.health import findings_list, health_badge, xid_table
from dash_app.live import Areas, area
from dash_app.queries.appliance import find_appliance
from dash_app.queries.gpu import GPUDetail, Holding, gpu_detail
from dash_app.queries.telemetry import number
from dash_app.routes import PREFIX, appliance_path, gpu_path, job_path
from dash_app.tiers.appliance import is_out_of_service, span_words
from dash_app.timerange import Controls

# Key to title, in reading order.
PANELS = {
    "utilization": "Utilisation",
    "memory": "Memory",
    "temperature": "Temperature",
    "power": "Power",
    "clock": "Clocks",
    "throttled": "Throttled, share of time",
}
AREAS = Areas("gpu", ("gpu-header", "gpu-stats", "gpu-health", "gpu-xids", "gpu-jobs"))
_JOB_HEADINGS = ("Job", "State", "From", "To", "For")


def layout(view: View) -> Page:
    """Return the skeleton of one GPU's dashboard; the store is asked by the first refresh."""
    found = find_appliance(view.session, view.scope, view.route.ident)
    search = view.controls.search
    body = html.Div(
        [
            dcc.Store(id="gpu-subject", data={"appliance": found.id, "gpu": view.route.gpu}),
            html.Div(id="gpu-problem"),
            *AREAS.stores(),
            area("gpu-header", classes="vdd-header"),
            area("gpu-stats", classes="vdd-stats"),
            area("gpu-health", classes="vdd-box vdd-health"),
            html.Div(
                [panel(f"gpu-{key}", title) for key, title in PANELS.items()],
                className="vdd-panels",
                id="gpu-panels",
            ),
            html.Section(
                [html.H2("XIDs in this range", className="vdd-group"),
                 area("gpu-xids", classes="vdd-box")],
                id="gpu-xid-section",
            ),
            html.Section(
                [html.H2("Jobs in this range", className="vdd-group"),
                 area("gpu-jobs", classes="vdd-box")],
                id="gpu-job-section",
            ),
        ]
    )  # fmt: skip
    crumbs = (("Fleet", f"{PREFIX}{search}"), (found.name, f"{appliance_path(found.id)}{search}"))
    return Page(title=f"GPU {view.route.gpu}", crumbs=crumbs, body=body)


def register(app: Dash, context: Context) -> None:
    """Register the callback that refreshes a GPU's dashboard."""
    AREAS.register(app)

    @app.callback(
        Output("gpu-problem", "children"),
        *AREAS.outputs(),
        Output("gpu-panels", "hidden"),
        Output("gpu-xid-section", "hidden"),
        Output("gpu-job-section", "hidden"),
        *[Output(f"gpu-{key}", "figure") for key in PANELS],
        Input("tick", "n_intervals"),
        Input("url", "search"),
        Input("gpu-subject", "data"),
        AREAS.state(),
    )
    def refresh(
        _ticks: int | None,
        search: str | None,
        subject: dict[str, str],
        shown: dict[str, str] | None,
    ) -> tuple[Any, ...]:
        controls = Controls.parse(search)
        span = controls.span(context.clock())
        try:
            with context.reading() as (session, scope):
                found = gpu_detail(
                    session, context.store, scope, subject["appliance"],
                    index=subject["gpu"], span=span,
                )  # fmt: skip
        except NotFoundError as error:
            gone = components.not_found(error.message, search=controls.search)
            empty: dict[str, list[Any]] = {name: [] for name in AREAS.names}
            kept = [no_update] * len(PANELS)
            return (gone, *AREAS.fill(shown, empty), True, True, True, *kept)
        revision = f"{subject['appliance']}:{subject['gpu']}:{controls.time_key}"
        return (
            components.problem_note(found.problem),
            *AREAS.fill(
                shown,
                {
                    "gpu-header": _header(found, controls.search),
                    "gpu-stats": _stats(found),
                    "gpu-health": _findings(found),
                    "gpu-xids": xid_table(
                        found.xids, empty="The driver reported no XID of this GPU in this range."
                    ),
                    "gpu-jobs": _jobs(found.holdings, controls.search),
                },
            ),
            False,
            False,
            False,
            *[time_figure(found.charts[key], span, revision=revision) for key in PANELS],
        )


def _header(found: GPUDetail, search: str) -> list[Any]:
    job, health = found.gpu.job, found.gpu.health
    tier = health.tier if health else ""
    held: list[Any] = (
        ["Held by ", dcc.Link(job.name, href=f"{job_path(job.id)}{search}")]
        if job
        else ["Out of service" if is_out_of_service(found.gpu) else "Free"]
    )
    siblings = [
        dcc.Link(
            index,
            href=f"{gpu_path(found.appliance.id, index)}{search}",
            className=f"vdd-sibling{' is-here' if index == found.gpu.index else ''}",
            title=f"GPU {index}",
        )
        for index in found.siblings
    ]
    return [
        html.Span(held, className="vdd-state"),
        health_badge(health.state) if health else badge("health unknown"),
        html.Span(" · ".join(p for p in (found.gpu.model, tier, found.gpu.uuid) if p),
                  className="vdd-facts"),
        html.Nav(siblings, className="vdd-siblings", **components.labelled("Its other GPUs")),
    ]  # fmt: skip


def _stats(found: GPUDetail) -> list[Any]:
    values = found.gpu.values
    use = number(values, "utilization_percent")
    used, total = number(values, "memory_used_bytes"), number(values, "memory_total_bytes")
    power, limit = number(values, "power_watts"), number(values, "power_limit_watts")
    throttled = number(values, "throttled")
    fan = number(values, "fan_percent")
    return [
        stat("Utilisation", percent_text(use), percent=use),
        stat("Memory", value_text("_bytes", used), percent=_share(used, total),
             note=f"of {format_value('_bytes', total)}" if total else ""),
        stat("Temperature", value_text("_celsius", number(values, "temperature_celsius")),
             percent=number(values, "temperature_celsius"), warns=True,
             note=f"fan {percent_text(fan)}" if fan is not None else ""),
        stat("Power", value_text("_watts", power), percent=_share(power, limit),
             note=f"of {format_value('_watts', limit)}" if limit else ""),
        stat("SM clock", value_text("_hertz", number(values, "sm_clock_hertz")),
             note=f"memory {value_text('_hertz', number(values, 'memory_clock_hertz'))}"),
        stat("Throttled", components.ABSENT if throttled is None else "Yes" if throttled else "No",
             note=badge("clocks held down", tone="warning") if throttled else ""),
    ]  # fmt: skip


def _findings(found: GPUDetail) -> list[Any]:
    findings = found.gpu.health.findings if found.gpu.health else []
    return [findings_list([("", finding) for finding in findings])] if findings else []


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _jobs(holdings: Sequence[Holding], search: str) -> Any:  # noqa: ANN401 - a Dash component
    rows = [
        [
            dcc.Link(held.attempt.job.name, href=f"{job_path(held.attempt.job_id)}{search}"),
            held.attempt.state.value,
            f"{held.attempt.started_at:%b %d %H:%M:%S}",
            f"{held.attempt.finished_at:%b %d %H:%M:%S}" if held.attempt.finished_at else "now",
            span_words((held.end_ns - held.start_ns) / NS_PER_SECOND),
        ]
        for held in holdings
    ]
    return components.table(_JOB_HEADINGS, rows, empty="No job held this GPU in this range.")
