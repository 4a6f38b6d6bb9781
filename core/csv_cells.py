"""Cells of CSV files that a spreadsheet opens."""

# What a spreadsheet interprets as the start of a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def guarded(text: str) -> str:
    """Return a cell's text with an apostrophe in front if a spreadsheet would run it."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
