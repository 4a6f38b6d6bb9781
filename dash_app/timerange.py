"""The controls that every dashboard shares: time range and auto refresh, kept in the query string.

A *span* is the stretch of time that one refresh shows, with the width of its windows (the step).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qs, urlencode

from core.clock import NS_PER_SECOND, to_ns

SAMPLE_INTERVAL_SECONDS = 10
AIMED_POINTS = 300
# Round widths, so that windows start at times that people would choose.
_STEPS_SECONDS = (10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)

# Key to label and seconds.
RANGES: Mapping[str, tuple[str, int]] = {
    "15m": ("15 m", 900),
    "1h": ("1 h", 3600),
    "6h": ("6 h", 6 * 3600),
    "24h": ("24 h", 24 * 3600),
    "7d": ("7 d", 7 * 24 * 3600),
}
# Key to label and seconds; 0 is off.
REFRESHES: Mapping[str, tuple[str, int]] = {
    "off": ("Off", 0),
    "2s": ("2 s", 2),
    "5s": ("5 s", 5),
    "30s": ("30 s", 30),
    "1m": ("1 m", 60),
}
DEFAULT_RANGE = "1h"
DEFAULT_REFRESH = "5s"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time `[start_ns, end_ns)` in windows of `step_ns`."""

    start_ns: int
    end_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Controls:
    """What the user chose; unknown words in an address fall back to the defaults."""

    range_key: str = DEFAULT_RANGE
    refresh_key: str = DEFAULT_REFRESH

    @classmethod
    def parse(cls, search: str | None) -> "Controls":
        """Return the controls that a query string such as `?range=6h&refresh=off` names."""
        words = parse_qs((search or "").removeprefix("?"))
        range_key = words.get("range", [DEFAULT_RANGE])[-1]
        refresh_key = words.get("refresh", [DEFAULT_REFRESH])[-1]
        return cls(
            range_key=range_key if range_key in RANGES else DEFAULT_RANGE,
            refresh_key=refresh_key if refresh_key in REFRESHES else DEFAULT_REFRESH,
        )

    @property
    def search(self) -> str:
        """The query string that carries these controls to another tier."""
        return "?" + urlencode({"range": self.range_key, "refresh": self.refresh_key})

    def span(self, now: datetime) -> Span:
        """Return the chosen range up to `now`, its start on a window's start."""
        seconds = RANGES[self.range_key][1]
        end_ns = to_ns(now)
        step_ns = step_seconds(seconds) * NS_PER_SECOND
        start_ns = end_ns - seconds * NS_PER_SECOND
        return Span(start_ns - start_ns % step_ns, end_ns, step_ns)


def span_between(start_at: datetime, end_at: datetime) -> Span:
    """Return a span for the life of something, at least one minute wide."""
    start_ns, end_ns = to_ns(start_at), to_ns(end_at)
    end_ns = max(end_ns, start_ns + 60 * NS_PER_SECOND)
    step_ns = step_seconds((end_ns - start_ns) / NS_PER_SECOND) * NS_PER_SECOND
    return Span(start_ns - start_ns % step_ns, end_ns, step_ns)


def step_seconds(range_seconds: float) -> int:
    """Return the widest round step that still gives about 300 points, never under a sample."""
    aimed = max(range_seconds / AIMED_POINTS, SAMPLE_INTERVAL_SECONDS)
    return next((step for step in _STEPS_SECONDS if step >= aimed), _STEPS_SECONDS[-1])
