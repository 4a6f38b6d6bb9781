"""CSV files that a spreadsheet opens."""

import csv
import io
from collections.abc import Iterable, Sequence

# Characters that a spreadsheet interprets as the start of a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def guarded(text: str) -> str:
    """Return a cell's text with an apostrophe in front if a spreadsheet would run it."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    """Return rows as lines of a CSV file; guard texts that users wrote before."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()
