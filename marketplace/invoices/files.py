"""Write invoices and statements as PDF and CSV."""

from collections.abc import Iterator
from typing import Final

from fpdf.enums import TextEmphasis, XPos, YPos
from fpdf.fonts import FontFace

from core.csv_cells import csv_text
from core.money import amount_text, format_amount
from core.pdf_pages import GRAY, LINE, STRIPE, PDFPages
from marketplace.charges.lines import cell
from marketplace.invoices.items import Item, decoded, month_name
from marketplace.invoices.models import BillingDocument, DocumentKind

# More belong into a spreadsheet; the totals are of all.
MAX_PDF_ITEMS: Final = 1000
_ITEM_COLUMNS = (
    *("number", "month", "kind", "subject", "other_side", "contract_id", "gpu_model", "text"),
    *("gpu_hours", "unit_price", "amount"),
)
_OTHER_SIDE = {
    DocumentKind.INVOICE: "Provider",
    DocumentKind.STATEMENT: "Customer",
    DocumentKind.COST_STATEMENT: "",
}
_NOTE: Final = (
    "Hours and months are in UTC. Each item is the sum of its lines, which have eight decimal "
    "places, rounded to cents. Items of earlier months correct what was issued for them."
)


def document_csv(document: BillingDocument) -> Iterator[str]:
    """Yield the lines: a header, then each item, with the number of the document in front."""
    yield csv_text([["document", "currency", *_ITEM_COLUMNS]])
    yield csv_text(
        [document.number, document.currency, *(cell(getattr(item, name)) for name in _ITEM_COLUMNS)]
        for item in decoded(document.items)
    )


def document_pdf(document: BillingDocument) -> bytes:
    """Return an A4 document: who, for which month, numbered items, and totals."""
    heading = f"{document.title} {document.number}"
    pdf = PDFPages(
        title=heading,
        made_at=document.issued_at,
        foot=f"{heading}, issued {document.issued_at:%Y-%m-%d} by Vedette",
    )
    pdf.add_page()
    pdf.set_font(pdf.family, style="B", size=16)
    pdf.cell(0, 9, pdf.printable(heading), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(2)
    _write_parties(pdf, document)
    items = decoded(document.items)
    _write_items(pdf, document, items[:MAX_PDF_ITEMS])
    _write_totals(pdf, document)
    notes = [_NOTE]
    if len(items) > MAX_PDF_ITEMS:
        notes.insert(0, f"The first {MAX_PDF_ITEMS:,} of {len(items):,} items; the CSV has all.")
    pdf.ln(4)
    pdf.set_font(pdf.family, size=8)
    pdf.set_text_color(*GRAY)
    for note in notes:
        pdf.multi_cell(0, 4, note, new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    return bytes(pdf.output())


def totals_of(document: BillingDocument) -> list[tuple[str, str]]:
    """Return the lines below the items: their names, and amounts as pages show them."""
    rows = [("Sum of the items", document.net)]
    if document.kind is DocumentKind.INVOICE:
        rows.append((f"Tax, {document.tax_percent.normalize():f} %", document.tax))
    if document.kind is DocumentKind.STATEMENT:
        rows.append((f"Fee, {document.fee_percent.normalize():f} %", -document.fee))
    if len(rows) > 1:
        rows.append(("Total", document.total))
    if document.prepaid:
        rows += [("Paid with prepaid credit", -document.prepaid), ("To be paid", document.due)]
    return [(name, format_amount(amount, document.currency)) for name, amount in rows]


def _write_parties(pdf: PDFPages, document: BillingDocument) -> None:
    party = document.party
    address = "\n".join(filter(None, (party.get("address", ""), party.get("country", ""))))
    tax_number = party.get("tax_number", "")
    rows = [
        ("Month", month_name(document.month_at)),
        ("Issued", f"{document.issued_at:%Y-%m-%d}"),
        ("Issued by", document.issuer),
        ("Issued to", party.get("legal_name") or document.tenant_name),
        ("Address", address),
        ("Tax number", tax_number),
    ]
    for name, text in rows:
        if text:
            pdf.set_font(pdf.family, size=9)
            pdf.set_text_color(*GRAY)
            pdf.cell(26, 5, name)
            pdf.set_text_color(0)
            pdf.multi_cell(0, 5, pdf.printable(text), new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    pdf.ln(4)


def _write_items(pdf: PDFPages, document: BillingDocument, items: list[Item]) -> None:
    pdf.set_font(pdf.family, size=8)
    pdf.set_text_color(0)
    pdf.set_fill_color(255)
    pdf.set_draw_color(*LINE)
    head = FontFace(emphasis=TextEmphasis.B, color=GRAY, fill_color=None)
    with pdf.table(
        col_widths=(8, 42, 15, 52, 20, 17, 24),
        text_align=("RIGHT", "LEFT", "LEFT", "LEFT", "RIGHT", "RIGHT", "RIGHT"),
        borders_layout="HORIZONTAL_LINES",
        cell_fill_color=STRIPE,
        cell_fill_mode="ROWS",
        headings_style=head,
        line_height=4.5,
        padding=(0.4, 1.2),
    ) as table:
        place = "Project" if document.kind is DocumentKind.COST_STATEMENT else "Offer"
        table.row(
            ["No.", place, "Month", "For", "GPU-hours", "Price", f"Amount {document.currency}"]
        )
        for item in items:
            table.row([pdf.printable(text) for text in _cells(item, document)])


def _cells(item: Item, document: BillingDocument) -> list[str]:
    label = _OTHER_SIDE[document.kind]
    side = f"\n{label}: {item.other_side}" if item.other_side and label else ""
    return [
        str(item.number),
        f"{item.subject}{side}",
        item.month,
        "\n".join(filter(None, (item.text, item.gpu_model))),
        f"{item.gpu_hours.normalize():f}" if item.has_time else "",
        amount_text(item.unit_price) if item.has_time else "",
        f"{item.amount:,}",
    ]


def _write_totals(pdf: PDFPages, document: BillingDocument) -> None:
    pdf.ln(2)
    rows = totals_of(document)
    for number, (name, amount) in enumerate(rows):
        style = "B" if number == len(rows) - 1 else ""
        pdf.set_font(pdf.family, style=style, size=9)
        pdf.cell(pdf.epw - 40, 6, pdf.printable(name), align="R")
        pdf.cell(40, 6, amount, align="R", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
