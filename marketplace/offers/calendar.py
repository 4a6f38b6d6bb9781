"""The calendar of an offer: at which times jobs may start.

A *window* is some hours on some days, within dates if it has them. Without windows, an offer is
always open. A closed window wins over open ones; with closed windows alone, all other times are
open. Times are those of the terms' time zone.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec

from core.spec import About, limit_errors

MAX_WINDOWS = 50
_DAYS = range(7)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Times at which an offer is open, or closed."""

    days: Annotated[
        tuple[int, ...], About("0 for Monday to 6 for Sunday; empty for all.", maximum=7)
    ] = ()
    from_hour: Annotated[int, About("The first hour of the day, 0 to 23.", maximum=23)] = 0
    until_hour: Annotated[
        int, About("The first hour after it, 1 to 24.", minimum=1, maximum=24)
    ] = 24
    from_date: Annotated[str, About("The first date, such as 2026-12-24; empty for any.")] = ""
    until_date: Annotated[str, About("The last date; empty for any.")] = ""
    is_closed: Annotated[bool, About("Whether no jobs start then.")] = False

    def contains(self, local: datetime) -> bool:
        """Return whether a local time is in the window."""
        day = local.date().isoformat()
        return (
            (not self.days or local.weekday() in self.days)
            and self.from_hour <= local.hour < self.until_hour
            and (not self.from_date or self.from_date <= day)
            and (not self.until_date or day <= self.until_date)
        )


def windows_of(calendar: Sequence[dict[str, Any]]) -> list[Window]:
    """Return a stored calendar."""
    return msgspec.convert(calendar, list[Window])


def is_open(windows: Sequence[Window], time_zone: str, at: datetime) -> bool:
    """Return whether jobs may start at a time."""
    local = at.astimezone(ZoneInfo(time_zone))
    opening = [window for window in windows if not window.is_closed]
    if any(window.contains(local) for window in windows if window.is_closed):
        return False
    return not opening or any(window.contains(local) for window in opening)


def calendar_errors(windows: Sequence[Window]) -> Iterator[str]:
    """Return what is wrong with a calendar."""
    if len(windows) > MAX_WINDOWS:
        yield f"The calendar has {len(windows)} windows; use at most {MAX_WINDOWS}."
    for number, window in enumerate(windows[:MAX_WINDOWS], 1):
        for problem in (*(text for _, text in limit_errors(window)), *_errors(window)):
            yield f"Window {number}: {problem}"


def hours_errors(days: Sequence[int], from_hour: int, until_hour: int) -> Iterator[str]:
    """Return what is wrong with hours on days of the week."""
    if wrong := [day for day in days if day not in _DAYS]:
        yield f"{wrong[0]} is no day; use 0 for Monday to 6 for Sunday."
    if len(set(days)) < len(days):
        yield "A day is listed twice."
    if from_hour >= until_hour:
        yield (
            f"It ends at {until_hour}:00, which is not after {from_hour}:00. "
            "Split hours past midnight in two."
        )


def _errors(window: Window) -> Iterator[str]:
    yield from hours_errors(window.days, window.from_hour, window.until_hour)
    for text in (window.from_date, window.until_date):
        if text and not is_date(text):
            yield f"{text[:20]!r} is no date; enter one such as 2026-12-24."
    if window.from_date and window.until_date and window.from_date > window.until_date:
        yield f"It ends on {window.until_date[:20]}, before {window.from_date[:20]}."


def is_date(text: str) -> bool:
    """Return whether a text is a date such as `2026-12-24`."""
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
