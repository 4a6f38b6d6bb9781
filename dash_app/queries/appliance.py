"""The appliance tier's data: one host and its GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from dash_app.charts import Chart, Line
from dash_app.queries.annotations import Thresholds, chart_events, thresholds_of, xid_events
from dash_app.queries.clusters import cluster_charts
from dash_app.queries.gpu_rows import ClusterFigures, GPURow, gpu_rows, report_of, site_of
from dash_app.queries.telemetry import (
    Extremes,
    Result,
    Telemetry,
    Values,
    by_index,
    fullest_disk,
    number,
    single,
)
from dash_app.timerange import Span
from jobqueue.partitions.allocations import read_gpu_allocations
from protocol.clusters import ClusterNode
from protocol.health import ApplianceHealth
from tenants.fleet.appliances import get_appliance
from tenants.fleet.clusters import read_node
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Latest, Series, Store

# A panel shows the busiest devices only.
MAX_DEVICES = 5
GPU_FIELDS = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
_GPU_NOW = (
    *GPU_FIELDS,
    "memory_total_bytes",
    "memory_used_percent",
    "power_limit_watts",
    "sm_clock_hertz",
    "throttled",
)
_CPU_MODES = {
    "user_percent": "user",
    "system_percent": "system",
    "iowait_percent": "I/O wait",
    "nice_percent": "nice",
    "irq_percent": "interrupts",
    "softirq_percent": "soft interrupts",
    "steal_percent": "steal",
    "guest_percent": "guest",
}
# Host panel, which is also the measurement: labels of its fields, and the tag of its devices.
_HOST_PANELS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "cpu": (_CPU_MODES, ""),
    "memory": ({"used_bytes": "used", "cached_bytes": "cached", "total_bytes": "total"}, ""),
    "load": ({"load1": "1 min", "load5": "5 min", "load15": "15 min"}, ""),
    "disk": ({"used_percent": ""}, "mount"),
    "diskio": ({"read_bytes_per_second": "read", "written_bytes_per_second": "write"}, "device"),
    "network": ({"received_bytes_per_second": "in", "sent_bytes_per_second": "out"}, "interface"),
}
# Panels whose means over long steps would hide peaks.
_SPIKY = frozenset({"load", "diskio", "network"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceDetail:
    """The data of one refresh; `charts` by panel.

    `cluster` is that of a connector, `node` what one reported of a node.
    """

    appliance: Appliance
    cpu: Values
    memory: Values
    load: Values
    disks: tuple[Latest, ...]
    gpus: tuple[GPURow, ...]
    health: ApplianceHealth | None
    charts: Mapping[str, Chart]
    problem: str
    node: ClusterNode | None = None
    cluster: ClusterFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """The latest use of a host; the rates are those of all disks and of all interfaces."""

    cpu_percent: float | None
    memory_percent: float | None
    disk_percent: float | None
    disk_mount: str
    diskio_bytes_per_second: float | None
    network_bytes_per_second: float | None


def host_use(telemetry: Telemetry) -> HostUse:
    """Return the latest use of the host to which the telemetry is filtered."""
    disk, mount = fullest_disk(telemetry.latest("disk", ("used_percent",), group_by=("mount",)))

    def percent(measurement: str, field: str) -> float | None:
        return number(single(telemetry.latest(measurement, (field,))), field)

    def rate(measurement: str) -> float | None:
        names, tag = _HOST_PANELS[measurement]
        devices = telemetry.latest(measurement, tuple(names), group_by=(tag,))
        rates = [
            number(device.values, name) or 0.0
            for device in devices
            if device.tags.get(tag) != "lo"
            for name in names
        ]
        return sum(rates) if rates else None

    return HostUse(
        cpu_percent=percent("cpu", "usage_percent"),
        memory_percent=percent("memory", "used_percent"),
        disk_percent=disk,
        disk_mount=mount,
        diskio_bytes_per_second=rate("diskio"),
        network_bytes_per_second=rate("network"),
    )


def appliance_detail(
    session: Session,
    store: Store,
    scope: Scope,
    appliance_id: str,
    *,
    span: Span,
    has_bands: bool = False,
) -> ApplianceDetail:
    """Return one appliance with its latest values and its charts over the span.

    The charts of GPUs have a line for each GPU, or one for all with a band between their extremes.
    """
    appliance = get_appliance(session, scope, appliance_id)
    if appliance.connector_id is not None:
        return _node_detail(session, store, scope, appliance, span=span)
    telemetry = Telemetry(store, scope, span, filters={APPLIANCE_TAG: (appliance.id,)})
    gpus = telemetry.latest("gpu", _GPU_NOW, group_by=("gpu", "uuid", "model"))
    thresholds = thresholds_of(session, scope, appliance)
    report = report_of(appliance)
    allocations = read_gpu_allocations(session, scope, appliance_id=appliance.id)
    return ApplianceDetail(
        appliance=appliance,
        cpu=single(telemetry.latest("cpu", ("usage_percent",))),
        memory=single(telemetry.latest("memory", ("used_bytes", "total_bytes", "used_percent"))),
        load=single(telemetry.latest("load", ("load1", "load5", "load15"))),
        disks=telemetry.latest(
            "disk", ("used_percent", "used_bytes", "total_bytes"), group_by=("mount",)
        ),
        gpus=gpu_rows(report, gpus, allocations, site_of(appliance)),
        health=report.health,
        charts=_host_charts(telemetry, thresholds)
        | _gpu_charts(telemetry, thresholds, has_bands=has_bands)
        | cluster_charts(store, scope, span, appliance, thresholds),
        problem=telemetry.problem,
        cluster=report.cluster,
    )


def _node_detail(
    session: Session, store: Store, scope: Scope, appliance: Appliance, *, span: Span
) -> ApplianceDetail:
    """Return a node of a cluster, of which its connector has samples."""
    charts = cluster_charts(store, scope, span, appliance, thresholds_of(session, scope, appliance))
    return ApplianceDetail(
        appliance=appliance,
        cpu={},
        memory={},
        load={},
        disks=(),
        gpus=(),
        health=None,
        charts=charts,
        problem=next((chart.problem for chart in charts.values()), ""),
        node=read_node(appliance),
    )


def _host_charts(telemetry: Telemetry, thresholds: Thresholds) -> dict[str, Chart]:
    charts = {}
    for key, (names, tag) in _HOST_PANELS.items():
        tags = (tag,) if tag else ()
        result = telemetry.charted(key, tuple(names), group_by=tags)
        is_cpu = key == "cpu"
        extremes = Extremes({})
        if key in _SPIKY:
            extremes = telemetry.extremes(key, tuple(names), group_by=tags)
        chart = Chart(
            field=next(iter(names)),
            lines=_lines(result, extremes, _used_modes(result) if is_cpu else names, tag),
            is_stacked=is_cpu,
            problem=result.problem,
        )
        # Rules on the CPU are usually about the sum of its modes.
        rule_fields = ("usage_percent",) if is_cpu else tuple(names)
        charts[key] = thresholds.on(chart, key, *rule_fields)
    return charts


def _gpu_charts(
    telemetry: Telemetry, thresholds: Thresholds, *, has_bands: bool
) -> dict[str, Chart]:
    group_by = () if has_bands else ("gpu",)
    result = telemetry.charted("gpu", GPU_FIELDS, group_by=group_by)
    # The bands of several lines would hide each other.
    extremes = telemetry.extremes("gpu", GPU_FIELDS, is_of_many=True) if has_bands else Extremes({})
    events = chart_events(xid_events(telemetry))
    charts = {}
    for name in GPU_FIELDS:
        # A GPU has the same color in every panel.
        lines = tuple(
            _gpu_line(result, series, extremes)
            for series in sorted(
                result.of(name), key=lambda gpu_series: by_index(gpu_series.tags.get("gpu", ""))
            )
        )
        chart = Chart(field=name, lines=lines, events=events, problem=result.problem)
        charts[f"gpu-{name}"] = thresholds.on(chart, "gpu", name)
    return charts


def _gpu_line(result: Result, series: Series, extremes: Extremes) -> Line:
    index = series.tags.get("gpu", "")
    if not index:
        return extremes.behind(result.line(series, name="mean of all GPUs", color=0), series)
    return result.line(series, name=f"GPU {index}", color=by_index(index)[0])


def _used_modes(result: Result) -> Mapping[str, str]:
    """Return the CPU modes with any time: a host without guests needs no line for them."""
    return {
        name: label
        for name, label in _CPU_MODES.items()
        if any(any(series.values) for series in result.of(name))
    } or {"user_percent": _CPU_MODES["user_percent"]}


def _lines(
    result: Result, extremes: Extremes, names: Mapping[str, str], tag: str
) -> tuple[Line, ...]:
    """Return a line per field, and per device if there is a tag, without the loopback interface."""
    colors: dict[str, int] = {}
    lines: list[Line] = []
    for offset, (name, label) in enumerate(names.items()):
        for series in _busiest(result.of(name)):
            device = series.tags.get(tag, "")
            if device == "lo":
                continue
            color = colors.setdefault(device, len(colors)) * len(names) + offset
            line = result.line(series, name=f"{device} {label}".strip(), color=color)
            lines.append(extremes.behind(line, series))
    return tuple(sorted(lines, key=lambda line: line.color))


def _busiest(series: Sequence[Series]) -> list[Series]:
    busiest = sorted(series, key=lambda device: -max(device.values, default=0.0))[:MAX_DEVICES]
    return sorted(busiest, key=lambda device: sorted(device.tags.items()))
