"""Named time intervals, in which routes are muted or active, as in Alertmanager.

A time interval is a list of entries, of which one must contain a time. An entry has ranges of
times, weekdays, days of the month, months and years, of which all that it has must contain it, on
the clocks of its location. Times are whole minutes, so that a change of the clocks needs no care:
whether an interval contains an instant depends only on what the clocks show then.

Source: https://prometheus.io/docs/alerting/latest/configuration/#time_interval
"""

import re
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from alerting.rule_request import Errors
from core.schedule_times import check_time_zone

MAX_INTERVALS = 50
MAX_ENTRIES = 20
MAX_RANGES = 50
MAX_NAME_LENGTH = 100
MAX_YEAR = 9999
KEYS = ("times", "weekdays", "days_of_month", "months", "years", "location")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_SHORTEST_MONTH = 28
_LONGEST_MONTH = 31
_TIME = re.compile(r"(?:([01][0-9]|2[0-3]):([0-5][0-9])|(24):(00))")
_RANGE = re.compile(r"\s*(-?\w+)\s*(?::\s*(-?\w+)\s*)?", re.ASCII)

Range = tuple[int, int]
"""The first and the last value; of times the first minute of the day, and that after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Ranges, of which all that are not empty must contain a time.

    Attributes:
        times: minutes of the day.
        weekdays: 0 is Sunday, so that a week ends with Saturday as in Alertmanager.
        days_of_month: negative ones count from the end of the month.
        months: 1 is January.
        years: years.
        location: a time zone.
    """

    times: tuple[Range, ...] = ()
    weekdays: tuple[Range, ...] = ()
    days_of_month: tuple[Range, ...] = ()
    months: tuple[Range, ...] = ()
    years: tuple[Range, ...] = ()
    location: str = "UTC"

    def contains(self, at: datetime) -> bool:
        """Return whether a time is in all of its ranges."""
        wall = at.astimezone(ZoneInfo(self.location))
        minute = wall.hour * 60 + wall.minute
        days = monthrange(wall.year, wall.month)[1]
        return (
            _is_in(minute, tuple((first, end - 1) for first, end in self.times))
            and _is_in(wall.isoweekday() % 7, self.weekdays)
            and _is_in(
                wall.day, tuple(_of_month(day_range, days) for day_range in self.days_of_month)
            )
            and _is_in(wall.month, self.months)
            and _is_in(wall.year, self.years)
        )


TimeInterval = tuple[Entry, ...]


def parse_time_intervals(data: object) -> tuple[dict[str, TimeInterval], Errors]:
    """Return the time intervals of a list as YAML or JSON has it by name, and errors by path."""
    if not isinstance(data, list) or len(data) > MAX_INTERVALS:
        return {}, {
            "time_intervals": [f"time_intervals must be a list of at most {MAX_INTERVALS}."]
        }
    errors: Errors = {}
    intervals: dict[str, TimeInterval] = {}
    for number, item in enumerate(data):
        path = f"time_intervals.{number}"
        name, entries, reasons = _parsed_interval(item)
        if name in intervals:
            reasons = [f"The name {name!r} is repeated."]
        if reasons:
            errors[path] = [f"{path}: {reason}" for reason in reasons]
        intervals[name] = entries
    return intervals, errors


