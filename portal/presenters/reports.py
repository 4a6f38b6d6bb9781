"""Reports as requests of users: their period with its defaults, and their files."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum

from flask import Response

from dash_app.reports.builders import GROUPINGS, build
from dash_app.reports.report import Report, ReportBy, ReportKind, Request
from portal.context import current_scope, database, now
from portal.downloads import stream_file
from portal.presenters.gpu_usage import checked_period

MAX_PRICE = 1000.0
DEFAULT_TARGET = 99.0


class FileFormat(StrEnum):
    """A file format of reports."""

    CSV = "csv"
    XLSX = "xlsx"
    PDF = "pdf"


MEDIA_TYPES: Mapping[FileFormat, str] = {
    FileFormat.CSV: "text/csv",
    FileFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    FileFormat.PDF: "application/pdf",
}


def report_request(
    kind: ReportKind,
    *,
    by: ReportBy | None,
    since: datetime | None,
    until: datetime | None,
    price: float = 0.0,
    target: float = DEFAULT_TARGET,
) -> Request:
    """Return a request with the kind's first grouping and the last 30 days by default."""
    return Request(
        kind=kind,
        by=by or GROUPINGS[kind][0],
        period=checked_period(since, until),
        price_per_kilowatt_hour=price,
        target_percent=target,
    )


def built(request: Request) -> Report:
    """Return the report for the current user."""
    with database() as session:
        return build(session, current_scope(), request, now=now())


def report_file(request: Request, file_format: FileFormat) -> Response:
    """Return the report as a file, one of the few downloads that a tenant may have at once."""
    report = built(request)
    return stream_file(
        _content(report, file_format),
        media_type=MEDIA_TYPES[file_format],
        file_name=f"{report.file_name}.{file_format}",
    )


def _content(report: Report, file_format: FileFormat) -> Iterator[bytes]:
    # 35 MiB that a server saves until somebody asks for a file.
    from dash_app.reports.files import csv_file, pdf_file, xlsx_file  # noqa: PLC0415

    if file_format is FileFormat.CSV:
        yield from (text.encode() for text in csv_file(report))
    else:
        yield (xlsx_file if file_format is FileFormat.XLSX else pdf_file)(report)
