"""The time controls of every dashboard, stored in the query string: range and auto refresh.

A *range* such as the last hour moves with the clock. A *window* is a fixed stretch of time between
`from` and `to`, which dragging over a chart selects. A *span* is the time that one refresh shows,
with the step of its aggregates.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from urllib.parse import parse_qs, urlencode

from core.clock import NS_PER_SECOND, from_ns, to_ns
from core.zones import abbreviation, instant_text, zone_key, zone_of

SAMPLE_INTERVAL_SECONDS = 10
TARGET_POINTS = 300
# Round steps, so that aggregates start at round times.
_STEPS_SECONDS = (10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)

# Key to label and seconds.
RANGES: Mapping[str, tuple[str, int]] = {
    "15m": ("15 m", 900),
    "1h": ("1 h", 3600),
    "6h": ("6 h", 6 * 3600),
    "24h": ("24 h", 24 * 3600),
    "7d": ("7 d", 7 * 24 * 3600),
    "30d": ("30 d", 30 * 24 * 3600),
    "90d": ("90 d", 90 * 24 * 3600),
}
# Key to label and seconds; 0 is off.
REFRESHES: Mapping[str, tuple[str, int]] = {
    "off": ("Off", 0),
    "2s": ("2 s", 2),
    "5s": ("5 s", 5),
    "30s": ("30 s", 30),
    "1m": ("1 m", 60),
}
# Key to label and seconds before the shown time; `previous` is the range's own width.
EARLIER: Mapping[str, tuple[str, int]] = {
    "1d": ("1 day earlier", 24 * 3600),
    "7d": ("7 days earlier", 7 * 24 * 3600),
    "30d": ("30 days earlier", 30 * 24 * 3600),
    "previous": ("Previous period", 0),
}
# A narrower window has no samples, a wider one exceeds the retention.
MIN_WINDOW_MS = 60_000
MAX_WINDOW_MS = 2 * 366 * 86_400_000
# Three days before the last instant that a datetime can represent: local times may be later.
_MAX_MS = 253_402_041_599_000
_NS_PER_MS = 1_000_000
# Longer texts match nothing.
MAX_CHOICE_LENGTH = 200
# Parameters of all dashboards; others are a page's own choices.
PARAMETERS = frozenset({"range", "refresh", "from", "to", "page", "tz", "compare", "kiosk"})
DEFAULT_RANGE = "1h"
DEFAULT_REFRESH = "5s"


@dataclass(frozen=True, slots=True)
class Span:
    """The time `[start_ns, end_ns)` in steps of `step_ns`.

    `lead_ns` is the part of the first step that is before the range that a user chose.
    """

    start_ns: int
    end_ns: int
    step_ns: int
    lead_ns: int = 0

    @property
    def range_start_ns(self) -> int:
        """The start of the range: figures of the whole range count the samples from here on."""
        return self.start_ns + self.lead_ns


@dataclass(frozen=True, slots=True)
class Controls:
    """The user's choices; unknown values in an address fall back to the defaults.

    Attributes:
        window: first and last millisecond since 1970 of a fixed window, or None for a range.
        zone: the IANA time zone that the address selects; empty is the user's.
        user_zone: the user's time zone.
        compare: a key of `EARLIER`, or what else the page can be compared with; empty is nothing.
        is_kiosk: whether the page is shown without navigation.
        page: page of the fleet's cards, from 1; other tiers don't carry it on.
        choices: what the page's own form controls select, by name; not carried on either.
    """

    range_key: str = DEFAULT_RANGE
    refresh_key: str = DEFAULT_REFRESH
    window: tuple[int, int] | None = None
    zone: str = ""
    compare: str = ""
    is_kiosk: bool = False
    page: int = 1
    choices: Mapping[str, str] = field(default_factory=dict)
    user_zone: str = "UTC"

    @classmethod
    def parse(cls, search: str | None, *, user_zone: str = "UTC") -> "Controls":
        """Return the controls of a query string such as `?range=6h&refresh=off`."""
        query = {
            name: values[-1] for name, values in parse_qs((search or "").removeprefix("?")).items()
        }
        range_key, refresh_key = query.get("range", ""), query.get("refresh", "")
        page = query.get("page", "")
        return cls(
            range_key=range_key if range_key in RANGES else DEFAULT_RANGE,
            refresh_key=refresh_key if refresh_key in REFRESHES else DEFAULT_REFRESH,
            window=_window(query.get("from", ""), query.get("to", "")),
            zone=zone_key(query.get("tz", "")),
            user_zone=user_zone,
            compare=query.get("compare", "")[:MAX_CHOICE_LENGTH],
            is_kiosk=query.get("kiosk") == "1",
            page=max(1, int(page)) if page.isdecimal() and len(page) < 6 else 1,  # noqa: PLR2004
            choices={
                name: value[:MAX_CHOICE_LENGTH]
                for name, value in query.items()
                if name not in PARAMETERS
            },
        )

    def choice(self, name: str, allowed: Iterable[str]) -> str:
        """Return what a form control selects: one of `allowed`, the first by default."""
        options = tuple(allowed)
        value = self.choices.get(name, "")
        return value if value in options else options[0]

    @property
    def search(self) -> str:
        """The query string that carries these controls to another tier."""
        query = {"range": self.range_key, "refresh": self.refresh_key}
        if self.window is not None:
            query |= {"from": str(self.window[0]), "to": str(self.window[1])}
        query |= {"tz": self.zone} if self.zone else {}
        # Another page has other peers to compare with.
        query |= {"compare": self.compare} if self.compare in EARLIER else {}
        query |= {"kiosk": "1"} if self.is_kiosk else {}
        return "?" + urlencode(query)

    def logs_path(self, *, since: datetime | None = None, **filters: str) -> str:
        """Return the address of the logs in the same time; `since` replaces a range until now."""
        if self.window is not None:
            names = zip(("since", "until"), self.window, strict=True)
            filters |= {name: from_ns(ms * _NS_PER_MS).isoformat() for name, ms in names}
        elif since is not None:
            filters["since"] = since.isoformat(timespec="seconds")
        else:
            filters["range"] = self.range_key
        return "/logs?" + urlencode(filters)

    @property
    def whole_search(self) -> str:
        """The query string with the page's own choices, for links to the same page."""
        choices = {name: value for name, value in self.choices.items() if value}
        if self.compare and self.compare not in EARLIER:
            choices["compare"] = self.compare
        return f"{self.search}&{urlencode(choices)}" if choices else self.search

    @property
    def time_key(self) -> str:
        """A key that is unique per range and window."""
        return self.range_key if self.window is None else f"{self.window[0]}-{self.window[1]}"

    def window_text(self, now: datetime) -> str:
        """Return the window such as `Nov 21 20:20 to 20:40 UTC`; empty without one."""
        if self.window is None:
            return ""
        start, end = (from_ns(ms * _NS_PER_MS).astimezone(self.tzinfo) for ms in self.window)
        day = "%b %d" if start.year == end.year == now.year else "%b %d, %Y"
        until = "%H:%M" if start.date() == end.date() else f"{day} %H:%M"
        start_zone, end_zone = abbreviation(start), abbreviation(end)
        change = "" if start_zone == end_zone else f" {start_zone}"
        return f"{start:{day} %H:%M}{change} to {end:{until}} {end_zone}"

    @property
    def tzinfo(self) -> tzinfo:
        """The time zone that the page is in."""
        return zone_of(self.zone_name)

    @property
    def zone_name(self) -> str:
        """The name of the time zone that the page is in."""
        return self.zone or self.user_zone

    def time_text(self, instant_at: datetime, form: str = "%b %d %H:%M") -> str:
        """Return an instant in the page's time zone, such as `Nov 21 20:20 UTC`."""
        return instant_text(instant_at, self.tzinfo, form)

    @property
    def seconds(self) -> int:
        """The width of the window, or of the range."""
        if self.window is not None:
            return max(60, (self.window[1] - self.window[0]) // 1000)
        return RANGES[self.range_key][1]

    @property
    def earlier_seconds(self) -> int:
        """The time from the compared period to the shown one; 0 for none."""
        return EARLIER[self.compare][1] or self.seconds if self.compare in EARLIER else 0

    def without_window(self) -> "Controls":
        """Return the same choices without the window."""
        return replace(self, window=None)

    def earlier(self, now: datetime) -> Span | None:
        """Return the span to compare with, of the same width; None for none."""
        if not self.earlier_seconds:
            return None
        span = self.span(now)
        shift_ns = self.earlier_seconds * NS_PER_SECOND
        return replace(span, start_ns=span.start_ns - shift_ns, end_ns=span.end_ns - shift_ns)

    def span(self, now: datetime) -> Span:
        """Return the window, or the range up to `now`, aligned to the step."""
        if self.window is not None:
            start_ms, end_ms = self.window
            return _aligned(start_ms * _NS_PER_MS, end_ms * _NS_PER_MS)
        seconds = RANGES[self.range_key][1]
        return _aligned(to_ns(now) - seconds * NS_PER_SECOND, to_ns(now))


def span_between(start_at: datetime, end_at: datetime) -> Span:
    """Return the span between two instants, at least one minute long."""
    start_ns, end_ns = to_ns(start_at), to_ns(end_at)
    return _aligned(start_ns, max(end_ns, start_ns + 60 * NS_PER_SECOND))


def step_seconds(range_seconds: float) -> int:
    """Return the round step that gives about 300 points, never under the sample interval."""
    target = max(range_seconds / TARGET_POINTS, SAMPLE_INTERVAL_SECONDS)
    return next((step for step in _STEPS_SECONDS if step >= target), _STEPS_SECONDS[-1])


def _aligned(start_ns: int, end_ns: int) -> Span:
    step_ns = step_seconds((end_ns - start_ns) / NS_PER_SECOND) * NS_PER_SECOND
    lead_ns = start_ns % step_ns
    return Span(start_ns - lead_ns, end_ns, step_ns, lead_ns)


def _window(start: str, end: str) -> tuple[int, int] | None:
    """Return the window of an address, clamped to a useful width; None for an invalid one."""
    is_number = start.isdecimal() and end.isdecimal()
    if not is_number or len(start) + len(end) > 2 * len(str(_MAX_MS)):
        return None
    start_ms, end_ms = int(start), int(end)
    if not start_ms < end_ms <= _MAX_MS:
        return None
    width_ms = min(max(end_ms - start_ms, MIN_WINDOW_MS), MAX_WINDOW_MS)
    return max(0, end_ms - width_ms), end_ms
