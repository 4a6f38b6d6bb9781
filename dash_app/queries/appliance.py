"""The appliance tier's figures: one host, its GPUs, and their course over a span."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from dash_app.charts import Chart, Line, Stroke, line_of
from dash_app.queries.health import HealthView, chart_events, health_of, xid_events
from dash_app.queries.levels import Levels, levels_of
from dash_app.queries.telemetry import Answer, Telemetry, by_index
from dash_app.timerange import Span
from jobqueue.executors.health import GPUHealth
from jobqueue.models import Job
from jobqueue.service import gpu_holders
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.points import FieldValue
from timeseries.store import APPLIANCE_TAG, Latest, Series, Store

# Panels stay readable: more devices than this are left out, the busiest stay.
MOST_DEVICES = 5
_GPU_OVER_TIME = ("utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts")
_GPU_NOW = (*_GPU_OVER_TIME, "memory_total_bytes", "memory_used_percent", "power_limit_watts",
            "sm_clock_hertz", "throttled")  # fmt: skip
_CPU_KINDS = {
    "user_percent": "user", "system_percent": "system", "iowait_percent": "I/O wait",
    "nice_percent": "nice", "irq_percent": "interrupts", "softirq_percent": "soft interrupts",
    "steal_percent": "stolen", "guest_percent": "guests",
}  # fmt: skip

# What a rule must watch for its threshold to be drawn in a panel: measurement and fields. The
# memory panel is in bytes and its rules are in percent.
_WATCHED: Mapping[str, tuple[str, ...]] = {
    "cpu": ("cpu", "usage_percent"),
    "load": ("load", "load1", "load5", "load15"),
    "memory": ("memory", "used_bytes"),
    "disk": ("disk", "used_percent"),
    "diskio": ("diskio", "read_bytes_per_second", "written_bytes_per_second"),
    "network": ("network", "received_bytes_per_second", "sent_bytes_per_second"),
} | {f"gpu-{name}": ("gpu", name) for name in _GPU_OVER_TIME}

Values = Mapping[str, FieldValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPURow:
    """One GPU of an appliance with its newest readings; an unread value is absent."""

    index: str
    uuid: str
    model: str
    values: Values
    job: Job | None
    health: GPUHealth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceDetail:
    """Everything of one refresh of the appliance tier; `charts` by panel key."""

    appliance: Appliance
    cpu: Values
    memory: Values
    load: Values
    disks: tuple[Latest, ...]
    gpus: tuple[GPURow, ...]
    health: HealthView
    charts: Mapping[str, Chart]
    problem: str


def find_appliance(session: Session, scope: Scope, appliance_id: str) -> Appliance:
    """Return the appliance, or raise the one `NotFoundError` for missing and foreign ones."""
    return scope.get(session, Appliance, appliance_id, kind="appliance")


def appliance_detail(
    session: Session, store: Store, scope: Scope, appliance_id: str, *, span: Span
) -> ApplianceDetail:
    """Return one appliance with its newest readings and its charts over the span."""
    appliance = find_appliance(session, scope, appliance_id)
    telemetry = Telemetry(store, scope, span, filters={APPLIANCE_TAG: (appliance.id,)})
    gpus = telemetry.latest("gpu", _GPU_NOW, group_by=("gpu", "uuid", "model"))
    return ApplianceDetail(
        appliance=appliance,
        cpu=_single(telemetry.latest("cpu", ("usage_percent",))),
        memory=_single(telemetry.latest("memory", ("used_bytes", "total_bytes", "used_percent"))),
        load=_single(telemetry.latest("load", ("load1", "load5", "load15"))),
        disks=telemetry.latest(
            "disk", ("used_percent", "used_bytes", "total_bytes"), group_by=("mount",)
        ),
        gpus=gpu_rows(appliance, gpus, gpu_holders(session, scope)),
        health=health_of(appliance),
        charts=_with_levels(
            _host_charts(telemetry) | _gpu_charts(telemetry), levels_of(session, scope, appliance)
        ),
        problem=telemetry.problem,
    )


def gpu_rows(
    appliance: Appliance, readings: Sequence[Latest], holders: Mapping[str, Job]
) -> tuple[GPURow, ...]:
    """Return the GPUs that the inventory names, that reported or that are missed, by index."""
    judged = health_of(appliance).by_uuid
    known: dict[str, Mapping[str, Any]] = {
        str(gpu.index): {"uuid": gpu.uuid} for gpu in judged.values() if gpu.index >= 0
    }
    known |= {str(gpu["index"]): gpu for gpu in appliance.inventory.get("gpus", [])}
    rows = {row.tags.get("gpu", ""): row for row in readings}
    found = []
    for index in sorted(known.keys() | rows.keys(), key=by_index):
        tags = rows[index].tags if index in rows else {}
        uuid = str(known.get(index, {}).get("uuid") or tags.get("uuid", ""))
        found.append(
            GPURow(
                index=index,
                uuid=uuid,
                model=str(known.get(index, {}).get("model") or tags.get("model", "")),
                values=rows[index].values if index in rows else {},
                job=holders.get(uuid),
                health=judged.get(uuid),
            )
        )
    return tuple(found)


def _single(rows: Sequence[Latest]) -> Values:
    return rows[0].values if rows else {}


def _host_charts(telemetry: Telemetry) -> dict[str, Chart]:
    cpu = telemetry.over_time("cpu", tuple(_CPU_KINDS))
    memory = telemetry.over_time("memory", ("used_bytes", "cached_bytes", "total_bytes"))
    load = telemetry.over_time("load", ("load1", "load5", "load15"))
    disk = telemetry.over_time("disk", ("used_percent",), group_by=("mount",))
    diskio = telemetry.over_time(
        "diskio", ("read_bytes_per_second", "written_bytes_per_second"), group_by=("device",)
    )
    network = telemetry.over_time(
        "network", ("received_bytes_per_second", "sent_bytes_per_second"), group_by=("interface",)
    )
    return {
        "cpu": _named(cpu, _kinds_spent(cpu), is_stacked=True),
        "memory": _memory(memory),
        "load": _named(load, {"load1": "1 min", "load5": "5 min", "load15": "15 min"}),
        "disk": _by_tag(disk, "used_percent", "mount"),
        "diskio": _two_ways(
            diskio, "device", {"read_bytes_per_second": "read", "written_bytes_per_second": "write"}
        ),
        "network": _two_ways(
            network,
            "interface",
            {"received_bytes_per_second": "in", "sent_bytes_per_second": "out"},
        ),
    }


def _gpu_charts(telemetry: Telemetry) -> dict[str, Chart]:
    answer = telemetry.over_time("gpu", _GPU_OVER_TIME, group_by=("gpu",))
    events = chart_events(xid_events(telemetry))
    return {
        f"gpu-{name}": Chart(
            field=name, lines=gpu_lines(answer.of(name)), events=events, problem=answer.problem
        )
        for name in _GPU_OVER_TIME
    }


def _with_levels(charts: Mapping[str, Chart], levels: Levels) -> dict[str, Chart]:
    return {
        key: levels.across(chart, *_WATCHED[key]) if key in _WATCHED else chart
        for key, chart in charts.items()
    }


def gpu_lines(series: Sequence[Series]) -> tuple[Line, ...]:
    """Return one line per GPU, in the colour that the GPU has in every panel."""
    ordered = sorted(series, key=lambda one: by_index(one.tags.get("gpu", "")))
    return tuple(
        line_of(one, name=f"GPU {one.tags.get('gpu', '')}", color=by_index(one.tags["gpu"])[0])
        for one in ordered
    )


def _kinds_spent(answer: Answer) -> Mapping[str, str]:
    """Return the kinds of CPU time that there was any of: a host without guests needs no line."""
    return {
        name: label
        for name, label in _CPU_KINDS.items()
        if any(any(series.values) for series in answer.of(name))
    } or {"user_percent": _CPU_KINDS["user_percent"]}


def _named(answer: Answer, names: Mapping[str, str], *, is_stacked: bool = False) -> Chart:
    lines = tuple(
        line_of(series, name=label, color=color)
        for color, (name, label) in enumerate(names.items())
        for series in answer.of(name)
    )
    return Chart(
        field=next(iter(names)), lines=lines, is_stacked=is_stacked, problem=answer.problem
    )


def _memory(answer: Answer) -> Chart:
    strokes = {"used_bytes": Stroke.SOLID, "cached_bytes": Stroke.SOLID,
               "total_bytes": Stroke.DOTTED}  # fmt: skip
    lines = tuple(
        Line(
            name=name.removesuffix("_bytes"), times_ns=series.times_ns, values=series.values,
            color=color, stroke=stroke, is_filled=name == "used_bytes",
        )
        for color, (name, stroke) in enumerate(strokes.items())
        for series in answer.of(name)
    )  # fmt: skip
    return Chart(field="used_bytes", lines=lines, problem=answer.problem)


def _by_tag(answer: Answer, name: str, tag: str) -> Chart:
    lines = tuple(
        line_of(series, name=series.tags.get(tag, ""), color=color)
        for color, series in enumerate(_busiest(answer.of(name)))
    )
    return Chart(field=name, lines=lines, problem=answer.problem)


def _two_ways(answer: Answer, tag: str, directions: Mapping[str, str]) -> Chart:
    """Draw both directions of each device; the loopback says nothing about the host."""
    kept: dict[str, int] = {}
    lines: list[Line] = []
    for way, (name, label) in enumerate(directions.items()):
        for series in _busiest(answer.of(name)):
            device = series.tags.get(tag, "")
            if device == "lo":
                continue
            color = kept.setdefault(device, len(kept)) * len(directions) + way
            lines.append(line_of(series, name=f"{device} {label}", color=color))
    lines.sort(key=lambda line: line.color)
    return Chart(field=next(iter(directions)), lines=tuple(lines), problem=answer.problem)


def _busiest(series: Sequence[Series]) -> list[Series]:
    kept = sorted(series, key=lambda one: -max(one.values, default=0.0))[:MOST_DEVICES]
    return sorted(kept, key=lambda one: sorted(one.tags.items()))
