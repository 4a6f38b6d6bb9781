"""Make reports from the usage ledger, jobs, appliances' events, and alerts' histories."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import fmean, quantiles
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from alerting.models import Alert, AlertTransition, Rule
from alerting.states import AlertState, Severity
from core.errors import InvalidInputError
from core.paging import MAX_PAGE_SIZE
from dash_app.reports.availability import availability
from dash_app.reports.report import Cell, Column, Report, ReportBy, ReportKind, Request, Unit
from jobqueue.models import Job
from jobqueue.states import JobState
from jobqueue.usage.totals import UsageBy, UsageTotal, usage_sum, usage_totals
from tenants.models import Appliance, Tenant
from tenants.permissions import Permission
from tenants.scope import Scope

MAX_ROWS = 10_000
# Objects that a report is computed from: more take too long for one request.
MAX_OBJECTS = 200_000
HOUR_SECONDS = 3600.0
REMOVED = "(removed)"
NONE = "(none)"

GROUPINGS: Mapping[ReportKind, tuple[ReportBy, ...]] = {
    ReportKind.GPU_TIME: (
        ReportBy.USER,
        ReportBy.JOB,
        ReportBy.APPLIANCE,
        ReportBy.GPU_MODEL,
        ReportBy.SITE,
        ReportBy.DAY,
        ReportBy.TENANT,
    ),
    ReportKind.JOBS: (
        ReportBy.USER,
        ReportBy.APPLIANCE,
        ReportBy.SITE,
        ReportBy.DAY,
        ReportBy.TENANT,
    ),
    ReportKind.AVAILABILITY: (ReportBy.APPLIANCE, ReportBy.SITE, ReportBy.TENANT),
    ReportKind.ALERTS: (ReportBy.RULE, ReportBy.APPLIANCE, ReportBy.DAY, ReportBy.TENANT),
}
TITLES = {
    ReportKind.GPU_TIME: "GPU time and energy",
    ReportKind.JOBS: "Jobs",
    ReportKind.AVAILABILITY: "Availability",
    ReportKind.ALERTS: "Alerts",
}
LABELS = {by: by.value.replace("_", " ").capitalize() for by in ReportBy} | {
    ReportBy.GPU_MODEL: "GPU model"
}


@dataclass(frozen=True, slots=True)
class _Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Cell]
    notes: tuple[str, ...] = ()


def build(session: Session, scope: Scope, request: Request, *, now: datetime) -> Report:
    """Return the report that a request asks for, of what the scope may see.

    Raises:
        InvalidInputError: the kind has no such grouping, or the report would be too large.
    """
    scope.require(Permission.VIEW)
    if request.by not in GROUPINGS[request.kind]:
        known = ", ".join(GROUPINGS[request.kind])
        message = f"A report on {request.kind} can't be grouped by {request.by}. Use {known}."
        raise InvalidInputError(message, errors={"by": [message]})
    table = _BUILDERS[request.kind](session, scope, request, now)
    if len(table.rows) > MAX_ROWS:
        _raise_too_large(f"{len(table.rows):,} rows", f"{MAX_ROWS:,}")
    tenant = session.get(Tenant, scope.tenant_id) if scope.tenant_id else None
    return Report(
        request=request,
        title=TITLES[request.kind],
        tenant=tenant.name if tenant else "All tenants",
        made_at=now,
        columns=(Column(request.by.value, LABELS[request.by], Unit.TEXT), *table.columns),
        rows=table.rows,
        totals=("Total", *table.totals),
        notes=table.notes,
    )


def _gpu_time(session: Session, scope: Scope, request: Request, _now: datetime) -> _Table:
    price = request.price_per_kilowatt_hour
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

    groups = _usage(session, scope, request)
    return _Table(
        columns,
        [(name, *figures(total)) for name, total in groups],
        figures(usage_sum(session, scope, request.period)),
        (
            "Idle is allocated GPU time in which no kernel ran. Hours count by their start.",
            "The ledger has whole hours: the current one is added when it is over.",
        ),
    )


def _usage(session: Session, scope: Scope, request: Request) -> list[tuple[str, UsageTotal]]:
    is_site = request.by is ReportBy.SITE
    by = UsageBy.APPLIANCE if is_site else UsageBy(request.by.value)
    found: list[UsageTotal] = []
    number, is_last = 1, False
    while not is_last:
        page = usage_totals(
            session, scope, request.period, by=by, page=number, page_size=MAX_PAGE_SIZE
        )
        found += page.items
        if page.total > MAX_ROWS:
            _raise_too_large(f"{page.total:,} rows", f"{MAX_ROWS:,}")
        is_last, number = number >= page.count, number + 1
    if not is_site:
        return [(one.name or (REMOVED if one.key else NONE), one) for one in found]
    sites = _appliances(session, scope, "site")
    sums: dict[str, dict[str, Any]] = {}
    for one in found:
        site = sites.get(one.key, REMOVED) or NONE
        values = asdict(one)
        before = sums.setdefault(site, dict.fromkeys(values, 0.0))
        sums[site] = {
            name: value if isinstance(value, str) else before[name] + value
            for name, value in values.items()
        }
    totals = [(site, UsageTotal(**values)) for site, values in sums.items()]
    return sorted(totals, key=lambda item: -item[1].allocated_gpu_seconds)


def _jobs(session: Session, scope: Scope, request: Request, now: datetime) -> _Table:
    statement: Any = select(Job).where(
        Job.submitted_at >= request.period.since, Job.submitted_at < request.period.until
    )
    scoped = scope.select(statement, Job)
    _check_count(session, scoped)
    names = _names(session, scope, request.by)
    groups: dict[str, list[Job]] = defaultdict(list)
    for job in session.scalars(scoped.order_by(Job.submitted_at)).unique():
        groups[_job_group(job, request.by, names)].append(job)
    everything = [job for group in groups.values() for job in group]
    columns = (
        Column("jobs", "Jobs"),
        Column("succeeded", "Succeeded"),
        Column("failed", "Failed"),
        Column("stopped", "Stopped"),
        Column("lost", "Lost"),
        Column("unfinished", "Unfinished"),
        Column("success_percent", "Success", Unit.PERCENT),
        Column("mean_wait_seconds", "Mean wait", Unit.SECONDS),
        Column("p95_wait_seconds", "95 % wait", Unit.SECONDS),
        Column("mean_run_seconds", "Mean run", Unit.SECONDS),
    )
    rows = [(name, *_job_figures(jobs, now)) for name, jobs in _largest_first(groups, request.by)]
    return _Table(
        columns,
        rows,
        _job_figures(everything, now),
        (
            "Jobs count by their submission; waits are of jobs that started.",
            "Success is the share of succeeded among succeeded, failed and lost ones.",
        ),
    )


def _job_figures(jobs: Sequence[Job], now: datetime) -> list[Cell]:
    counts = {state: sum(job.state is state for job in jobs) for state in JobState}
    ended = counts[JobState.SUCCEEDED] + counts[JobState.FAILED] + counts[JobState.LOST]
    waits = [(job.started_at - job.submitted_at).total_seconds() for job in jobs if job.started_at]
    runs = [
        ((job.finished_at or now) - job.started_at).total_seconds()
        for job in jobs
        if job.started_at
    ]
    return [
        len(jobs),
        counts[JobState.SUCCEEDED],
        counts[JobState.FAILED],
        counts[JobState.STOPPED],
        counts[JobState.LOST],
        sum(not job.state.is_final for job in jobs),
        100 * counts[JobState.SUCCEEDED] / ended if ended else None,
        fmean(waits) if waits else None,
        percentile_95(waits),
        fmean(runs) if runs else None,
    ]


def percentile_95(values: Sequence[float]) -> float | None:
    """Return the value that 95 % don't exceed, between the nearest two; None without any."""
    if len(values) < 2:  # noqa: PLR2004 - quantiles need two
        return values[0] if values else None
    return quantiles(values, n=20, method="inclusive")[-1]


