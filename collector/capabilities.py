"""Capabilities of Linux that this process has."""

import re
from pathlib import Path


def has_capability(number: int, *, proc: Path = Path("/proc")) -> bool:
    """Return whether this process has a capability of Linux."""
    status = (proc / "self" / "status").read_text(encoding="utf-8")
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> number & 1)
