"""Reports as requests of users: their period with its defaults, and their files."""

from datetime import datetime
from typing import Any

from flask import Response

from core.paging import Page
from dash_app.reports.builders import GROUPINGS, build
from dash_app.reports.formats import MEDIA_TYPES, content
from dash_app.reports.report import FileFormat, Report, ReportBy, ReportKind, Request, Unit
from dash_app.reports.source import Source
from portal.context import current_scope, database, now, portal
from portal.downloads import stream_file
from portal.presenters.gpu_usage import checked_period
from portal.query_string import PAGE_SIZE, page_number, search_text, sort_order
from portal.time_zone import current_zone_name

DEFAULT_TARGET = 99.0


def report_request(
    kind: ReportKind,
    *,
    by: ReportBy | None,
    since: datetime | None,
    until: datetime | None,
    price: float = 0.0,
    target: float = DEFAULT_TARGET,
    appliances: str = "",
) -> Request:
    """Return a request with the kind's first grouping and the last 30 days by default."""
    return Request(
        kind=kind,
        by=by or GROUPINGS[kind][0],
        period=checked_period(since, until),
        price_per_kilowatt_hour=price,
        target_percent=target,
        appliances=appliances,
        time_zone=current_zone_name(),
    )


def built(request: Request) -> Report:
    """Return the report for the current user."""
    with database() as session:
        return build(
            Source(
                session=session,
                store=portal().store,
                scope=current_scope(),
                request=request,
                now=now(),
            )
        )


def table_of(request: Request) -> dict[str, Any]:
    """Return what the template of a report's table needs, with one page of its rows."""
    report = arranged(built(request))
    number = page_number()
    rows = report.rows[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    at = report.charted
    is_share = report.columns[at].unit is Unit.PERCENT
    return {
        "report": report,
        "sort": sort_order(),
        "page": Page(items=list(rows), total=len(report.rows), number=number, size=PAGE_SIZE),
        "figures": [
            (column, value)
            for column, value in zip(report.columns[1:], report.totals[1:], strict=True)
            if value is not None
        ],
        "bar": at,
        "peak": 100.0
        if is_share
        else max([float(row[at] or 0) for row in report.rows], default=0.0),
        "text": Unit.TEXT,
    }


def arranged(report: Report) -> Report:
    """Return the report with the rows and the order that the address names."""
    return report.arranged(sort=sort_order(), text=search_text())


def report_file(report: Report, file_format: FileFormat) -> Response:
    """Return the report as a file, one of the few downloads that a tenant may have at once."""
    return stream_file(
        content(report, file_format),
        media_type=MEDIA_TYPES[file_format],
        file_name=f"{report.file_name}.{file_format}",
    )
