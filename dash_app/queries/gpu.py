"""The GPU tier's figures: one device, its course over a span, and the jobs that held it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from core.clock import from_ns, to_ns
from core.errors import NotFoundError
from dash_app.charts import Chart, Event, Line, Mark, Stroke, line_of
from dash_app.queries.appliance import GPURow, find_appliance, gpu_rows
from dash_app.queries.health import XIDEvent, chart_events, xid_events
from dash_app.queries.levels import Levels, levels_of
from dash_app.queries.telemetry import Answer, Telemetry
from dash_app.timerange import Span
from jobqueue.models import Attempt
from jobqueue.service import gpu_holders
from tenants.models import Appliance
from tenants.scope import Scope
from timeseries.store import APPLIANCE_TAG, Series, Store

# Panel key to its fields: the first one is drawn solid, the second, its limit, dotted.
PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "utilization": (
        ("utilization_percent", "GPU"),
        ("memory_utilization_percent", "memory bus"),
    ),
    "memory": (("memory_used_bytes", "used"), ("memory_total_bytes", "total")),
    "temperature": (("temperature_celsius", "temperature"),),
    "power": (("power_watts", "power"), ("power_limit_watts", "limit")),
    "clock": (("sm_clock_hertz", "SM"), ("memory_clock_hertz", "memory")),
    "throttled": (("throttled", "throttled"),),
}
_LIMITS = frozenset({"memory_total_bytes", "power_limit_watts"})
_FIELDS = tuple(name for fields in PANELS.values() for name, _ in fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job's hold on the GPU; `end_ns` is the span's end while it lasts."""

    attempt: Attempt
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUDetail:
    """Everything of one refresh of the GPU tier; `charts` by panel key."""

    appliance: Appliance
    gpu: GPURow
    siblings: tuple[str, ...]
    holdings: tuple[Holding, ...]
    xids: tuple[XIDEvent, ...]
    charts: Mapping[str, Chart]
    problem: str


def gpu_detail(
    session: Session, store: Store, scope: Scope, appliance_id: str, *, index: str, span: Span
) -> GPUDetail:
    """Return one GPU.

    Raises:
        NotFoundError: no such appliance in the scope, or no such GPU there.
    """
    appliance = find_appliance(session, scope, appliance_id)
    telemetry = Telemetry(
        store, scope, span, filters={APPLIANCE_TAG: (appliance.id,), "gpu": (index,)}
    )
    readings = telemetry.latest(
        "gpu", (*_FIELDS, "memory_used_percent", "fan_percent"), group_by=("gpu", "uuid", "model")
    )
    answer = telemetry.over_time("gpu", _FIELDS)
    rows = gpu_rows(appliance, readings, gpu_holders(session, scope))
    gpu = next((row for row in rows if row.index == index), None)
    if gpu is None:
        if not answer.series:
            raise NotFoundError.of("GPU", index)
        gpu = GPURow(index=index, uuid="", model="", values={}, job=None)
    holdings = _holdings(session, scope, appliance.id, uuid=gpu.uuid, span=span)
    xids = xid_events(telemetry)
    return GPUDetail(
        appliance=appliance,
        gpu=gpu,
        siblings=tuple(row.index for row in rows),
        holdings=holdings,
        xids=xids,
        charts=_charts(
            answer,
            holdings,
            chart_events(xids),
            levels=levels_of(session, scope, appliance, gpu=index),
        ),
        problem=telemetry.problem,
    )


def _holdings(
    session: Session, scope: Scope, appliance_id: str, *, uuid: str, span: Span
) -> tuple[Holding, ...]:
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
        Holding(
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
    answer: Answer, holdings: Sequence[Holding], events: tuple[Event, ...], *, levels: Levels
) -> dict[str, Chart]:
    marks = tuple(Mark(held.start_ns, held.end_ns, held.attempt.job.name) for held in holdings)
    charts = {}
    for key, fields in PANELS.items():
        lines = tuple(
            _line(series, label, color=color)
            for color, (name, label) in enumerate(fields)
            for series in answer.of(name)
        )
        field = "throttled_percent" if key == "throttled" else fields[0][0]
        chart = Chart(field=field, lines=lines, events=events, problem=answer.problem)
        if key == "utilization":
            chart = chart.marked(marks)
        # A rule on `throttled` watches a flag of 0 or 1, the panel shows its share of the time.
        watched = () if key == "throttled" else tuple(name for name, _ in fields)
        charts[key] = levels.across(chart, "gpu", *watched)
    return charts


def _line(series: Series, label: str, *, color: int) -> Line:
    stroke = Stroke.DOTTED if series.field in _LIMITS else Stroke.SOLID
    line = line_of(series, name=label, color=color, stroke=stroke)
    if series.field != "throttled":
        return line
    # The mean of a flag over a window is the share of the window for which it was up.
    return replace(line, values=[100.0 * value for value in series.values])
