"""The GPU tier's data: one device and the attempts that ran on it."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.errors import NotFoundError
from dash_app.charts import Band, Chart, Line, Summary
from dash_app.queries.annotations import (
    Thresholds,
    XIDEvent,
    chart_events,
    thresholds_of,
    xid_events,
)
from dash_app.queries.appliance import HostUse, host_use
from dash_app.queries.gpu_rows import GPURow, gpu_rows, report_of, site_of
from dash_app.queries.slices import SliceUse, slice_charts, slice_uses
from dash_app.queries.telemetry import Extremes, Result, Telemetry
from dash_app.timerange import Span
from jobqueue.jobs.shown import with_users
from jobqueue.models import Attempt
from jobqueue.partitions.allocations import read_gpu_allocations
from jobqueue.rentals import ListedJob, listed_job, on_appliances_of
from jobqueue.usage.measuring import POWER, WINDOW_NS, GPUWindows, gpu_use
from protocol.gpu_slices import PartitionMode
from tenants.fleet.appliances import get_appliance
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Series, Store

# Why a panel is empty where its GPU does not report it.
UNREPORTED = {
    "activity": "Only GPUs of the Hopper generation and newer report this",
    "nvlink": "No NVLink traffic is reported in this time range",
}
_UNDER_MIG = "The driver reports this by slice while the GPU is in MIG mode"
# More bands could not be told apart.
MAX_BANDS = 100
# The energy is summed over at most this many windows.
_MAX_WINDOWS = 1000
# Panel to fields and labels.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "utilization": (("utilization_percent", "GPU"), ("memory_utilization_percent", "memory bus")),
    "activity": (
        ("sm_active_percent", "SM"),
        ("tensor_active_percent", "tensor cores"),
        ("dram_active_percent", "memory bandwidth"),
    ),
    "memory": (("memory_used_bytes", "used"), ("memory_total_bytes", "total")),
    "temperature": (
        ("temperature_celsius", "die"),
        ("memory_temperature_celsius", "memory"),
    ),
    "power": (("power_watts", "power"), ("power_limit_watts", "limit")),
    "clock": (("sm_clock_hertz", "SM"), ("memory_clock_hertz", "memory")),
    "throttled": (
        ("throttled", "any reason"),
        ("throttled_by_heat", "heat"),
        ("throttled_by_power", "power limit"),
        ("throttled_by_hardware", "hardware"),
    ),
    # Apart from each other: NVLink moves a hundred times as much.
    "pcie": (
        ("pcie_received_bytes_per_second", "in"),
        ("pcie_sent_bytes_per_second", "out"),
    ),
    "nvlink": (
        ("nvlink_received_bytes_per_second", "in"),
        ("nvlink_sent_bytes_per_second", "out"),
    ),
    "ecc": (("ecc_corrected_volatile", "corrected"), ("ecc_uncorrected_volatile", "uncorrected")),
}
_FIELDS = tuple(name for fields in PANELS.values() for name, _ in fields)
_NOW = (
    *_FIELDS,
    "memory_used_percent",
    "fan_percent",
    "ecc_enabled",
    "pcie_width",
    "pcie_width_max",
)
# Flags, whose mean over a step is the share of the step for which they were set.
_FLAGS = frozenset(name for name, _ in PANELS["throttled"])
# Bands behind the clocks while they are reduced for a reason.
_REASON_COLORS = {
    "throttled_by_heat": "rgba(220, 53, 69, 0.22)",
    "throttled_by_power": "rgba(217, 163, 0, 0.22)",
    "throttled_by_hardware": "rgba(139, 92, 246, 0.25)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An attempt on the GPU, and its job as the scope sees it.

    `end_ns` is the span's end while it is running.
    """

    attempt: Attempt
    job: ListedJob
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUDetail:
    """The data of one refresh.

    Attributes:
        siblings: all GPUs of the appliance.
        slices: who has what of it, if jobs share it.
        host: the appliance that it is in.
        energy_joules: energy over the span; None without samples of the power.
        charts: by panel.
    """

    appliance: Appliance
    gpu: GPURow
    siblings: tuple[GPURow, ...]
    slices: tuple[SliceUse, ...]
    host: HostUse
    energy_joules: float | None
    runs: tuple[Run, ...]
    xids: tuple[XIDEvent, ...]
    charts: Mapping[str, Chart]
    problem: str


def gpu_detail(
    session: Session, store: Store, scope: Scope, appliance_id: str, *, index: str, span: Span
) -> GPUDetail:
    """Return one GPU.

    Raises:
        NotFoundError: the scope has no such appliance, or the appliance no such GPU.
    """
    appliance = get_appliance(session, scope, appliance_id)
    telemetry = Telemetry(
        store, scope, span, filters={APPLIANCE_TAG: (appliance.id,), "gpu": (index,)}
    )
    latest = telemetry.latest("gpu", _NOW, group_by=("gpu", "uuid", "model"))
    result = telemetry.charted("gpu", _FIELDS)
    extremes = telemetry.extremes("gpu", tuple(name for name in _FIELDS if name not in _FLAGS))
    allocations = read_gpu_allocations(session, scope, appliance_id=appliance.id)
    rows = gpu_rows(report_of(appliance), latest, allocations, site_of(appliance))
    gpu = next((row for row in rows if row.index == index), None)
    if gpu is None:
        if not result.series:
            raise NotFoundError.of("GPU", index)
        gpu = GPURow(index=index, uuid="", model="", values={}, job=None)
    runs = _runs(session, scope, appliance.id, uuid=gpu.uuid, span=span)
    xids = xid_events(telemetry)
    thresholds = thresholds_of(session, scope, appliance, gpu=index)
    charts = _charts(result, extremes, runs, xids, thresholds=thresholds, step_ns=span.step_ns)
    names = {run.job.id: run.job.name for run in runs}
    return GPUDetail(
        appliance=appliance,
        gpu=gpu,
        siblings=rows,
        slices=slice_uses(telemetry, gpu),
        host=host_use(replace(telemetry, filters={APPLIANCE_TAG: (appliance.id,)})),
        energy_joules=_energy(telemetry),
        runs=runs,
        xids=xids,
        charts=_under_mig(charts, gpu) | slice_charts(telemetry, gpu, names, thresholds),
        problem=telemetry.problem,
    )


