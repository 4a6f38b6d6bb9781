"""Report on GPU time and energy, from the usage ledger."""

from dataclasses import asdict
from typing import Any

from core.paging import MAX_PAGE_SIZE
from dash_app.reports.report import Cell, Column, ReportBy, Unit
from dash_app.reports.source import (
    HOUR_SECONDS,
    MAX_ROWS,
    NONE,
    REMOVED,
    Source,
    Table,
    raise_too_large,
)
from jobqueue.usage.totals import UsageBy, UsageTotal, usage_sum, usage_totals


def gpu_time(source: Source) -> Table:
    """Return GPU-hours, energy, and its cost if there is a price."""
    price = source.request.price_per_kilowatt_hour
    columns = [
        Column("allocated_gpu_hours", "Allocated", Unit.HOURS),
        Column("used_gpu_hours", "Used", Unit.HOURS),
        Column("idle_gpu_hours", "Idle", Unit.HOURS),
        Column("unmeasured_gpu_hours", "Not measured", Unit.HOURS),
        Column("used_percent", "Used share", Unit.PERCENT),
        Column("energy_kilowatt_hours", "Energy", Unit.ENERGY),
    ]
    if price:
        columns.append(Column("energy_cost", "Energy cost", Unit.MONEY))

    def figures(total: UsageTotal) -> list[Cell]:
        ratio = total.used_ratio
        seconds = (
            total.allocated_gpu_seconds,
            total.used_gpu_seconds,
            total.idle_gpu_seconds,
            total.unmeasured_gpu_seconds,
        )
        cells: list[Cell] = [one / HOUR_SECONDS for one in seconds]
        cells += [None if ratio is None else 100 * ratio, total.energy_kilowatt_hours]
        return [*cells, total.energy_kilowatt_hours * price] if price else cells

    everything = usage_sum(
        source.session, source.scope, source.request.period, appliances=source.selected
    )
    return Table(
        columns,
        [(name, *figures(total)) for name, total in _groups(source)],
        figures(everything),
        (
            "Idle is allocated GPU time in which no kernel ran. Hours count by their start.",
            "The ledger has whole hours: the current one is added when it is over.",
        ),
    )


def _groups(source: Source) -> list[tuple[str, UsageTotal]]:
    request = source.request
    is_site = request.by is ReportBy.SITE
    by = UsageBy.APPLIANCE if is_site else UsageBy(request.by.value)
    found: list[UsageTotal] = []
    number, is_last = 1, False
    while not is_last:
        page = usage_totals(
            source.session,
            source.scope,
            request.period,
            by=by,
            appliances=source.selected,
            page=number,
            page_size=MAX_PAGE_SIZE,
        )
        found += page.items
        if page.total > MAX_ROWS:
            raise_too_large(f"{page.total:,} rows", f"{MAX_ROWS:,}")
        is_last, number = number >= page.count, number + 1
    if not is_site:
        return [(one.name or (REMOVED if one.key else NONE), one) for one in found]
    sums: dict[str, dict[str, Any]] = {}
    for one in found:
        site, values = source.group_of(one.key), asdict(one)
        before = sums.setdefault(site, dict.fromkeys(values, 0.0))
        sums[site] = {
            name: value if isinstance(value, str) else before[name] + value
            for name, value in values.items()
        }
    totals = [(site, UsageTotal(**values)) for site, values in sums.items()]
    return sorted(totals, key=lambda item: -item[1].allocated_gpu_seconds)
