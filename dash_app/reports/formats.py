"""The files of a report, by format."""

from collections.abc import Iterator, Mapping

from dash_app.reports.report import FileFormat, Report

MEDIA_TYPES: Mapping[FileFormat, str] = {
    FileFormat.CSV: "text/csv",
    FileFormat.XLSX: "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    FileFormat.PDF: "application/pdf",
}


def content(report: Report, file_format: FileFormat) -> Iterator[bytes]:
    """Yield the pieces of a report's file."""
    # 35 MiB that a server saves until somebody asks for a file.
    from dash_app.reports.files import csv_file, pdf_file, xlsx_file  # noqa: PLC0415

    if file_format is FileFormat.CSV:
        yield from (text.encode() for text in csv_file(report))
    else:
        yield (xlsx_file if file_format is FileFormat.XLSX else pdf_file)(report)
