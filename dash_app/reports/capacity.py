"""Reports on capacity: GPU-hours and disks, and when they are used up if their trend goes on."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, String, and_, func, or_, select, true
from sqlalchemy import cast as cast_to

from core.clock import from_ns
from dash_app.reports.forecast import MIN_POINTS, Forecast, forecast
from dash_app.reports.report import Cell, Column, Unit
from dash_app.reports.source import DAY_SECONDS, HOUR_SECONDS, Source, Table, total
from jobqueue.usage.ledger import recorded_until
from jobqueue.usage.models import UsageEntry
from tenants.fleet.states import counted_gpus, in_service
from tenants.models import Appliance
from tenants.scope import Scope

HOURS_PER_DAY = 24
DAY = timedelta(days=1)
# Nobody plans further ahead, and lines are not straight for so long.
HORIZON_DAYS = 3650
_DATES = (
    Column("full_on", "Full on", Unit.TEXT),
    Column("earliest_on", "Earliest", Unit.TEXT),
    Column("latest_on", "Latest", Unit.TEXT),
)
_TREND_NOTE = (
    f"Dates continue a straight line through the days of the period, at least {MIN_POINTS}. "
    "Earliest and latest are its 95 % confidence interval; without a latest "
    "date, growth is not certain."
)


def gpu_capacity(source: Source) -> Table:
    """Return allocated and used GPU-hours a day against those that the GPUs have."""
    days = _whole_days(source)
    daily = _daily_milliseconds(source, days)
    gpus = _gpus(source)
    columns = (
        Column("gpus", "GPUs"),
        Column("gpu_hours_per_day", "Capacity", Unit.HOURS_PER_DAY),
        Column("allocated_gpu_hours_per_day", "Allocated", Unit.HOURS_PER_DAY),
        Column("used_gpu_hours_per_day", "Used", Unit.HOURS_PER_DAY),
        Column("allocated_percent", "Share", Unit.PERCENT),
        Column("growth_gpu_hours_per_day", "Daily growth", Unit.HOURS_PER_DAY),
        *_DATES,
    )

    def figures(groups: Sequence[str]) -> list[Cell]:
        count = sum(gpus[group] for group in groups)
        capacity = float(count * HOURS_PER_DAY)
        allocated, used = (
            [sum(daily[group, day][at] for group in groups) / 1000 / HOUR_SECONDS for day in days]
            for at in (0, 1)
        )
        means = [sum(hours) / len(days) if days else None for hours in (allocated, used)]
        origin = days[0] if days else source.now
        trend = forecast([float((day - origin).days) for day in days], allocated, limit=capacity)
        share = 100 * means[0] / capacity if capacity and means[0] is not None else None
        growth = trend.per_day if trend else None
        return [count, capacity, *means, share, growth, *_dates(source, trend, origin)]

    names = sorted({*gpus, *(group for group, _ in daily)})
    return Table(
        columns,
        [(name, *figures([name])) for name in names],
        figures(names),
        ("Days are whole ones in UTC, from the first with allocated GPUs on.", _TREND_NOTE),
    )


def disk_capacity(source: Source) -> Table:
    """Return the space of file systems, and when they are full."""
    used: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    sizes: dict[tuple[str, str], float] = {}
    for series in source.series(
        "disk", ("used_bytes", "total_bytes"), group_by=("mount",), step_seconds=DAY_SECONDS
    ):
        key = series.tags["appliance"], series.tags.get("mount", "")
        if series.field == "used_bytes":
            used[key] = series.times_ns, series.values
        elif series.values:
            sizes[key] = series.values[-1]
    rows = []
    for (appliance_id, mount), (times_ns, values) in used.items():
        size = sizes.get((appliance_id, mount))
        if not values or not size:
            continue
        origin = from_ns(times_ns[0])
        days = [(at - times_ns[0]) / 1e9 / DAY_SECONDS for at in times_ns]
        trend = forecast(days, values, limit=size)
        name = f"{source.group_of(appliance_id)} {mount}".strip()
        growth = trend.per_day if trend else None
        figures = [size, values[-1], 100 * values[-1] / size, growth]
        rows.append((name, *figures, *_dates(source, trend, origin)))
    rows.sort(key=lambda row: (-float(row[3] or 0), row[0]))
    size, taken = (total(float(row[at] or 0) for row in rows) for at in (1, 2))
    share = 100 * taken / size if size and taken is not None else None
    growths = total(None if row[4] is None else float(row[4]) for row in rows)
    return Table(
        (
            Column("total_bytes", "Size", Unit.BYTES),
            Column("used_bytes", "Used", Unit.BYTES),
            Column("used_percent", "Used share", Unit.PERCENT),
            Column("growth_bytes_per_day", "Daily growth", Unit.BYTES),
            *_DATES,
        ),
        rows,
        (size, taken, share, growths, None, None, None),
        ("Used is the mean of the last day with samples.", _TREND_NOTE),
    )


def _whole_days(source: Source) -> list[datetime]:
    """Return the whole days of the period, from the first one of the ledger on."""
    period = source.request.period
    first: Any = select(func.min(UsageEntry.hour_at)).where(UsageEntry.hour_at >= period.since)
    since = source.session.scalar(source.scope.select(first, UsageEntry))
    if since is None:
        return []
    since = max(since, period.since)
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    if day < period.since:
        day += DAY
    # The last hour of a day is recorded a few minutes after midnight.
    until, days = min(period.until, recorded_until(source.session) or source.now), []
    while day + DAY <= until:
        days.append(day)
        day += DAY
    return days


def _daily_milliseconds(
    source: Source, days: Sequence[datetime]
) -> Mapping[tuple[str, datetime], tuple[int, int]]:
    """Return the allocated and used GPU-milliseconds of each group and day."""
    sums: dict[tuple[str, datetime], tuple[int, int]] = defaultdict(lambda: (0, 0))
    if not days:
        return sums
    of_day = cast_to(func.date(UsageEntry.hour_at), String(10))
    statement: Any = (
        select(
            UsageEntry.appliance_id,
            of_day,
            func.sum(UsageEntry.allocated_milliseconds),
            func.sum(UsageEntry.used_milliseconds),
        )
        .where(UsageEntry.hour_at >= days[0], UsageEntry.hour_at < days[-1] + DAY)
        .where(_on_appliances_of(source.scope))
        .group_by(UsageEntry.appliance_id, of_day)
    )
    selected = source.selected
    by_text = {f"{day:%Y-%m-%d}": day for day in days}
    for ident, text, allocated, used in source.session.execute(statement):
        if selected is None or ident in source.appliances:
            key = source.group_of(ident), by_text[text]
            before = sums[key]
            sums[key] = before[0] + int(allocated), before[1] + int(used)
    return sums


def _on_appliances_of(scope: Scope) -> ColumnElement[bool]:
    """Return the condition of GPU time on a scope's own appliances, that of customers included."""
    if scope.tenant_id is None:
        return true()
    own = select(Appliance.id).where(Appliance.tenant_id == scope.tenant_id)
    is_rented = UsageEntry.contract_id.is_not(None)
    return or_(
        and_(UsageEntry.tenant_id == scope.tenant_id, ~is_rented),
        and_(is_rented, UsageEntry.appliance_id.in_(own)),
    )


def _gpus(source: Source) -> Counter[str]:
    """Return how many GPUs each group has in service now."""
    statement: Any = select(Appliance.id, Appliance.connector_id, counted_gpus()).where(
        in_service(), Appliance.gpu_count > 0
    )
    counts: Counter[str] = Counter()
    for ident, connector_id, gpus in source.session.execute(
        source.scope.select(statement, Appliance)
    ):
        # The jobs of a cluster are those of its connector.
        owner_id = connector_id or ident
        if owner_id in source.appliances:
            counts[source.group_of(owner_id)] += gpus
    return counts


def _dates(source: Source, trend: Forecast | None, origin: datetime) -> list[Cell]:
    """Return the dates of a forecast, as text; a date in the past is "now"."""
    if trend is None:
        return [None, None, None]
    cells: list[Cell] = []
    for day in (trend.at_limit, trend.earliest, trend.latest):
        if day is None or day > HORIZON_DAYS:
            cells.append(None)
        else:
            at = origin + timedelta(days=day)
            cells.append("now" if at <= source.now else f"{at:%Y-%m-%d}")
    return cells
