"""Report on GPU time and energy, from the usage ledger."""

from collections.abc import Iterable
from dataclasses import asdict, fields
from math import fsum

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
from jobqueue.usage.totals import UsageBy, UsageTotal, usage_groups


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
        cells: list[Cell] = [duration / HOUR_SECONDS for duration in seconds]
        cells += [None if ratio is None else 100 * ratio, total.energy_kilowatt_hours]
        return [*cells, total.energy_kilowatt_hours * price] if price else cells

    live = source.live
    groups = _groups(source)
    return Table(
        columns,
        [(name, *figures(total)) for name, total in groups],
        figures(_sum(total for _, total in groups)),
        (
            "Allocated is from the assignment of GPUs to the end of the attempt.",
            "Used is the time in which a kernel ran, idle the measured time in which none did.",
            *(("Figures are so far: they include the hour that is under way.",) * live.is_so_far),
            *((f"{live.problem} The current hour counts as not measured.",) * bool(live.problem)),
        ),
    )


def _groups(source: Source) -> list[tuple[str, UsageTotal]]:
    request = source.request
    is_site = request.by is ReportBy.SITE
    by = UsageBy.APPLIANCE if is_site else UsageBy(request.by.value)
    groups = usage_groups(
        source.session,
        source.scope,
        request.period,
        by=by,
        live=source.live,
        appliances=source.selected,
        limit=MAX_ROWS + 1,
    )
    if len(groups) > MAX_ROWS:
        raise_too_large(f"at least {len(groups):,} rows", f"{MAX_ROWS:,}")
    if not is_site:
        return [(group.name or (REMOVED if group.key else NONE), group) for group in groups]
    sites: dict[str, list[UsageTotal]] = {}
    for group in groups:
        sites.setdefault(source.group_of(group.key), []).append(group)
    totals = [(site, _sum(members)) for site, members in sites.items()]
    return sorted(totals, key=lambda item: -item[1].allocated_gpu_seconds)


def _sum(totals: Iterable[UsageTotal]) -> UsageTotal:
    rows = [asdict(total) for total in totals]
    names = [column.name for column in fields(UsageTotal) if column.name not in {"key", "name"}]
    return UsageTotal(key="", name="", **{name: fsum(row[name] for row in rows) for name in names})
