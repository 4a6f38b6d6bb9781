"""Metrics of training that a job prints or writes to event files, a chart for each name."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from dash_app.charts import Chart, Line
from dash_app.queries.telemetry import Telemetry
from jobqueue.models import Job
from protocol.results import MEASUREMENT
from timeseries.store import Aggregate

MAX_CHARTS = 24
_NAME, _ATTEMPT = "name", "attempt"
# Of the range of the values, above and below them.
_MARGIN = 0.05
_SLOT_LENGTH = 16


def metric_names(telemetry: Telemetry) -> list[str]:
    """Return the names of a job's metrics; at most `MAX_CHARTS` are shown."""
    result = telemetry.over_span(
        MEASUREMENT, ("value",), group_by=(_NAME,), aggregate=Aggregate.COUNT
    )
    return sorted(series.tags.get(_NAME, "") for series in result.series if series.values)


def slot_of(name: str) -> str:
    """Return what stands for a metric in the id of its chart, where any name can't."""
    return hashlib.sha256(name.encode()).hexdigest()[:_SLOT_LENGTH]


def training_charts(telemetry: Telemetry, job: Job) -> dict[str, Chart]:
    """Return the charts of a job's metrics by name, a line for each attempt."""
    groups = (_NAME, _ATTEMPT)
    values = telemetry.charted(MEASUREMENT, ("value",), group_by=groups, aggregate=Aggregate.LAST)
    steps = telemetry.over_time(MEASUREMENT, ("step",), group_by=groups, aggregate=Aggregate.LAST)
    step_at = {
        (series.tags.get(_NAME), series.tags.get(_ATTEMPT)): dict(
            zip(series.times_ns, series.values, strict=True)
        )
        for series in steps.of("step")
    }
    numbers = {attempt.id: attempt.number for attempt in job.attempts}
    lines: dict[str, list[Line]] = {}
    for series in values.of("value"):
        name, attempt = series.tags.get(_NAME, ""), series.tags.get(_ATTEMPT, "")
        own_steps = step_at.get((name, attempt), {})
        line = values.line(
            series,
            name=f"attempt {numbers.get(attempt, '')}".strip(),
            color=numbers.get(attempt, 1) - 1,
        )
        notes = tuple(
            f"step {own_steps[at]:,.0f}" if at in own_steps else "" for at in series.times_ns
        )
        lines.setdefault(name, []).append(replace(line, notes=notes))
    return {name: _chart(own, values.problem) for name, own in sorted(lines.items())}


def _chart(lines: Sequence[Line], problem: str) -> Chart:
    drawn = [value for line in lines for value in line.values]
    low, high = min(drawn, default=0.0), max(drawn, default=1.0)
    margin = (high - low or abs(high) or 1.0) * _MARGIN
    return Chart(
        field="value",
        lines=tuple(sorted(lines, key=lambda line: line.color)),
        aggregate=Aggregate.LAST,
        limits=(low - margin, high + margin),
        problem=problem,
    )