def _job_group(job: Job, by: ReportBy, names: Mapping[str, str]) -> str:
    if by is ReportBy.USER:
        return job.user.email if job.user else REMOVED
    if by is ReportBy.DAY:
        return f"{job.submitted_at:%Y-%m-%d}"
    key = job.tenant_id
    if by is not ReportBy.TENANT:
        if job.attempt is None:
            return "(not placed)"
        key = job.attempt.appliance_id
    return names.get(key, REMOVED) or NONE


def _availability(session: Session, scope: Scope, request: Request, now: datetime) -> _Table:
    found = availability(session, scope, request.period, now=now)
    names = {one.id: one.tenant.name for one in found} if request.by is ReportBy.TENANT else {}
    groups: dict[str, list[Appliance]] = defaultdict(list)
    for appliance in found:
        site = appliance.site or NONE
        name = {ReportBy.APPLIANCE: appliance.name, ReportBy.SITE: site}.get(request.by)
        groups[name or names[appliance.id]].append(appliance)

    def figures(appliances: Sequence[Appliance]) -> list[Cell]:
        known = [found[one] for one in appliances]
        seconds = sum(one.seconds for one in known)
        percent = 100 * sum(one.online_seconds for one in known) / seconds if seconds else None
        met = None if percent is None else "yes" if percent >= request.target_percent else "no"
        return [
            len(appliances),
            percent,
            met,
            sum(one.outages for one in known),
            seconds - sum(one.online_seconds for one in known),
            max((one.longest_seconds for one in known), default=0.0),
        ]

    columns = (
        Column("appliances", "Appliances"),
        Column("available_percent", "Available", Unit.PERCENT),
        Column("target_met", f"At least {request.target_percent:g} %", Unit.TEXT),
        Column("outages", "Outages"),
        Column("unavailable_seconds", "Unavailable", Unit.SECONDS),
        Column("longest_outage_seconds", "Longest outage", Unit.SECONDS),
    )
    rows = [(name, *figures(groups[name])) for name in sorted(groups)]
    return _Table(
        columns,
        rows,
        figures(list(found)),
        ("An appliance is available while it is online or stale, from its enrollment on.",),
    )


