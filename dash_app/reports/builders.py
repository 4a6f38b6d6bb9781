"""Make reports: from the usage ledger, jobs, appliances' events, alerts' histories, and samples."""

from collections.abc import Callable, Mapping

from core.errors import InvalidInputError
from dash_app.reports.alerts import alerts
from dash_app.reports.availability import availability
from dash_app.reports.capacity import disk_capacity, gpu_capacity
from dash_app.reports.gpu_time import gpu_time
from dash_app.reports.jobs import jobs
from dash_app.reports.network import network
from dash_app.reports.report import Column, Report, ReportBy, ReportKind, Unit, rounded
from dash_app.reports.source import MAX_ROWS, Source, Table, raise_too_large
from tenants.models import Tenant
from tenants.permissions import Permission

_PLACES = (ReportBy.APPLIANCE, ReportBy.SITE)
GROUPINGS: Mapping[ReportKind, tuple[ReportBy, ...]] = {
    ReportKind.GPU_TIME: (
        ReportBy.USER,
        ReportBy.PROJECT,
        ReportBy.BUDGET_LABEL,
        ReportBy.JOB,
        *_PLACES,
        ReportBy.GPU_MODEL,
        ReportBy.DAY,
        ReportBy.TENANT,
    ),
    ReportKind.JOBS: (ReportBy.USER, *_PLACES, ReportBy.DAY, ReportBy.TENANT),
    ReportKind.AVAILABILITY: (*_PLACES, ReportBy.TENANT),
    ReportKind.ALERTS: (ReportBy.RULE, ReportBy.APPLIANCE, ReportBy.DAY, ReportBy.TENANT),
    ReportKind.GPU_CAPACITY: (ReportBy.GPU_MODEL, *_PLACES, ReportBy.TENANT),
    ReportKind.DISK_CAPACITY: (ReportBy.FILE_SYSTEM,),
    ReportKind.NETWORK: (*_PLACES, ReportBy.DAY, ReportBy.TENANT),
}
TITLES = {
    ReportKind.GPU_TIME: "GPU time and energy",
    ReportKind.JOBS: "Jobs",
    ReportKind.AVAILABILITY: "Availability",
    ReportKind.ALERTS: "Alerts",
    ReportKind.GPU_CAPACITY: "GPU capacity",
    ReportKind.DISK_CAPACITY: "Disk capacity",
    ReportKind.NETWORK: "Network speed",
}
LABELS = {by: by.value.replace("_", " ").capitalize() for by in ReportBy} | {
    ReportBy.GPU_MODEL: "GPU model",
    ReportBy.DAY: "Day (UTC)",
}
_BUILDERS: Mapping[ReportKind, Callable[[Source], Table]] = {
    ReportKind.GPU_TIME: gpu_time,
    ReportKind.JOBS: jobs,
    ReportKind.AVAILABILITY: availability,
    ReportKind.ALERTS: alerts,
    ReportKind.GPU_CAPACITY: gpu_capacity,
    ReportKind.DISK_CAPACITY: disk_capacity,
    ReportKind.NETWORK: network,
}


def build(source: Source) -> Report:
    """Return the report that a source's request asks for, of what its scope may see.

    Raises:
        InvalidInputError: the kind has no such grouping, or the report would be too large.
        UnavailableError: the report needs the store, which does not respond.
    """
    request, scope = source.request, source.scope
    scope.require(Permission.VIEW)
    check_grouping(request.kind, request.by)
    table = _BUILDERS[request.kind](source)
    if len(table.rows) > MAX_ROWS:
        raise_too_large(f"{len(table.rows):,} rows", f"{MAX_ROWS:,}")
    tenant = source.session.get(Tenant, scope.tenant_id) if scope.tenant_id else None
    return Report(
        request=request,
        title=TITLES[request.kind],
        tenant=tenant.name if tenant else "All tenants",
        made_at=source.now,
        columns=(Column(request.by.value, LABELS[request.by], Unit.TEXT), *table.columns),
        rows=[rounded(row) for row in table.rows],
        totals=rounded(("Total", *table.totals)),
        notes=table.notes,
    )


def check_grouping(kind: ReportKind, by: ReportBy) -> None:
    """Raise `InvalidInputError` if a kind of report has no such grouping."""
    if by not in GROUPINGS[kind]:
        groupings = ", ".join(GROUPINGS[kind])
        message = f"A report on {kind} can't be grouped by {by}. Use {groupings}."
        raise InvalidInputError(message, errors={"by": [message]})
