"""The platform over time: a line for each of the largest tenants, and one for all others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from heapq import nlargest

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.errors import UnavailableError
from dash_app.charts import Chart, Line
from dash_app.queries.telemetry import Telemetry
from dash_app.timerange import Span
from jobqueue.usage.live import live_use
from jobqueue.usage.measuring import Period
from jobqueue.usage.totals import allocated_by_tenant_and_day
from tenants.lifecycle.usage import growth, values_of
from tenants.models import Tenant, TenantUsage
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, Store

GROWTH_OVER = timedelta(days=90)
TOP_TENANTS = 8
DAILY = ("hours", "storage")
_DAY_NS = 24 * 3600 * NS_PER_SECOND

# The name of each tenant, and its color in every chart.
_Legend = Mapping[str, tuple[str, int]]


def platform_charts(
    session: Session, store: Store, scope: Scope, *, span: Span, now: datetime
) -> dict[str, Chart]:
    """Return the charts by panel; those of `DAILY` cover 90 days, whatever the span."""
    scope.require(Permission.OPERATE)
    names = {tenant.id: tenant.name for tenant in session.scalars(select(Tenant))}
    since = now - GROWTH_OVER
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
    hours = _hours_by_day(session, scope, Period(midnight, now))
    storage = _storage_by_day(growth(session, since=since.date()))
    telemetry = Telemetry(store, scope, span)
    use, rates = _use(telemetry), dict[str, dict[int, float]]()
    problem = telemetry.problem
    try:
        rates = {} if problem else _rates(store, span)
    except UnavailableError as error:
        problem = error.message
    drawn = {tenant for by_tenant in (rates, hours, storage) for tenant in _largest(by_tenant)} | {
        *use
    }
    named = sorted((names.get(tenant, "deleted tenant"), tenant) for tenant in drawn)
    legend = {tenant: (name, color) for color, (name, tenant) in enumerate(named)}
    return {
        "utilization": Chart(
            field="utilization_percent", lines=_named(use, legend), problem=problem
        ),
        "ingest": replace(_stacked("points_per_second", rates, legend), problem=problem),
        "hours": replace(_stacked("gpu_hours", hours, legend), bar_ns=_DAY_NS),
        "storage": replace(_stacked("storage_bytes", storage, legend), bar_ns=_DAY_NS),
    }


def daily_span(charts: Mapping[str, Chart], *, now: datetime) -> Span:
    """Return the span of the charts by day: from the first with data, at least two weeks."""
    starts = [at for key in DAILY for line in charts[key].lines for at in line.times_ns]
    until = to_ns(now) // _DAY_NS * _DAY_NS + _DAY_NS
    since = min([*starts, until - 14 * _DAY_NS])
    return Span(since, until, _DAY_NS)


def _hours_by_day(session: Session, scope: Scope, period: Period) -> dict[str, dict[int, float]]:
    """Return the allocated GPU-hours by tenant and day, as the nanosecond of its start."""
    live = live_use(session, None, scope, period, now=period.until)
    hours: dict[str, dict[int, float]] = defaultdict(dict)
    for (tenant, day), allocated in allocated_by_tenant_and_day(
        session, scope, period, live=live
    ).items():
        hours[tenant][to_ns(datetime.fromisoformat(day).replace(tzinfo=UTC))] = allocated
    return hours


def _storage_by_day(rows: Sequence[TenantUsage]) -> dict[str, dict[int, float]]:
    storage: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        midnight = datetime(row.day.year, row.day.month, row.day.day, tzinfo=UTC)
        storage[row.tenant_id][to_ns(midnight)] = float(row.storage_bytes)
    return storage


def _use(telemetry: Telemetry) -> dict[str, Line]:
    """Return the utilization of the tenants with the highest means."""
    result = telemetry.charted("gpu", ("utilization_percent",), group_by=(TENANT_TAG,))
    lines = {
        series.tags[TENANT_TAG]: result.line(series, name="", color=0) for series in result.series
    }
    means = {tenant: line.summary.whole for tenant, line in lines.items() if line.summary}
    return {tenant: lines[tenant] for tenant in nlargest(TOP_TENANTS, means, key=means.__getitem__)}


def _named(lines: Mapping[str, Line], legend: _Legend) -> tuple[Line, ...]:
    return tuple(
        replace(lines[tenant], name=name, color=color)
        for tenant, (name, color) in legend.items()
        if tenant in lines
    )


def _rates(store: Store, span: Span) -> dict[str, dict[int, float]]:
    rates: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    step_seconds = span.step_ns / NS_PER_SECOND
    # The current step is incomplete and would look like a drop.
    last_ns = span.end_ns - span.end_ns % span.step_ns
    for measurement in store.measurements(tenants=None):
        for tenant, series in values_of(
            store, measurement, start_ns=span.start_ns, end_ns=last_ns, step_ns=span.step_ns
        ):
            for time_ns, value in zip(series.times_ns, series.values, strict=True):
                rates[tenant][time_ns] += value / step_seconds
    return rates


def _stacked(field: str, by_tenant: Mapping[str, Mapping[int, float]], legend: _Legend) -> Chart:
    """Stack the largest tenants and the sum of the others, on a common time axis."""
    top = _largest(by_tenant)
    remainder: dict[int, float] = defaultdict(float)
    for tenant, values in by_tenant.items():
        if tenant not in top:
            for time_ns, value in values.items():
                remainder[time_ns] += value
    times = sorted({time_ns for values in by_tenant.values() for time_ns in values})
    lines = [*_lines(top, legend, times)]
    if remainder:
        sums = [remainder[at] for at in times]
        lines.append(Line(name="others", times_ns=times, values=sums, color=len(legend)))
    return Chart(field=field, lines=tuple(lines), is_stacked=True)


def _largest(by_tenant: Mapping[str, Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
    ranked = sorted(by_tenant, key=lambda tenant: (-sum(by_tenant[tenant].values()), tenant))
    return {tenant: by_tenant[tenant] for tenant in ranked[:TOP_TENANTS]}


def _lines(
    by_tenant: Mapping[str, Mapping[int, float]],
    legend: _Legend,
    times: Sequence[int] | None = None,
) -> tuple[Line, ...]:
    return tuple(
        Line(
            name=legend[tenant][0],
            times_ns=list(values if times is None else times),
            values=[values.get(at, 0.0) for at in (values if times is None else times)],
            color=legend[tenant][1],
        )
        for tenant, values in sorted(by_tenant.items(), key=lambda item: legend[item[0]][1])
    )
