"""The appliance tier: one host with its GPUs."""

from typing import Any

from dash import dcc, html

from core.quantities import format_duration, format_size, format_value
from dash_app import components
from dash_app.components import (
    badge,
    findings_list,
    health_badge,
    panel,
    percent_text,
    stat,
    value_text,
)
from dash_app.context import Dashboard, Page, View
from dash_app.figures import time_figures, timeline_figure
from dash_app.job_links import job_link
from dash_app.markup import area
from dash_app.queries.annotations import finding_names, own_findings
from dash_app.queries.appliance import ApplianceDetail, appliance_detail
from dash_app.queries.clusters import OF_NODES, node_facts
from dash_app.queries.gpu_rows import ClusterFigures, GPURow
from dash_app.queries.telemetry import Values, fullest_disk, mean, number
from dash_app.queries.timeline import timeline
from dash_app.routes import PREFIX, appliance_path, gpu_path
from dash_app.slots import slot_bar
from dash_app.tiers.hardware import names_on, process_table, topology
from dash_app.timerange import Controls, Span
from jobqueue.partitions.texts import slots_text
from protocol.clusters import ClusterNode
from protocol.health import GPUHealth, HealthState
from tenants.fleet.appliances import read_gpu_processes, read_inventory
from tenants.fleet.states import EffectiveStatus, effective_status_of
from tenants.models import Appliance, ApplianceState

# Key to title, in reading order.
GPU_PANELS = {
    "gpu-utilization_percent": "GPU utilization",
    "gpu-memory_used_bytes": "GPU memory used",
    "gpu-temperature_celsius": "GPU temperature",
    "gpu-power_watts": "GPU power",
}
HOST_PANELS = {
    "cpu": "CPU",
    "memory": "Memory",
    "load": "Load",
    "disk": "Disk usage",
    "diskio": "Disk I/O",
    "network": "Network",
}
CLUSTER_PANELS = {
    "cluster-gpus": "GPUs of jobs of all users",
    "cluster-cpus": "CPUs of jobs of all users",
    "cluster-memory": "Memory of jobs of all users",
    "cluster-waiting": "Jobs that wait in the cluster's queue",
    "cluster-nodes": "Nodes",
}
GPU_VIEWS = {"band": "Mean and range", "lines": "A line for each"}
_GPU_HEADINGS = ("GPU", "Model", "Health", "Utilization", "Memory", "Temperature", "Power", "Job")


def layout(view: View) -> Page:
    """Return the page of one appliance."""
    appliance = view.scope.get(view.session, Appliance, view.route.ident, kind="appliance")
    gpu_panels, host_panels = (
        [panel(f"appliance-{key}", title) for key, title in panels.items()]
        for panels in (GPU_PANELS, HOST_PANELS)
    )
    is_node, is_connector = appliance.connector_id is not None, bool(appliance.cluster_kind)
    # Refreshes fill all panels, so that those of other kinds of appliances are hidden.
    cluster_panels = [
        html.Div(panel(f"appliance-{key}", title), hidden=is_node and key not in OF_NODES)
        for key, title in CLUSTER_PANELS.items()
    ]
    chosen = view.controls.choice("gpus", GPU_VIEWS)
    body = [
        appliance_tabs(appliance, view.controls),
        area("appliance-header", "vdd-header"),
        area("appliance-stats", "vdd-stats is-seven"),
        area("appliance-health", "vdd-box vdd-health"),
        html.Section(
            [
                html.H2("GPUs", className="vdd-group"),
                area("appliance-gpu-table", "vdd-box"),
                components.segments("appliance-gpus", "GPU charts", GPU_VIEWS, value=chosen),
                html.Div(gpu_panels, className="vdd-panels is-four"),
                html.Div(
                    [
                        _box("Processes", "appliance-processes"),
                        _box("Topology", "appliance-topology"),
                    ],
                    className="vdd-panels is-two",
                ),
            ],
            hidden=is_node or not appliance.gpu_count,
            id="appliance-gpu-section",
        ),
        html.Section(
            [
                html.H2("Node" if is_node else "Cluster", className="vdd-group"),
                html.Div(cluster_panels, className="vdd-panels"),
            ],
            hidden=not (is_node or is_connector),
        ),
        html.Div(panel("appliance-timeline", "Jobs and alerts"), className="vdd-panels is-one"),
        html.Section(
            [
                html.H2("Host", className="vdd-group"),
                html.Div(host_panels, className="vdd-panels"),
            ],
            hidden=is_node,
        ),
    ]
    return Page(
        title=appliance.name, crumbs=(("Fleet", f"{PREFIX}{view.controls.search}"),), body=body
    )


