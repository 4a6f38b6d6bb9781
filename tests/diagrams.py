"""State diagrams in the documentation, read for comparison with the tables in the code."""

import re
from pathlib import Path

_ARROW = re.compile(r"^\s*(\w+) --> (\w+)", re.MULTILINE)
_ROOT = Path(__file__).parent.parent


def diagram_of(path: Path) -> set[tuple[str, str]]:
    """Return the moves (from, to) of the Mermaid diagram in a page; `path` is in the repository."""
    return set(_ARROW.findall((_ROOT / path).read_text(encoding="utf-8")))