def _under_mig(charts: dict[str, Chart], gpu: GPURow) -> dict[str, Chart]:
    """Return the charts, of which those that the driver leaves empty under MIG say why."""
    if gpu.occupancy is None or gpu.occupancy.mode is not PartitionMode.MIG:
        return charts
    return {
        key: replace(chart, problem=_UNDER_MIG)
        if not chart.lines and chart.problem in {"", UNREPORTED["activity"]}
        else chart
        for key, chart in charts.items()
    }


def _runs(
    session: Session, scope: Scope, appliance_id: str, *, uuid: str, span: Span
) -> tuple[Run, ...]:
    statement = (
        select(Attempt)
        .where(
            Attempt.appliance_id == appliance_id,
            Attempt.started_at < from_ns(span.end_ns),
            or_(Attempt.finished_at.is_(None), Attempt.finished_at > from_ns(span.start_ns)),
            on_appliances_of(scope),
        )
        .options(*with_users())
        .order_by(Attempt.started_at.desc())
    )
    attempts = session.scalars(statement).unique()
    return tuple(
        Run(
            attempt=attempt,
            job=listed_job(attempt, scope),
            start_ns=max(to_ns(attempt.started_at), span.start_ns),
            end_ns=min(to_ns(attempt.finished_at), span.end_ns)
            if attempt.finished_at
            else span.end_ns,
        )
        for attempt in attempts
        if uuid in attempt.gpu_uuids and attempt.started_at is not None
    )


def _energy(telemetry: Telemetry) -> float | None:
    """Return the energy as the ledger of jobs adds it up: each window's mean power times its time.

    The chart's steps may be shorter than the time between two samples.
    """
    span = telemetry.span
    start_ns, end_ns = span.range_start_ns, span.end_ns
    step_ns = WINDOW_NS * max(1, (end_ns - start_ns) // (_MAX_WINDOWS * WINDOW_NS))
    windows = replace(telemetry, span=Span(start_ns, end_ns, step_ns))
    power = windows.over_time("gpu", (POWER,)).of(POWER)
    telemetry.problem = windows.problem
    if not power:
        return None
    values = dict(zip(power[0].times_ns, power[0].values, strict=True))
    use = gpu_use(GPUWindows({}, values), start_ns=start_ns, end_ns=end_ns, step_ns=step_ns)
    return use.energy_joules


def _charts(
    result: Result,
    extremes: Extremes,
    runs: Sequence[Run],
    xids: Sequence[XIDEvent],
    *,
    thresholds: Thresholds,
    step_ns: int,
) -> dict[str, Chart]:
    bands = {
        "utilization": tuple(
            Band(run.start_ns, run.end_ns, run.job.name)
            for run in runs
            if not run.attempt.gpu_slice
        ),
        "clock": _throttled_bands(result, step_ns),
    }
    charts = {}
    for key, fields in PANELS.items():
        lines = tuple(
            _line(result.line(series, name=label, color=color), series, extremes)
            for color, (name, label) in enumerate(fields)
            for series in result.of(name)
        )
        chart = Chart(
            field="throttled_percent" if key == "throttled" else fields[0][0],
            lines=lines,
            bands=bands.get(key, ()),
            events=chart_events(xids),
            problem=result.problem or ("" if lines else UNREPORTED.get(key, "")),
        )
        # A rule on a flag is about 0 or 1, the panel shows its share of the time.
        rule_fields = () if key == "throttled" else tuple(name for name, _ in fields)
        charts[key] = thresholds.on(chart, "gpu", *rule_fields)
    return charts


def _throttled_bands(result: Result, step_ns: int) -> tuple[Band, ...]:
    """Return the stretches of steps in which the clocks were reduced, for each reason."""
    bands: list[Band] = []
    labels = dict(PANELS["throttled"])
    for name, color in _REASON_COLORS.items():
        label = labels[name]
        for series in result.of(name):
            for at, value in zip(series.times_ns, series.values, strict=True):
                if not value:
                    continue
                before = bands[-1] if bands and bands[-1].color == color else None
                if before and at - before.end_ns <= step_ns:
                    bands[-1] = replace(before, end_ns=at + step_ns)
                else:
                    bands.append(Band(at, at + step_ns, label, color))
    return tuple(bands[-MAX_BANDS:])


def _line(line: Line, series: Series, extremes: Extremes) -> Line:
    if series.field not in _FLAGS:
        return extremes.behind(line, series)
    share = line.summary and Summary(*(100.0 * value for value in astuple(line.summary)))
    return replace(line, values=[100.0 * value for value in series.values], summary=share)