def refresh(view: View) -> dict[str, Any]:
    """Return the data of an appliance."""
    ident, search = view.route.ident, view.controls.search
    has_bands = view.controls.choice("gpus", GPU_VIEWS) == "band"

    def detail(span: Span) -> ApplianceDetail:
        return appliance_detail(
            view.session, view.store, view.scope, ident, span=span, has_bands=has_bands
        )

    current = detail(view.span)
    charts = view.compared(current.charts, lambda span: detail(span).charts)
    bars = timeline(
        view.session,
        view.scope,
        current.appliance,
        gpus={gpu.uuid: gpu.index for gpu in current.gpus}
        or {gpu.uuid: str(gpu.index) for gpu in read_inventory(current.appliance).gpus},
        span=view.span,
        search=search,
    )
    revision = f"{ident}:{view.controls.time_key}"
    table = components.table(
        _GPU_HEADINGS,
        [_gpu_cells(ident, gpu, search) for gpu in current.gpus],
        empty="This appliance has no GPUs.",
    )
    return {
        "problem": components.warning(current.problem),
        "header": _header(current, view),
        "stats": _stats(current),
        "health": _findings(current),
        "gpu-table": table,
        "processes": process_table(
            read_gpu_processes(current.appliance),
            names_on(current.gpus),
            appliance_id=ident,
            search=search,
        ),
        "topology": topology(read_inventory(current.appliance)),
        "timeline": timeline_figure(bars, view.span, revision=revision),
        "gpu-section.hidden": not current.gpus,
        **time_figures(charts, view.span, revision=revision),
    }


DASHBOARD = Dashboard(
    layout=layout,
    refresh=refresh,
    areas=("header", "stats", "health", "gpu-table", "processes", "topology"),
    panels=(*GPU_PANELS, "timeline", *HOST_PANELS, *CLUSTER_PANELS),
    properties=("gpu-section.hidden",),
    inputs={"gpus": "band"},
)


def _box(title: str, ident: str) -> Any:  # noqa: ANN401 - a Dash component
    heading = html.H2(title)
    return html.Section([heading, area(ident, "vdd-area")], className="vdd-panel")


def appliance_tabs(appliance: Appliance, controls: Controls) -> Any:  # noqa: ANN401 - a Dash component
    """Return the tabs of an appliance's pages."""
    page = f"/appliances/{appliance.id}"
    links = {"Dashboard": f"{appliance_path(appliance.id)}{controls.search}", "Details": page}
    if not (appliance.connector_id or appliance.cluster_kind):
        links["Storage"] = f"{page}/storage"
    links["Events"] = f"{page}/events"
    if not appliance.connector_id:
        links["Logs"] = controls.logs_path(appliance_id=appliance.id)
    return components.tabs("Pages of this appliance", links, chosen="Dashboard")


def _header(detail: ApplianceDetail, view: View) -> list[Any]:
    appliance, health = detail.appliance, detail.health
    inventory, status = read_inventory(appliance), effective_status_of(appliance)
    facts = [
        appliance.site,
        appliance.region,
        inventory.os,
        inventory.cpu_model,
        f"{inventory.cpu_count} cores" if inventory.cpu_count else "",
        format_size(inventory.memory_bytes) if inventory.memory_bytes else "",
        f"{appliance.gpu_count} x {appliance.gpu_model or 'GPU'}" if appliance.gpu_count else "",
        f"driver {inventory.driver_version}" if inventory.driver_version else "",
        f"agent {appliance.agent_version}" if appliance.agent_version else "",
    ]
    return [
        html.Span(
            [components.status_dot(status), html.Strong(status.value.capitalize())],
            className="vdd-state",
        ),
        badge("drained")
        if appliance.drained_at and status is not EffectiveStatus.DRAINED
        else None,
        _kind(detail) or (health_badge(health.state) if health else badge("health unknown")),
        badge(health.appliance_class) if health and health.appliance_class else None,
        html.Span(_seen(appliance, view), className="vdd-muted"),
        html.Span(" · ".join(fact for fact in facts if fact), className="vdd-facts"),
    ]


def _kind(detail: ApplianceDetail) -> Any:  # noqa: ANN401 - a Dash component
    """Return what an appliance is of a cluster; None if it is of none."""
    if detail.cluster is not None:
        return badge(f"{detail.cluster.title} cluster")
    if (connector := detail.appliance.connector) is not None:
        link = dcc.Link(connector.name, href=appliance_path(connector.id))
        return html.Span(["node of ", link], className="vdd-muted")
    return None


def _seen(appliance: Appliance, view: View) -> str:
    appliance = appliance.connector or appliance
    if appliance.last_seen_at is None:
        return "never seen"
    if appliance.state in {ApplianceState.ONLINE, ApplianceState.REPORTING}:
        return f"last seen {view.controls.time_text(appliance.last_seen_at, '%H:%M:%S')}"
    seconds = (view.now - appliance.last_seen_at).total_seconds()
    at = view.controls.time_text(appliance.last_seen_at, "%b %d %H:%M:%S")
    return f"last seen {format_duration(seconds)} ago, {at}"


def _node_stats(node: ClusterNode) -> list[Any]:
    return [
        stat(
            title,
            f"{format_value(field, used)} / {format_value(field, total)}"
            if field == "memory_bytes"
            else f"{used:g} / {total:g}",
            percent=100 * used / total,
        )
        for title, field, used, total in node_facts(node)
    ]


