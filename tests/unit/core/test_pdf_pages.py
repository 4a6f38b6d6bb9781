"""Texts of PDF files: no letter vanishes without a trace."""

from core.pdf_pages import PDFPages
from tests.cast import NOON


def test_letters_that_the_font_lacks_are_question_marks() -> None:
    pdf = PDFPages(title="Invoice", made_at=NOON, foot="Invoice")
    assert pdf.printable("Zürich\t東京 AS\n🚀") == "Zürich ?? AS\n?"
    pdf.add_page()
    assert pdf.output().startswith(b"%PDF")
