"""When a schedule is due: cron expressions and ISO 8601 repeating intervals, in a time zone.

Times of day are those of the clock on the wall: one that a change of the clock skips is due at the
change, and one that occurs twice is due the first time. Nothing is due twice at one instant.
"""

import re
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

MIN_INTERVAL = timedelta(minutes=1)
MAX_LENGTH = 200
_EXPECTED = (
    "enter cron such as '0 2 * * *' or '@daily', or an interval such as 'R/2026-01-01T00:00/P1D'"
)
# Source: crontab(5).
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_AREAS = ("Africa/", "America/", "Antarctica/", "Asia/", "Atlantic/", "Australia/", "Europe/")
_OCEANS = ("Indian/", "Pacific/")
_INTERVAL = re.compile(r"R(?P<count>[0-9]{0,9})/(?P<start>[^/]+)/(?P<period>[^/]+)")
_PERIOD = re.compile(
    r"P(?:(?P<years>[0-9]{1,4})Y)?(?:(?P<months>[0-9]{1,5})M)?"
    r"(?:(?P<weeks>[0-9]{1,4})W)?(?:(?P<days>[0-9]{1,5})D)?"
    r"(?:T(?=[0-9])"
    r"(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,8})M)?(?:(?P<seconds>[0-9]{1,9})S)?)?"
)
_NEVER = datetime.max.replace(tzinfo=UTC)
_SHORTEST_MONTH = timedelta(days=28)
_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)


def check_time_zone(name: str) -> None:
    """Raise ValueError unless the time zone is known, such as `Europe/Oslo`."""
    if name not in _time_zones():
        raise ValueError(f"{name!r} is not a time zone; enter one such as 'Europe/Oslo' or 'UTC'.")


def area_zones() -> list[str]:
    """Return the time zones to choose from: those of a city, such as `Europe/Oslo`."""
    return sorted(name for name in _time_zones() if name.startswith((*_AREAS, *_OCEANS)))


@cache
def _time_zones() -> frozenset[str]:
    # To list them reads hundreds of files.
    return frozenset(available_timezones())


def check_schedule(text: str) -> None:
    """Raise ValueError with what is expected unless the schedule is valid."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"The schedule has {len(text)} characters; use at most {MAX_LENGTH}.")
    next_time(text, "UTC", after=datetime(2026, 1, 1, tzinfo=UTC))


def next_time(text: str, time_zone: str, *, after: datetime) -> datetime | None:
    """Return the first time after another at which a schedule is due; None if there is none.

    Cron times, and intervals whose start has no offset, are in the time zone. Years to days of an
    interval are counted on the calendar there, hours to seconds as they pass; the 31st is the last
    day of shorter months.

    Raises:
        ValueError: the schedule is invalid.
    """
    try:
        zone = ZoneInfo(time_zone)
    except KeyError:
        raise ValueError(f"{time_zone!r} is no longer a time zone.") from None
    if text.startswith("R"):
        return _next_of_interval(text, zone, after)
    return _next_of_cron(text, zone, after)


def times_between(
    text: str, time_zone: str, *, first: datetime, until: datetime, max_count: int
) -> Iterator[datetime]:
    """Yield the times from the first to another, both included, and at most `max_count`."""
    due: datetime | None = first
    while due is not None and due <= until and max_count > 0:
        yield due
        due, max_count = next_time(text, time_zone, after=due), max_count - 1


def _next_of_cron(text: str, zone: tzinfo, after: datetime) -> datetime | None:
    expression = NICKNAMES.get(text.lower(), text)
    if len(expression.split()) != 5:  # noqa: PLR2004 - cronsim accepts seconds, too
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.")
    try:
        following = _first(expression, zone, after)
        change = following and _uneven_change(zone, after, following)
        if following is None or change is None:
            return following
        # cronsim steps over it by whole hours, and then leaves out the first minutes of each.
        return min(following, _first(expression, zone, change + _HOUR) or following)
    except CronSimError as error:
        raise ValueError(f"{text!r} is not a schedule ({error}); {_EXPECTED}.") from None


def _first(expression: str, zone: tzinfo, after: datetime) -> datetime | None:
    times = (at.astimezone(UTC) for at in CronSim(expression, after.astimezone(zone)))
    # In an hour that occurs twice, the first times may be those of its first occurrence.
    return next((at for at in times if at > after), None)


def _uneven_change(zone: tzinfo, begin: datetime, end: datetime) -> datetime | None:
    """Return when clocks were moved by other than whole hours, as on Lord Howe Island."""

    def offset(minutes: int) -> timedelta:
        return (begin + minutes * _MINUTE).astimezone(zone).utcoffset() or timedelta()

    minutes = range((end - begin) // _MINUTE + 1)
    if not (offset(minutes[-1]) - offset(0)) % _HOUR:
        return None
    return begin + bisect_left(minutes, 1, key=lambda at: int(offset(at) != offset(0))) * _MINUTE


def _next_of_interval(text: str, zone: tzinfo, after: datetime) -> datetime | None:
    match = _INTERVAL.fullmatch(text)
    period = _PERIOD.fullmatch(match["period"]) if match else None
    if match is None or period is None:
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.")
    numbers = {name: int(value or 0) for name, value in period.groupdict().items()}
    months = 12 * numbers.pop("years") + numbers.pop("months")
    days = 7 * numbers.pop("weeks") + numbers.pop("days")
    elapsed = timedelta(**numbers)
    shortest = months * _SHORTEST_MONTH + timedelta(days=days) + elapsed
    if shortest < MIN_INTERVAL:
        raise ValueError(f"{text!r} repeats in less than a minute; use PT1M or more.")
    try:
        start = datetime.fromisoformat(match["start"])
    except ValueError:
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.") from None
    start = start if start.tzinfo else start.replace(tzinfo=zone)

    def due(number: int) -> datetime:
        try:
            wall = _add_months(start, number * months) + timedelta(days=number * days)
            return _on_the_clock(wall) + number * elapsed
        except (OverflowError, ValueError):  # after the year 9999
            return _NEVER

    # The clocks of a zone may have been moved by more than a day since the start.
    max_times = max(0, (after - start) // shortest) + 3
    passed = bisect_right(range(max_times), after, key=due)
    # R3 is due three times, as in Chronos.
    is_over = bool(match["count"]) and passed >= int(match["count"])
    following = due(passed)
    return None if is_over or following == _NEVER else following


def _add_months(at: datetime, months: int) -> datetime:
    """Return the same day so many months later, or the last one of a shorter month."""
    years, month = divmod(at.month - 1 + months, 12)
    last_day = monthrange(at.year + years, month + 1)[1]
    return at.replace(year=at.year + years, month=month + 1, day=min(at.day, last_day))


def _on_the_clock(wall: datetime) -> datetime:
    """Return when the clocks of a time zone show a time first, or skip it."""
    wall = wall.replace(fold=0)
    while (shown := wall.astimezone(UTC)).astimezone(wall.tzinfo) != wall:
        wall = wall.replace(second=0, microsecond=0) + timedelta(minutes=1)
    return shown
