"""The GPU tier's data: one device and the attempts that ran on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.errors import NotFoundError
from dash_app.charts import Band, Chart, Line, line_of
from dash_app.queries.annotations import (
    Thresholds,
    XIDEvent,
    chart_events,
    thresholds_of,
    xid_events,
)
from dash_app.queries.appliance import GPURow, gpu_rows
from dash_app.queries.telemetry import Extremes, Result, Telemetry
from dash_app.timerange import Span
from jobqueue.models import Attempt
from jobqueue.service import gpu_allocations
from tenants.fleet.appliances import get_appliance, read_health
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Series, Store

# Panel to fields and labels.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "utilization": (("utilization_percent", "GPU"), ("memory_utilization_percent", "memory bus")),
    "memory": (("memory_used_bytes", "used"), ("memory_total_bytes", "total")),
    "temperature": (("temperature_celsius", "temperature"),),
    "power": (("power_watts", "power"), ("power_limit_watts", "limit")),
    "clock": (("sm_clock_hertz", "SM"), ("memory_clock_hertz", "memory")),
    "throttled": (("throttled", "throttled"),),
}
_FIELDS = tuple(name for fields in PANELS.values() for name, _ in fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An attempt on the GPU; `end_ns` is the span's end while it is running."""

    attempt: Attempt
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUDetail:
    """The data of one refresh; `charts` by panel."""

    appliance: Appliance
    gpu: GPURow
    siblings: tuple[str, ...]
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
    latest = telemetry.latest(
        "gpu", (*_FIELDS, "memory_used_percent", "fan_percent"), group_by=("gpu", "uuid", "model")
    )
    result = telemetry.over_time("gpu", _FIELDS)
    extremes = telemetry.extremes("gpu", _FIELDS)
    jobs = gpu_allocations(session, scope)
    rows = gpu_rows(appliance, read_health(appliance), latest, jobs)
    gpu = next((row for row in rows if row.index == index), None)
    if gpu is None:
        if not result.series:
            raise NotFoundError.of("GPU", index)
        gpu = GPURow(index=index, uuid="", model="", values={}, job=None)
    runs = _runs(session, scope, appliance.id, uuid=gpu.uuid, span=span)
    xids = xid_events(telemetry)
    thresholds = thresholds_of(session, scope, appliance, gpu=index)
    return GPUDetail(
        appliance=appliance,
        gpu=gpu,
        siblings=tuple(row.index for row in rows),
        runs=runs,
        xids=xids,
        charts=_charts(result, extremes, runs, xids, thresholds=thresholds),
        problem=telemetry.problem,
    )


def _runs(
    session: Session, scope: Scope, appliance_id: str, *, uuid: str, span: Span
) -> tuple[Run, ...]:
    statement = (
        select(Attempt)
        .where(
            Attempt.appliance_id == appliance_id,
            Attempt.started_at < from_ns(span.end_ns),
            or_(Attempt.finished_at.is_(None), Attempt.finished_at > from_ns(span.start_ns)),
        )
        .order_by(Attempt.started_at.desc())
    )
    attempts = session.scalars(scope.select(statement, Attempt)).unique()
    return tuple(
        Run(
            attempt=attempt,
            start_ns=max(to_ns(attempt.started_at), span.start_ns),
            end_ns=min(to_ns(attempt.finished_at), span.end_ns)
            if attempt.finished_at
            else span.end_ns,
        )
        for attempt in attempts
        if uuid in attempt.gpu_uuids and attempt.started_at is not None
    )


def _charts(
    result: Result,
    extremes: Extremes,
    runs: Sequence[Run],
    xids: Sequence[XIDEvent],
    *,
    thresholds: Thresholds,
) -> dict[str, Chart]:
    bands = tuple(Band(run.start_ns, run.end_ns, run.attempt.job.name) for run in runs)
    charts = {}
    for key, fields in PANELS.items():
        chart = Chart(
            field="throttled_percent" if key == "throttled" else fields[0][0],
            lines=tuple(
                _line(series, label, extremes, color=color)
                for color, (name, label) in enumerate(fields)
                for series in result.of(name)
            ),
            bands=bands if key == "utilization" else (),
            events=chart_events(xids),
            problem=result.problem,
        )
        # A rule on `throttled` is about a flag of 0 or 1, the panel shows its share of the time.
        rule_fields = () if key == "throttled" else tuple(name for name, _ in fields)
        charts[key] = thresholds.on(chart, "gpu", *rule_fields)
    return charts


def _line(series: Series, label: str, extremes: Extremes, *, color: int) -> Line:
    line = line_of(series, name=label, color=color)
    if series.field != "throttled":
        found = extremes.get(series.field, {})
        behind = [
            found.get(at, (value, value))
            for at, value in zip(series.times_ns, series.values, strict=True)
        ]
        return line if line.is_dotted else replace(line, extremes=behind if found else ())
    # The mean of a flag over a step is the share of the step for which it was set.
    return replace(line, values=[100.0 * value for value in series.values])
