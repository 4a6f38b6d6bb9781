"""Reports as CSV, XLSX and PDF, and values as they show them."""

import csv
import io
import re
import zipfile
import zlib
from dataclasses import replace

import pytest

from core.errors import InvalidInputError
from dash_app.reports import files
from dash_app.reports.builders import GROUPINGS
from dash_app.reports.files import BLUE, csv_file, pdf_file, xlsx_file
from dash_app.reports.report import Cell, Column, Report, ReportBy, ReportKind, Unit, shown
from tests.unit.dash_app.reporting import BuildReport


def test_every_grouping_works_without_data_and_others_are_refused(
    build_report: BuildReport,
) -> None:
    for kind in ReportKind:
        for by in GROUPINGS[kind]:
            report = build_report(kind, by)
            assert len(report.totals) == len(report.columns)
        assert pdf_file(report).startswith(b"%PDF")
        wrong = next(by for by in ReportBy if by not in GROUPINGS[kind])
        with pytest.raises(InvalidInputError) as error:
            build_report(kind, wrong)
        assert "by" in error.value.errors


@pytest.fixture
def evil(build_report: BuildReport, monkeypatch: pytest.MonkeyPatch) -> Report:
    """A report with a formula, letters of other scripts, and more rows than a PDF has."""
    monkeypatch.setattr(files, "MAX_PDF_ROWS", 250)
    empty = build_report(ReportKind.ALERTS, ReportBy.RULE)
    names = ["=1+1", "Ωmega Łódź 東京", *[f"rule {at}" for at in range(files.MAX_PDF_ROWS)]]
    return replace(empty, rows=[(name, 1, 0, 0, None, 1, 60.5, 60.5, 60.5) for name in names])


def test_files_have_every_row_and_no_formula(evil: Report) -> None:
    rows = list(csv.reader(io.StringIO("".join(csv_file(evil)))))
    assert rows[0] == [column.name for column in evil.columns]
    assert len(rows) == 1 + len(evil.rows)
    assert rows[1] == ["'=1+1", "1", "0", "0", "", "1", "60.5", "60.5", "60.5"]
    with zipfile.ZipFile(io.BytesIO(xlsx_file(evil))) as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
        texts = book.read("xl/sharedStrings.xml").decode()
    assert "<f>" not in sheet
    assert "=1+1" in texts
    assert "東京" in texts
    assert sheet.count("<v>60.5</v>") == 3 * len(evil.rows)
    document = pdf_file(evil)
    assert document.startswith(b"%PDF")
    assert document.count(b"/Type /Page\n") > 3


def test_only_the_bars_of_a_pdf_have_their_color(evil: Report) -> None:
    document = pdf_file(replace(evil, rows=evil.rows[:5]))
    streams = re.findall(rb"stream\r?\n(.*?)endstream", document, re.DOTALL)
    pages = [zlib.decompress(stream) for stream in streams if stream.startswith(b"x")]
    blue = " ".join(f"{part / 255:.4f}" for part in BLUE).encode()
    assert sum(page.count(blue) for page in pages) == 1


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.PERCENT, 99.95, "100.0 %"),
        (Unit.SECONDS, 5400.0, "1h 30m"),
        (Unit.COUNT, 12345, "12,345"),
        (Unit.HOURS, 1234.5, "1,234.50"),
        (Unit.BYTES, 3 * 1024**3, "3 GiB"),
        (Unit.SPEED, 1536.0, "1.5 KiB/s"),
        (Unit.COUNT, None, "-"),
        (Unit.HOURS, -1.6e-17, "0.00"),
        (Unit.HOURS_PER_DAY, -0.004, "0.00"),
        (Unit.PERCENT, -0.0, "0.0 %"),
        (Unit.BYTES, -0.01, "0.0 B"),
    ],
)
def test_values_are_shown_with_their_unit(unit: Unit, value: Cell, text: str) -> None:
    assert shown(Column("figure", "Figure", unit), value) == text