def _cluster_stats(cluster: ClusterFigures) -> list[Any]:
    up = 100 * cluster.nodes_up / cluster.nodes if cluster.nodes else 0
    gpus = 100 * cluster.allocated_gpus / cluster.gpus if cluster.gpus else 0
    return [
        stat("Nodes up", f"{cluster.nodes_up} / {cluster.nodes}", percent=up),
        stat("GPUs allocated", f"{cluster.allocated_gpus} / {cluster.gpus}", percent=gpus),
        stat("Jobs that wait", str(cluster.waiting_jobs), note="of all users"),
    ]


def _stats(detail: ApplianceDetail) -> list[Any]:
    if detail.appliance.connector_id is not None:
        return _node_stats(detail.node) if detail.node else []
    cpu = number(detail.cpu, "usage_percent")
    memory = number(detail.memory, "used_percent")
    disk, mount = fullest_disk(detail.disks)
    powers = [watts for gpu in detail.gpus if (watts := gpu.number("power_watts")) is not None]
    use = mean(gpu.number("utilization_percent") for gpu in detail.gpus)
    allocated = sum(gpu.allocated for gpu in detail.gpus)
    tiles = [
        stat("CPU", percent_text(cpu), percent=cpu or 0, warns=True, note=_load_note(detail)),
        stat(
            "Memory",
            percent_text(memory),
            percent=memory or 0,
            warns=True,
            note=_of(detail.memory, "used_bytes", "total_bytes"),
        ),
        stat("Disk", percent_text(disk), percent=disk or 0, warns=True, note=mount),
    ]
    if detail.cluster is not None:
        return _cluster_stats(detail.cluster) + tiles
    if detail.gpus:
        tiles += [
            stat(
                "GPU utilization",
                percent_text(use),
                percent=use or 0,
                note="mean now",
            ),
            stat(
                "GPUs allocated",
                f"{allocated:.3g} / {len(detail.gpus)}",
                percent=100 * allocated / len(detail.gpus),
            ),
            stat("GPU power", value_text("_watts", sum(powers) if powers else None)),
        ]
    return tiles


def _findings(detail: ApplianceDetail) -> Any:  # noqa: ANN401 - a Dash component
    findings = [("Appliance", finding) for finding in own_findings(detail.health)]
    for gpu in detail.gpus:
        findings += [
            (f"GPU {gpu.index}", finding) for finding in (gpu.health.findings if gpu.health else [])
        ]
    worst_first = sorted(findings, key=lambda item: item[1].state is not HealthState.FAILED)
    return findings_list(worst_first)


def _load_note(detail: ApplianceDetail) -> str:
    values = [number(detail.load, name) for name in ("load1", "load5", "load15")]
    loads = [f"{value:.1f}" for value in values if value is not None]
    return f"load {'  '.join(loads)}" if loads else ""


def _of(values: Values, part: str, whole: str) -> str:
    used, total = number(values, part), number(values, whole)
    if used is None or total is None:
        return ""
    return f"{format_value(part, used)} of {format_value(whole, total)}"


def _gpu_cells(appliance_id: str, gpu: GPURow, search: str) -> list[Any]:
    use = gpu.number("utilization_percent")
    temperature = value_text("_celsius", gpu.number("temperature_celsius"))
    return [
        dcc.Link(f"GPU {gpu.index}", href=f"{gpu_path(appliance_id, gpu.index)}{search}"),
        html.Span(gpu.model, title=gpu.uuid),
        _health_cell(gpu.health, tier_href=f"{gpu_path(appliance_id, gpu.index)}{search}#tier"),
        html.Div(
            [components.bar(use, warns=False), html.Span(percent_text(use))],
            className="vdd-cell-meter",
        ),
        _of(gpu.values, "memory_used_bytes", "memory_total_bytes") or components.ABSENT,
        [temperature, badge("throttled", tone="warning")]
        if gpu.number("throttled")
        else temperature,
        value_text("_watts", gpu.number("power_watts")),
        _jobs_cell(gpu, search),
    ]


def _jobs_cell(gpu: GPURow, search: str) -> Any:  # noqa: ANN401 - a Dash component
    if gpu.occupancy is not None:
        return [slot_bar(gpu, search), html.Span(slots_text(gpu.occupancy), className="vdd-muted")]
    if gpu.job is not None:
        return job_link(gpu.job, search)
    return html.Span(unallocated_text(gpu), className="vdd-muted")


def unallocated_text(gpu: GPURow) -> str:
    """Return why a GPU has no job: it failed and gets none, or it is free."""
    return "out of service" if gpu.is_out_of_service else "free"


def _health_cell(health: GPUHealth | None, *, tier_href: str) -> Any:  # noqa: ANN401 - a component
    if health is None:
        return html.Span("unknown", className="vdd-muted")
    mark = health_badge(health.state) or html.Span(health.state.value)
    return html.Span(
        [mark, dcc.Link(health.tier, href=tier_href, title="Why this tier?", className="vdd-tier")],
        title=finding_names(health.findings) or None,
    )