def _alerts(session: Session, scope: Scope, request: Request, now: datetime) -> _Table:
    statement: Any = (
        select(AlertTransition, Alert, Rule.name)
        .join(Alert, AlertTransition.alert_id == Alert.id)
        .join(Rule, Alert.rule_id == Rule.id)
        .where(
            AlertTransition.at >= request.period.since, AlertTransition.at < request.period.until
        )
    )
    scoped = scope.select(statement, AlertTransition)
    _check_count(session, scoped)
    names = _names(session, scope, request.by)
    groups: dict[str, list[tuple[AlertTransition, float | None]]] = defaultdict(list)
    started: dict[str, tuple[str, AlertTransition]] = {}
    for transition, alert, rule in session.execute(
        scoped.order_by(AlertTransition.at, AlertTransition.id)
    ).unique():
        before = started.pop(alert.id, None)
        if before is not None:
            seconds = (transition.at - before[1].at).total_seconds()
            groups[before[0]].append((before[1], seconds))
        if transition.to_state is AlertState.FIRING:
            name = {
                ReportBy.RULE: rule,
                ReportBy.DAY: f"{transition.at:%Y-%m-%d}",
                ReportBy.TENANT: names.get(alert.tenant_id),
                ReportBy.APPLIANCE: names.get(alert.tags.get("appliance", ""), NONE),
            }[request.by]
            started[alert.id] = name or REMOVED, transition
    for name, transition in started.values():
        groups[name].append((transition, None))

    def figures(fired: Sequence[tuple[AlertTransition, float | None]]) -> list[Cell]:
        ended = [seconds for _, seconds in fired if seconds is not None]
        open_seconds = [
            (min(now, request.period.until) - transition.at).total_seconds()
            for transition, seconds in fired
            if seconds is None
        ]
        return [
            len(fired),
            sum(one.severity is Severity.CRITICAL for one, _ in fired),
            len(ended),
            fmean(ended) if ended else None,
            max(ended, default=None),
            sum(ended) + sum(open_seconds),
        ]

    columns = (
        Column("alerts", "Alerts"),
        Column("critical", "Critical"),
        Column("resolved", "Resolved"),
        Column("mean_resolve_seconds", "Mean time to resolve", Unit.SECONDS),
        Column("longest_resolve_seconds", "Longest", Unit.SECONDS),
        Column("firing_seconds", "Firing in total", Unit.SECONDS),
    )
    rows = [(name, *figures(fired)) for name, fired in _largest_first(groups, request.by)]
    return _Table(
        columns,
        rows,
        figures([one for fired in groups.values() for one in fired]),
        ("Alerts count by when they began to fire.",),
    )


_BUILDERS: Mapping[ReportKind, Callable[[Session, Scope, Request, datetime], _Table]] = {
    ReportKind.GPU_TIME: _gpu_time,
    ReportKind.JOBS: _jobs,
    ReportKind.AVAILABILITY: _availability,
    ReportKind.ALERTS: _alerts,
}


def _largest_first(groups: Mapping[str, list[Any]], by: ReportBy) -> list[tuple[str, list[Any]]]:
    """Return groups by size, or days in order."""
    is_day = by is ReportBy.DAY
    return sorted(groups.items(), key=lambda item: (0 if is_day else -len(item[1]), item[0]))


def _names(session: Session, scope: Scope, by: ReportBy) -> dict[str, str]:
    if by in {ReportBy.APPLIANCE, ReportBy.SITE}:
        return _appliances(session, scope, "site" if by is ReportBy.SITE else "name")
    if by is ReportBy.TENANT:
        return {row[0]: row[1] for row in session.execute(select(Tenant.id, Tenant.name))}
    return {}


def _appliances(session: Session, scope: Scope, column: str) -> dict[str, str]:
    statement: Any = select(Appliance.id, getattr(Appliance, column))
    return {row[0]: row[1] for row in session.execute(scope.select(statement, Appliance))}


def _check_count(session: Session, statement: Any) -> None:  # noqa: ANN401 - any select
    count = session.scalar(statement.with_only_columns(func.count()).order_by(None)) or 0
    if count > MAX_OBJECTS:
        _raise_too_large(f"{count:,} objects", f"{MAX_OBJECTS:,}")


def _raise_too_large(what: str, limit: str) -> None:
    message = f"The report would have {what}, more than {limit}. Choose a shorter period."
    raise InvalidInputError(message, errors={"since": [message]})
