"""The GPU tier: one device, its XIDs, and the jobs that ran on it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dash import dcc, html

from core.clock import NS_PER_SECOND, from_ns
from core.quantities import format_duration, format_size, format_value
from dash_app import components
from dash_app.charts import with_earlier
from dash_app.components import (
    badge,
    findings_list,
    health_badge,
    meter,
    panel,
    percent_text,
    share,
    stat,
    value_text,
    xid_table,
)
from dash_app.context import Dashboard, Page, View
from dash_app.figures import time_figures, timeline_figure
from dash_app.job_links import job_link
from dash_app.markup import area
from dash_app.queries.gpu import GPUDetail, Run, gpu_detail
from dash_app.queries.slices import SLICE_PANELS
from dash_app.queries.timeline import timeline
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.slots import slice_list
from dash_app.tiers.appliance import unallocated_text
from dash_app.tiers.hardware import names_on, process_table, processes_on
from dash_app.timerange import Controls, Span
from jobqueue.partitions.measures import slice_label, slice_of
from jobqueue.partitions.texts import slots_text
from protocol.health import TIER_MINIMUMS
from tenants.fleet.appliances import read_inventory
from tenants.models import Appliance

KILO = 1000
# Compares with another GPU of the appliance: `gpu-3`.
PEER = "gpu-"
THROTTLE_REASONS = {
    "throttled_by_heat": "heat",
    "throttled_by_power": "power limit",
    "throttled_by_hardware": "hardware",
}
# Key to title, in reading order.
PANELS = {
    "utilization": "Utilization",
    "activity": "Activity of the GPU's units",
    "memory": "Memory",
    "temperature": "Temperature",
    "power": "Power",
    "clock": "Clocks",
    "throttled": "Time throttled, by reason",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "ecc": "ECC memory errors since the driver was loaded",
}


def layout(view: View) -> Page:
    """Return the page of one GPU; whether the GPU exists is left to the first refresh."""
    appliance = view.scope.get(view.session, Appliance, view.route.ident, kind="appliance")
    search = view.controls.search
    panels = [panel(f"gpu-{key}", title) for key, title in PANELS.items()]
    body = [
        area("gpu-header", "vdd-header"),
        area("gpu-stats", "vdd-stats is-seven"),
        area("gpu-health", "vdd-box vdd-health"),
        area("gpu-host", "vdd-box vdd-host"),
        html.Section(
            [
                html.H2("Slices", className="vdd-group"),
                area("gpu-slices", "vdd-box"),
                html.Div(
                    [panel(f"gpu-{key}", title) for key, title in SLICE_PANELS.items()],
                    className="vdd-panels is-two",
                ),
            ],
            hidden=True,
            id="gpu-slices-section",
        ),
        html.Div([*panels, panel("gpu-timeline", "Jobs and alerts")], className="vdd-panels"),
        html.H2("XIDs", className="vdd-group"),
        area("gpu-xids", "vdd-box"),
        html.H2("Jobs", className="vdd-group"),
        area("gpu-jobs", "vdd-box"),
        html.H2("Processes", className="vdd-group"),
        area("gpu-processes", "vdd-box"),
        html.H2("Tier", className="vdd-group", id="tier"),
        area("gpu-tier", "vdd-box"),
    ]
    crumbs = (
        ("Fleet", f"{PREFIX}{search}"),
        (appliance.name, f"{appliance_path(appliance.id)}{search}"),
    )
    peers = {
        f"{PEER}{gpu.index}": f"GPU {gpu.index}"
        for gpu in read_inventory(appliance).gpus
        if str(gpu.index) != view.route.gpu
    }
    return Page(title=f"GPU {view.route.gpu}", crumbs=crumbs, body=body, peers=peers)


def refresh(view: View) -> dict[str, Any]:
    """Return the data of a GPU."""
    route, search = view.route, view.controls.search

    def detail(index: str, span: Span) -> GPUDetail:
        return gpu_detail(view.session, view.store, view.scope, route.ident, index=index, span=span)

    current = detail(route.gpu, view.span)
    charts = view.compared(current.charts, lambda span: detail(route.gpu, span).charts)
    peer = view.controls.compare.removeprefix(PEER)
    if view.controls.compare.startswith(PEER) and peer in {gpu.index for gpu in current.siblings}:
        peer_charts = detail(peer, view.span).charts
        charts = {
            key: with_earlier(chart, peer_charts[key], shift_ns=0, label=f"GPU {peer}")
            for key, chart in charts.items()
        }
    revision = f"{route.ident}:{route.gpu}:{view.controls.time_key}"
    health = current.gpu.health
    bars = timeline(
        view.session,
        view.scope,
        current.appliance,
        gpus={current.gpu.uuid: current.gpu.index},
        span=view.span,
        search=search,
    )
    return {
        "problem": components.warning(current.problem),
        "header": _header(current, view),
        "stats": _stats(current),
        "host": _host(current, search),
        "health": findings_list([("", finding) for finding in health.findings] if health else []),
        "xids": xid_table(
            current.xids, zone=view.controls.tzinfo, empty="No XIDs in this time range."
        ),
        "jobs": _jobs(current.runs, view.controls),
        "slices": slice_list(current.gpu, current.slices, search),
        "slices-section.hidden": current.gpu.occupancy is None,
        "processes": process_table(
            processes_on(current.appliance, gpu=route.gpu),
            names_on([current.gpu]),
            appliance_id=route.ident,
            search=search,
        ),
        "tier": html.P(tier_reason(current)),
        "timeline": timeline_figure(bars, view.span, revision=revision),
        **time_figures(charts, view.span, revision=revision),
    }


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=("header", "stats", "host", "health", "xids", "jobs", "slices", "processes", "tier"),
    panels=(*SLICE_PANELS, *PANELS, "timeline"),
    properties=("slices-section.hidden",),
)


def _header(detail: GPUDetail, view: View) -> list[Any]:
    search, health = view.controls.search, detail.gpu.health
    tier = health.tier if health else ""
    siblings = [
        dcc.Link(
            gpu.index,
            href=f"{gpu_path(detail.appliance.id, gpu.index)}{search}",
            className=f"vdd-sibling{' is-here' if gpu.index == detail.gpu.index else ''}",
            title=f"GPU {gpu.index}",
        )
        for gpu in detail.siblings
    ]
    return [
        html.Span(_allocation(detail, view), className="vdd-state"),
        health_badge(health.state) if health else badge("health unknown"),
        html.Span(
            [
                f"{detail.gpu.model} · ",
                html.A(tier, href="#tier", title="Why this tier?") if tier else None,
                " · " if tier else None,
                detail.gpu.uuid,
            ],
            className="vdd-facts",
        ),
        html.Nav(
            siblings, className="vdd-siblings", **components.labeled("GPUs of this appliance")
        ),
    ]


def _allocation(detail: GPUDetail, view: View) -> list[Any]:
    """Return who uses the GPU: now, or at the end of a window, as the figures below."""
    job, verb, free = detail.gpu.job, "Allocated", unallocated_text(detail.gpu).capitalize()
    if view.controls.window is not None:
        end_ns = view.span.end_ns
        job = next((run.job for run in detail.runs if run.end_ns == end_ns), None)
        at = f"At {view.controls.time_text(from_ns(end_ns))}"
        verb, free = f"{at} allocated", f"{at} not allocated"
    elif detail.gpu.occupancy is not None:
        return [f"Shared: {slots_text(detail.gpu.occupancy)}"]
    if job is None:
        return [free]
    return [f"{verb} to ", job_link(job, view.controls.search)]


def _stats(detail: GPUDetail) -> list[Any]:
    number = detail.gpu.number
    use = number("utilization_percent")
    used, total = number("memory_used_bytes"), number("memory_total_bytes")
    power, limit = number("power_watts"), number("power_limit_watts")
    throttled = number("throttled")
    fan = number("fan_percent")
    is_mig = bool(detail.gpu.occupancy) and use is None
    return [
        stat("Utilization", percent_text(use), percent=use, note="by slice" if is_mig else ""),
        stat(
            "Memory",
            value_text("_bytes", used),
            percent=share(used, total),
            note=f"of {format_size(total)}" if total else "",
        ),
        stat(
            "Temperature",
            value_text("_celsius", number("temperature_celsius")),
            percent=number("temperature_celsius"),
            warns=True,
            note=f"fan {percent_text(fan)}" if fan is not None else "",
        ),
        stat(
            "Power",
            value_text("_watts", power),
            percent=share(power, limit),
            note=f"of {format_value('_watts', limit)}" if limit else "",
        ),
        stat(
            "SM clock",
            value_text("_hertz", number("sm_clock_hertz")),
            note=f"memory {value_text('_hertz', number('memory_clock_hertz'))}",
        ),
        stat(
            "Throttled",
            components.ABSENT if throttled is None else "Yes" if throttled else "No",
            note=[
                badge(label, tone="warning")
                for name, label in THROTTLE_REASONS.items()
                if number(name)
            ],
        ),
        stat("Energy in this range", energy_text(detail.energy_joules)),
    ]


def _host(detail: GPUDetail, search: str) -> list[Any]:
    """Return the use of the appliance that the GPU is in, in one row."""
    host = detail.host
    disk = f"{host.disk_mount} is the fullest file system" if host.disk_mount else ""
    rates = {"Disk I/O": host.diskio_bytes_per_second, "Network": host.network_bytes_per_second}
    return [
        dcc.Link(
            f"Host {detail.appliance.name}", href=f"{appliance_path(detail.appliance.id)}{search}"
        ),
        meter("CPU", host.cpu_percent),
        meter("Memory", host.memory_percent),
        meter("Disk", host.disk_percent, title=disk),
        *[
            html.Div(
                [
                    html.Span(label, className="vdd-meter-label"),
                    value_text("_bytes_per_second", rate),
                ],
                className="vdd-host-rate",
            )
            for label, rate in rates.items()
        ],
    ]


def tier_reason(detail: GPUDetail) -> str:
    """Return what the GPU's tier means, and why it is lower than that of its peers."""
    tier = detail.gpu.health.tier if detail.gpu.health else ""
    if tier not in TIER_MINIMUMS:
        return "The tier is unknown: the agent reports no specifications of this GPU."
    text = f"A {tier} GPU has {TIER_MINIMUMS[tier]}."
    better = [
        gpu.health.tier
        for gpu in detail.siblings
        if gpu.model == detail.gpu.model and gpu.health and gpu.health.tier in TIER_MINIMUMS
    ]
    ranks = list(TIER_MINIMUMS)
    best = min(better, key=ranks.index, default=tier)
    if ranks.index(best) >= ranks.index(tier):
        return text
    width, full = detail.gpu.number("pcie_width"), detail.gpu.number("pcie_width_max")
    if width and full and width < full:
        cause = f"its PCIe link has {width:.0f} of {full:.0f} lanes."
    else:
        cause = (
            "under load its clock stayed below 70 % of the maximum within the last hour. "
            "See the clocks and the reasons for throttling above."
        )
    return (
        f"{text} GPUs of the same model on this appliance are {best}. This one is a tier lower "
        f"while it performs below its model: {cause}"
    )


def energy_text(joules: float | None) -> str:
    """Return an energy in Wh or kWh."""
    if joules is None:
        return components.ABSENT
    watt_hours = joules / 3600
    return f"{watt_hours / 1000:.2f} kWh" if watt_hours >= KILO else f"{watt_hours:.0f} Wh"


def _jobs(runs: Sequence[Run], controls: Controls) -> Any:  # noqa: ANN401 - a Dash component
    rows = [
        [
            job_link(run.job, controls.search),
            slice_label(own) if (own := slice_of(run.attempt.gpu_slice)) else "whole GPU",
            run.attempt.state.value,
            _time(run.attempt.started_at, controls),
            _time(run.attempt.finished_at, controls),
            format_duration((run.end_ns - run.start_ns) / NS_PER_SECOND),
        ]
        for run in runs
    ]
    return components.table(
        ("Job", "Part", "State", "Start", "End", "Duration"),
        rows,
        empty="No jobs ran on this GPU in this time range.",
    )


def _time(instant: datetime | None, controls: Controls) -> str:
    return controls.time_text(instant, "%b %d %H:%M:%S") if instant else "now"
