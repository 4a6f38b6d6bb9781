"""Report on GPU time and energy, from the usage ledger."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from decimal import Decimal
from math import fsum

from core.money import ZERO
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
from marketplace.costs.groups import MAX_PERIOD, CostBy, cost_sums
from tenants.permissions import Permission


def gpu_time(source: Source) -> Table:
    """Return GPU-hours, energy, and the costs of both if there are prices."""
    costs = _costs(source)
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
    if costs:
        columns.append(Column("gpu_cost", "GPU cost", Unit.MONEY))

    def figures(total: UsageTotal, cost: Decimal) -> list[Cell]:
        ratio = total.used_ratio
        seconds = (
            total.allocated_gpu_seconds,
            total.used_gpu_seconds,
            total.idle_gpu_seconds,
            total.unmeasured_gpu_seconds,
        )
        cells: list[Cell] = [duration / HOUR_SECONDS for duration in seconds]
        cells += [None if ratio is None else 100 * ratio, total.energy_kilowatt_hours]
        cells += [total.energy_kilowatt_hours * price] if price else []
        return [*cells, float(cost)] if costs else cells

    live = source.live
    groups = [(name, total, costs.get(total.key, ZERO)) for name, total in _groups(source)]
    return Table(
        columns,
        [(name, *figures(total, cost)) for name, total, cost in groups],
        figures(_sum(total for _, total, _ in groups), sum((row[2] for row in groups), ZERO)),
        (
            "Allocated is from the assignment of GPUs to the end of the attempt.",
            "Used is the time in which a kernel ran, idle the measured time in which none did.",
            *(("GPU cost is by the price list and by contracts, before taxes.",) * bool(costs)),
            *(("Figures are so far: they include the hour that is under way.",) * live.is_so_far),
            *((f"{live.problem} The current hour counts as not measured.",) * bool(live.problem)),
        ),
    )


def _costs(source: Source) -> dict[str, Decimal]:
    """Return what the groups cost, by the keys of their figures; empty without costs to see."""
    request, scope = source.request, source.scope
    period = request.period
    if not scope.allows(Permission.VIEW_BILLING) or period.until - period.since > MAX_PERIOD:
        return {}
    is_site = request.by is ReportBy.SITE
    by = CostBy.APPLIANCE if is_site else CostBy(request.by.value)
    selected = source.selected
    sums = cost_sums(source.session, scope, period, by=by, now=source.now, appliances=selected)
    if not is_site:
        return sums
    sites: dict[str, Decimal] = defaultdict(Decimal)
    for key, cost in sums.items():
        sites[source.group_of(key)] += cost
    return sites


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
    totals = [(site, replace(_sum(members), key=site)) for site, members in sites.items()]
    return sorted(totals, key=lambda item: -item[1].allocated_gpu_seconds)


def _sum(totals: Iterable[UsageTotal]) -> UsageTotal:
    rows = [asdict(total) for total in totals]
    names = [column.name for column in fields(UsageTotal) if column.name not in {"key", "name"}]
    return UsageTotal(key="", name="", **{name: fsum(row[name] for row in rows) for name in names})
