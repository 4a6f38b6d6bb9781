"""The platform over time, by tenant: the largest ones as lines, the others as their sum."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.clock import NS_PER_SECOND, to_ns
from core.errors import UnavailableError
from dash_app.charts import Chart, Line
from dash_app.queries.platform import gpu_holdings, hours_between
from dash_app.timerange import Span
from tenants.customers.usage import growth, values_of
from tenants.models import Tenant, TenantUsage
from tenants.permissions import Permission
from tenants.scope import Scope
from timeseries.store import TENANT_TAG, RangeQuery, Store

GROWTH_OVER = timedelta(days=90)
TOP_TENANTS = 8
_OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformCharts:
    """The platform over time, by tenant; those of days over their own span."""

    utilization: Chart
    ingest: Chart
    gpu_hours: Chart
    storage: Chart
    days: Span


@dataclass(frozen=True, slots=True)
class _Legend:
    """What the tenants are called, and the colour that each has in every chart."""

    names: Mapping[str, str]
    colors: Mapping[str, int]

    @classmethod
    def of(cls, names: Mapping[str, str], *found: Mapping[str, Mapping[int, float]]) -> "_Legend":
        drawn = sorted({tenant for values in found for tenant in _largest(values)})
        return cls(names, {tenant: color for color, tenant in enumerate(drawn)})


def platform_charts(
    session: Session, store: Store, scope: Scope, *, span: Span, now: datetime
) -> PlatformCharts:
    """Return the charts of the platform."""
    scope.require(Permission.OPERATE)
    names: dict[str, str] = {
        row[0]: row[1] for row in session.execute(select(Tenant.id, Tenant.name))
    }
    since = now - GROWTH_OVER
    hours = _hours_by_day(session, since=since, now=now)
    storage = _storage_by_day(growth(session, since=since.date()))
    problem = ""
    try:
        use, rates = _use(store, span=span), _rates(store, span=span)
    except UnavailableError as error:
        use, rates, problem = {}, {}, error.message
    legend = _Legend.of(names, use, rates, hours, storage)
    return PlatformCharts(
        utilization=Chart(
            field="utilization_percent", lines=_lines(_largest(use), legend), problem=problem
        ),
        ingest=replace(_stacked("points_per_second", rates, legend), problem=problem),
        gpu_hours=_stacked("gpu_hours", hours, legend),
        storage=_stacked("storage_bytes", storage, legend),
        days=_days(since, now),
    )


def _hours_by_day(
    session: Session, *, since: datetime, now: datetime
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for tenant, start_at, end_at, gpus in gpu_holdings(session, since=since, now=now):
        at = start_at
        while at < end_at:
            midnight = datetime(at.year, at.month, at.day, tzinfo=UTC)
            until = min(end_at, midnight + timedelta(days=1))
            found[tenant][to_ns(midnight)] += hours_between(at, until) * gpus
            at = until
    return found


def _storage_by_day(rows: Sequence[TenantUsage]) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        midnight = datetime(row.day.year, row.day.month, row.day.day, tzinfo=UTC)
        found[row.tenant_id][to_ns(midnight)] = float(row.storage_bytes)
    return found


def _use(store: Store, *, span: Span) -> dict[str, dict[int, float]]:
    query = RangeQuery(
        measurement="gpu",
        fields=("utilization_percent",),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        step_ns=span.step_ns,
        tenants=None,
        group_by=(TENANT_TAG,),
    )
    return {
        one.tags.get(TENANT_TAG, ""): dict(zip(one.times_ns, one.values, strict=True))
        for one in store.query_range(query)
    }


def _rates(store: Store, *, span: Span) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    step_seconds = span.step_ns / NS_PER_SECOND
    # The window that has just begun holds less than the others, and would look like a fall.
    last_ns = span.end_ns - span.end_ns % span.step_ns
    for measurement in store.measurements(tenants=None):
        for tenant, series in values_of(
            store, measurement, start_ns=span.start_ns, end_ns=last_ns, step_ns=span.step_ns
        ):
            for time_ns, value in zip(series.times_ns, series.values, strict=True):
                found[tenant][time_ns] += value / step_seconds
    return found


def _stacked(field: str, found: Mapping[str, Mapping[int, float]], legend: _Legend) -> Chart:
    """Stack the largest tenants and the sum of the others, all at the same instants."""
    top = _largest(found)
    rest: dict[int, float] = defaultdict(float)
    for tenant, values in found.items():
        if tenant not in top:
            for time_ns, value in values.items():
                rest[time_ns] += value
    times = sorted({time_ns for values in found.values() for time_ns in values})
    lines = [*_lines(top, legend, times=times)]
    if rest:
        lines.append(
            Line(
                name=_OTHERS, times_ns=times, values=[rest[at] for at in times],
                color=len(legend.colors),
            )
        )  # fmt: skip
    return Chart(field=field, lines=tuple(lines), is_stacked=True)


def _largest(found: Mapping[str, Mapping[int, float]]) -> dict[str, Mapping[int, float]]:
    ranked = sorted(found, key=lambda tenant: (-sum(found[tenant].values()), tenant))
    return {tenant: found[tenant] for tenant in ranked[:TOP_TENANTS]}


def _lines(
    found: Mapping[str, Mapping[int, float]],
    legend: _Legend,
    *,
    times: Sequence[int] | None = None,
) -> tuple[Line, ...]:
    return tuple(
        Line(
            name=legend.names.get(tenant, "removed tenant"),
            times_ns=list(values if times is None else times),
            values=[values.get(at, 0.0) for at in (values if times is None else times)],
            color=legend.colors[tenant],
        )
        for tenant, values in found.items()
    )


def _days(since: datetime, now: datetime) -> Span:
    return Span(to_ns(since), to_ns(now), int(timedelta(days=1).total_seconds()) * NS_PER_SECOND)
