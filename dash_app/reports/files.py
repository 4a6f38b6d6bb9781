"""Write reports as CSV, XLSX and PDF."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import xlsxwriter
from fpdf.enums import TextEmphasis, XPos, YPos
from fpdf.fonts import FontFace

from core.csv_cells import csv_text, guarded
from core.pdf_pages import GRAY, LINE, STRIPE, PDFPages
from core.zones import instant_text
from dash_app.reports.report import ABSENT, Cell, Column, Report, Unit, shown

# Longer tables belong into a spreadsheet.
MAX_PDF_ROWS: Final = 1000
_CHART_ROWS: Final = 10
_NAME_LENGTH: Final = 48
_NOTHING: Final = "There is no data of this kind in this period."
BLUE: Final = (43, 95, 208)
_FORMATS: Final[Mapping[Unit, str]] = {
    Unit.COUNT: "#,##0",
    Unit.HOURS: "#,##0.00",
    Unit.HOURS_PER_DAY: "#,##0.00",
    Unit.ENERGY: "#,##0.00",
    Unit.MONEY: "#,##0.00",
    Unit.PERCENT: "0.0",
    Unit.SECONDS: "#,##0",
    Unit.BYTES: "#,##0",
    Unit.SPEED: "#,##0",
}

# Units that readers see with each value, in other sizes.
_SCALED: Final = frozenset({Unit.SECONDS, Unit.PERCENT, Unit.BYTES, Unit.SPEED})


def csv_file(report: Report) -> Iterator[str]:
    """Yield the lines: a header, then the rows without totals; numbers have all their digits."""
    yield csv_text([[column.name for column in report.columns]])
    yield csv_text([_plain(value) for value in row] for row in report.rows)


def xlsx_file(report: Report) -> bytes:
    """Return a workbook with numbers as numbers, frozen headings, filters, and a row of totals."""
    target = io.BytesIO()
    options = {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    with xlsxwriter.Workbook(target, options) as book:
        sheet = book.add_worksheet("Report")
        bold = book.add_format({"bold": True})
        formats = {unit: book.add_format({"num_format": text}) for unit, text in _FORMATS.items()}
        bolds = {
            unit: book.add_format({"num_format": text, "bold": True, "top": 1})
            for unit, text in _FORMATS.items()
        }
        sheet.write_string(0, 0, _headline(report), bold)
        head = 2
        for at, column in enumerate(report.columns):
            unit = f" ({column.unit})" if column.unit in _SCALED else ""
            sheet.write_string(head, at, f"{column.heading}{unit}", bold)
        lines = [*report.rows, report.totals]
        for number, row in enumerate(lines, start=head + 1):
            styles = bolds if number == head + len(lines) else formats
            for at, (column, value) in enumerate(zip(report.columns, row, strict=True)):
                style = styles.get(column.unit, bold if styles is bolds else None)
                _write_cell(sheet, (number, at), value, style)
        sheet.freeze_panes(head + 1, 1)
        sheet.autofilter(head, 0, head + len(report.rows), len(report.columns) - 1)
        sheet.autofit()
        for number, note in enumerate(report.notes, start=head + len(lines) + 2):
            sheet.write_string(number, 0, note)
        sheet.set_landscape()
        sheet.set_paper(9)  # A4
        sheet.fit_to_pages(1, 0)
    return target.getvalue()


def pdf_file(report: Report) -> bytes:
    """Return an A4 document: figures, a bar chart of the largest rows, and the table."""
    pdf = _Document(report)
    pdf.add_page()
    _write_totals(pdf, report)
    if report.rows:
        _write_bars(pdf, report)
        _write_table(pdf, report)
    else:
        pdf.set_font(pdf.family, size=9)
        pdf.cell(0, 6, _NOTHING, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(2)
    pdf.set_font(pdf.family, size=8)
    pdf.set_text_color(*GRAY)
    notes = list(report.notes)
    if len(report.rows) > MAX_PDF_ROWS:
        notes.append(
            f"The first {MAX_PDF_ROWS:,} of {len(report.rows):,} rows. CSV and XLSX have all."
        )
    for note in notes:
        pdf.multi_cell(0, 4, pdf.printable(note), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    return bytes(pdf.output())


class _Document(PDFPages):
    """Pages with a heading and page numbers."""

    def __init__(self, report: Report) -> None:
        super().__init__(
            title=_headline(report),
            made_at=report.made_at,
            foot=f"Vedette, {instant_text(report.made_at, report.request.zone)}",
            orientation="landscape",
        )
        self._report = report

    def header(self) -> None:
        """Write the title, the tenant and the period."""
        report = self._report
        self.set_text_color(0)
        self.set_font(self.family, style="B", size=15)
        self.cell(0, 8, self.printable(report.title), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.set_font(self.family, size=9)
        self.set_text_color(*GRAY)
        self.cell(0, 6, self.printable(report.subtitle), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
        self.ln(2)


def _write_totals(pdf: _Document, report: Report) -> None:
    """Write the totals as large figures beside each other."""
    pairs = list(zip(report.columns, report.totals, strict=True))[1:]
    width = pdf.epw / len(pairs)
    top = pdf.get_y()
    for at, (column, value) in enumerate(pairs):
        pdf.set_xy(pdf.l_margin + at * width, top)
        pdf.set_font(pdf.family, size=7)
        pdf.set_text_color(*GRAY)
        heading = pdf.printable(column.heading)
        # A long heading gets smaller instead of running into the next one.
        pdf.set_font_size(7 * min(1.0, (width - 2) / pdf.get_string_width(heading)))
        pdf.cell(width, 4, heading)
        pdf.set_xy(pdf.l_margin + at * width, top + 4)
        pdf.set_font(pdf.family, style="B", size=11)
        pdf.set_text_color(0)
        pdf.cell(width, 6, pdf.printable(shown(column, value)))
    pdf.set_xy(pdf.l_margin, top + 14)


def _write_bars(pdf: _Document, report: Report) -> None:
    at = report.charted
    column = report.columns[at]
    rows = [(str(row[0]), float(row[at] or 0)) for row in report.rows[:_CHART_ROWS]]
    peak = 100.0 if column.unit is Unit.PERCENT else max([value for _, value in rows] + [1e-9])
    pdf.set_font(pdf.family, style="B", size=9)
    pdf.cell(0, 6, pdf.printable(column.heading), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.set_font(pdf.family, size=8)
    name_width, value_width = 62.0, 24.0
    room = pdf.epw - name_width - value_width
    for name, value in rows:
        top = pdf.get_y()
        pdf.cell(name_width, 5, pdf.printable(_short(name)))
        pdf.set_fill_color(*BLUE)
        pdf.rect(pdf.l_margin + name_width, top + 1, max(0.3, room * value / peak), 3, style="F")
        pdf.set_x(pdf.l_margin + name_width + room)
        text = pdf.printable(shown(column, value))
        pdf.cell(value_width, 5, text, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(3)


def _write_table(pdf: _Document, report: Report) -> None:
    pdf.set_font(pdf.family, size=8)
    pdf.set_text_color(0)
    # Rows without a stripe would have the color of the bars.
    pdf.set_fill_color(255)
    pdf.set_draw_color(*LINE)
    others = len(report.columns) - 1
    aligns = ["LEFT" if column.unit is Unit.TEXT else "RIGHT" for column in report.columns]
    head = FontFace(emphasis=TextEmphasis.B, color=GRAY, fill_color=None)
    with pdf.table(
        col_widths=(3 if others < 8 else 2.4, *[1] * others),  # noqa: PLR2004 - of a page's width
        text_align=tuple(aligns),
        borders_layout="HORIZONTAL_LINES",
        cell_fill_color=STRIPE,
        cell_fill_mode="ROWS",
        headings_style=head,
        line_height=5,
        # Texts stand beside figures, which are aligned to the right.
        padding=(0, 1.2),
    ) as table:
        table.row([pdf.printable(column.heading) for column in report.columns])
        for row in report.rows[:MAX_PDF_ROWS]:
            table.row([pdf.printable(text) for text in _texts(report.columns, row)])
        bold = FontFace(emphasis=TextEmphasis.B)
        table.row(
            [pdf.printable(text) for text in _texts(report.columns, report.totals)], style=bold
        )


def _texts(columns: Sequence[Column], row: Sequence[Cell]) -> list[str]:
    return [_short(shown(column, value)) for column, value in zip(columns, row, strict=True)]


def _short(text: str) -> str:
    return text if len(text) <= _NAME_LENGTH else f"{text[: _NAME_LENGTH - 3]}..."


def _headline(report: Report) -> str:
    return f"{report.title}: {report.subtitle}"


def _plain(value: Cell) -> str:
    if value is None:
        return ""
    return guarded(value) if isinstance(value, str) else str(value)


def _write_cell(sheet: Any, place: tuple[int, int], value: Cell, style: Any) -> None:  # noqa: ANN401 - untyped
    if value is None:
        sheet.write_string(*place, ABSENT, style)
    elif isinstance(value, str):
        sheet.write_string(*place, value, style)
    else:
        sheet.write_number(*place, value, style)
