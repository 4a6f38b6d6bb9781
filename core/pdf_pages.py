"""A4 pages of PDF files: fonts, colors, page numbers."""

from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from fpdf import FPDF
from fpdf.fonts import TTFFont

# Fonts of Debian's fonts-dejavu-core. Without them, letters outside Latin-1 are question marks.
_FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
GRAY: Final = (90, 98, 112)
LINE: Final = (208, 213, 222)
STRIPE: Final = (244, 246, 250)


class PDFPages(FPDF):
    """Pages with a line at the foot and page numbers.

    Args:
        title: of the file.
        made_at: when it was made; the same content has the same bytes.
        foot: the text at the foot of each page.
        orientation: of the pages.
    """

    def __init__(
        self,
        *,
        title: str,
        made_at: datetime,
        foot: str,
        orientation: Literal["portrait", "landscape"] = "portrait",
        **options: Any,  # noqa: ANN401 - fpdf2's
    ) -> None:
        super().__init__(orientation=orientation, format="A4", **options)
        self._foot = foot
        self.family = "helvetica"
        if (_FONTS / "DejaVuSans.ttf").exists() and (_FONTS / "DejaVuSans-Bold.ttf").exists():
            self.family = "dejavu"
            self.add_font("dejavu", fname=_FONTS / "DejaVuSans.ttf")
            self.add_font("dejavu", style="B", fname=_FONTS / "DejaVuSans-Bold.ttf")
        self.set_title(title)
        self.set_creator("Vedette")
        self.set_lang("en-US")
        self.set_creation_date(made_at)
        self.set_auto_page_break(auto=True, margin=16)
        self.set_margin(14)

    def printable(self, text: str) -> str:
        """Return a text with the letters that the font has; others are question marks."""
        font = self.fonts[self.family]
        if not isinstance(font, TTFFont):
            return text.encode("latin-1", "replace").decode("latin-1")
        text = text.replace("\t", " ").replace("\r", "")
        return "".join(c if c == "\n" or ord(c) in font.cmap else "?" for c in text)

    def footer(self) -> None:
        """Write the foot and the page number."""
        self.set_y(-12)
        self.set_font(self.family, size=8)
        self.set_text_color(*GRAY)
        self.cell(0, 5, self.printable(self._foot))
        self.set_x(self.l_margin)
        self.cell(0, 5, f"{self.page_no()} / {{nb}}", align="R")