def written_intervals(data: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return valid time intervals as users write them; YAML reads 22:00 without quotes as 1320."""
    return [
        {
            "name": item["name"],
            "time_intervals": [_written(interval) for interval in item["time_intervals"]],
        }
        for item in data
    ]


def contains(interval: Sequence[Entry], at: datetime) -> bool:
    """Return whether one of the entries contains a time."""
    return any(entry.contains(at) for entry in interval)


def _is_in(value: int, ranges: Sequence[Range]) -> bool:
    """Return whether a range contains a value, or there is none."""
    return not ranges or any(first <= value <= last for first, last in ranges)


def _of_month(days: Range, length: int) -> Range:
    """Return days of a month of a length; those that it does not have are empty."""
    first, last = (day if day > 0 else length + day + 1 for day in days)
    return max(first, 1), last


def _parsed_interval(data: object) -> tuple[str, TimeInterval, list[str]]:
    if not isinstance(data, Mapping) or set(data) != {"name", "time_intervals"}:
        return "", (), ["Expected the keys 'name' and 'time_intervals'."]
    name, items = data["name"], data["time_intervals"]
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        return "", (), [f"The name must be a text of 1 to {MAX_NAME_LENGTH} characters."]
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ENTRIES:
        return name, (), [f"{name}: time_intervals must be a list of 1 to {MAX_ENTRIES} entries."]
    entries = []
    for item in items:
        try:
            entries.append(_parsed_entry(item))
        except ValueError as error:
            return name, (), [f"{name}: {error}"]
    return name, tuple(entries), []


def _parsed_entry(data: object) -> Entry:
    if not isinstance(data, Mapping):
        raise ValueError(f"Each entry must have some of the keys {', '.join(KEYS)}.")  # noqa: TRY004 - shown to users
    unknown = [str(key) for key in data if key not in KEYS]
    if unknown:
        raise ValueError(f"Unknown key {unknown[0]!r}. Use {', '.join(KEYS)}.")
    location = data.get("location", "UTC")
    check_time_zone(str(location))
    return Entry(
        times=_ranges(data, "times", _times),
        weekdays=_ranges(data, "weekdays", _range_of(_weekday)),
        days_of_month=_ranges(data, "days_of_month", _days),
        months=_ranges(data, "months", _range_of(_month)),
        years=_ranges(data, "years", _range_of(lambda text: _number(text, "year", (1, MAX_YEAR)))),
        location=str(location),
    )


def _ranges(data: Mapping[str, Any], key: str, parse: Callable[[Any], Range]) -> tuple[Range, ...]:
    items = data.get(key) or []
    if not isinstance(items, list) or len(items) > MAX_RANGES:
        raise ValueError(f"{key} must be a list of at most {MAX_RANGES}.")
    return tuple(parse(item) for item in items)


def _times(data: object) -> Range:
    if not isinstance(data, Mapping) or set(data) != {"start_time", "end_time"}:
        raise ValueError("Each of the times must have 'start_time' and 'end_time'.")
    first, end = (_minute(data[key]) for key in ("start_time", "end_time"))
    if first >= end:
        raise ValueError(
            f"{data['start_time']} is not before {data['end_time']}. A night has two entries: from "
            "its start to 24:00, and from 00:00 to its end."
        )
    return first, end


def _written(entry: Mapping[str, Any]) -> dict[str, Any]:
    if not entry.get("times"):
        return dict(entry)
    times = [{key: _time_text(value) for key, value in times.items()} for times in entry["times"]]
    return {**entry, "times": times}


def _time_text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value // 60:02}:{value % 60:02}"
    return str(value)


def _minute(value: object) -> int:
    match = _TIME.fullmatch(_time_text(value))
    if match is None:
        raise ValueError(f"{value!r} is not a time. Use one from 00:00 to 24:00.")
    hours, minutes = (int(text) for text in match.groups() if text is not None)
    return hours * 60 + minutes


def _range_of(value_of: Callable[[str], int]) -> Callable[[Any], Range]:
    def parse(text: object) -> Range:
        first, last = _ends(text, value_of)
        if first > last:
            raise ValueError(f"{text!r} ends before it begins. A week begins with Sunday.")
        return first, last

    return parse


def _ends(text: object, value_of: Callable[[str], int]) -> Range:
    match = _RANGE.fullmatch(str(text).lower())
    if match is None:
        raise ValueError(f"{text!r} is not a value or a range, such as 1:5 or monday:friday.")
    first, last = match.groups()
    return value_of(first), value_of(last or first)


def _weekday(text: str) -> int:
    if text not in WEEKDAYS:
        raise ValueError(f"{text!r} is not a weekday. Use {', '.join(WEEKDAYS)}.")
    return (WEEKDAYS.index(text) + 1) % 7


def _month(text: str) -> int:
    return MONTHS.index(text) + 1 if text in MONTHS else _number(text, "month", (1, len(MONTHS)))


def _day(text: str) -> int:
    day = _number(text, "day of the month", (-_LONGEST_MONTH, _LONGEST_MONTH))
    if day == 0:
        raise ValueError("A month has no day 0. Use 1 to 31, or -1 for the last one.")
    return day


def _days(text: object) -> Range:
    first, last = _ends(text, _day)
    # Like Alertmanager, refuse a range that is empty in every month, or in short ones.
    shortest = [day if day > 0 else _SHORTEST_MONTH + day for day in (first, last)]
    if shortest[0] > shortest[1] or (first < 0 < last):
        raise ValueError(f"{text!r} ends before it begins.")
    return first, last


def _number(text: str, unit: str, limits: Range) -> int:
    first, last = limits
    if not re.fullmatch(r"-?[0-9]{1,4}", text) or not first <= int(text) <= last:
        raise ValueError(f"{text!r} is not a {unit}. Use {first} to {last}, with ranges in quotes.")
    return int(text)
