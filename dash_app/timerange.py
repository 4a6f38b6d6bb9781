"""The controls that every dashboard shares: time range and auto refresh, kept in the query string.

A range such as the last hour moves on; a *window* is a stretch between two instants that stands
still, chosen by dragging over a chart and named `from` and `to` in the address.
A *span* is the stretch of time that one refresh shows, with the width of its windows (the step).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import parse_qs, urlencode

from core.clock import NS_PER_SECOND, from_ns, to_ns

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
# What a window may be: a narrower one has no samples to show, a wider one more than is kept.
NARROWEST_WINDOW_MS = 60_000
WIDEST_WINDOW_MS = 2 * 366 * 86_400_000
# Year 9999 is the last that a datetime holds.
_LAST_MS = 253_402_300_799_000
_NS_PER_MS = 1_000_000
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
    """What the user chose; unknown words in an address fall back to the defaults.

    Attributes:
        window: the first and the last millisecond since 1970 of a stretch that stands still, or
            nothing where the range moves on.
    """

    range_key: str = DEFAULT_RANGE
    refresh_key: str = DEFAULT_REFRESH
    window: tuple[int, int] | None = None

    @classmethod
    def parse(cls, search: str | None) -> "Controls":
        """Return the controls that a query string such as `?range=6h&refresh=off` names."""
        words = parse_qs((search or "").removeprefix("?"))
        range_key = words.get("range", [DEFAULT_RANGE])[-1]
        refresh_key = words.get("refresh", [DEFAULT_REFRESH])[-1]
        return cls(
            range_key=range_key if range_key in RANGES else DEFAULT_RANGE,
            refresh_key=refresh_key if refresh_key in REFRESHES else DEFAULT_REFRESH,
            window=_window(words.get("from", [""])[-1], words.get("to", [""])[-1]),
        )

    @property
    def search(self) -> str:
        """The query string that carries these controls to another tier."""
        words = {"range": self.range_key, "refresh": self.refresh_key}
        if self.window is not None:
            words |= {"from": str(self.window[0]), "to": str(self.window[1])}
        return "?" + urlencode(words)

    @property
    def time_key(self) -> str:
        """What tells this stretch of time from every other choice."""
        return self.range_key if self.window is None else f"{self.window[0]}-{self.window[1]}"

    @property
    def window_words(self) -> str:
        """The window as people read it, such as `Nov 21 20:20 to 20:40 UTC`; empty without one."""
        if self.window is None:
            return ""
        start, end = (from_ns(ms * _NS_PER_MS) for ms in self.window)
        is_one_day = start.date() == end.date()
        return f"{start:%b %d %H:%M} to {end:{'%H:%M' if is_one_day else '%b %d %H:%M'}} UTC"

    def moving(self) -> "Controls":
        """Return the same choice without its window."""
        return replace(self, window=None)

    def span(self, now: datetime) -> Span:
        """Return the window, or the chosen range up to `now`; it starts where a step starts."""
        if self.window is not None:
            return _stepped(*(ms * _NS_PER_MS for ms in self.window))
        seconds = RANGES[self.range_key][1]
        return _stepped(to_ns(now) - seconds * NS_PER_SECOND, to_ns(now))


def span_between(start_at: datetime, end_at: datetime) -> Span:
    """Return a span for the life of something, at least one minute wide."""
    start_ns, end_ns = to_ns(start_at), to_ns(end_at)
    return _stepped(start_ns, max(end_ns, start_ns + 60 * NS_PER_SECOND))


def step_seconds(range_seconds: float) -> int:
    """Return the widest round step that still gives about 300 points, never under a sample."""
    aimed = max(range_seconds / AIMED_POINTS, SAMPLE_INTERVAL_SECONDS)
    return next((step for step in _STEPS_SECONDS if step >= aimed), _STEPS_SECONDS[-1])


def _stepped(start_ns: int, end_ns: int) -> Span:
    step_ns = step_seconds((end_ns - start_ns) / NS_PER_SECOND) * NS_PER_SECOND
    return Span(start_ns - start_ns % step_ns, end_ns, step_ns)


def _window(start: str, end: str) -> tuple[int, int] | None:
    """Return the window that an address names; nothing when it names none that makes sense."""
    if not (start.isdecimal() and end.isdecimal()) or len(start) + len(end) > 2 * len(
        str(_LAST_MS)
    ):
        return None
    start_ms, end_ms = int(start), int(end)
    if not start_ms < end_ms <= _LAST_MS:
        return None
    width_ms = min(max(end_ms - start_ms, NARROWEST_WINDOW_MS), WIDEST_WINDOW_MS)
    return max(0, end_ms - width_ms), end_ms
