"""Quantities and times as Kubernetes writes them.

Source: Kubernetes API reference, "Quantity"; RFC 3339.
"""

import re
from datetime import datetime

from core.clock import to_ns

_SUFFIXES = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{letter}i": 1024.0 ** (power + 1) for power, letter in enumerate("KMGTPE")},
}
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?\d+)?)([numkMGTPE]?|[KMGTPE]i)")


def quantity(text: object) -> float:
    """Return the number of `500m`, `16Gi` or `4`; 0 for what is none."""
    match = _QUANTITY.fullmatch(str(text).strip())
    try:
        return float(match[1]) * _SUFFIXES[match[2]] if match else 0.0
    except ValueError:
        return 0.0


def time_ns(text: str | None) -> int | None:
    """Return nanoseconds since the epoch for `2026-11-21T11:58:29Z`; None for none."""
    match = _TIME.fullmatch(text or "")
    if match is None:
        return None
    zone = "+00:00" if match[3] == "Z" else match[3]
    try:
        second_ns = to_ns(datetime.fromisoformat(f"{match[1]}{zone}"))
    except ValueError:
        return None
    return second_ns + int((match[2] or "0").ljust(9, "0"))
