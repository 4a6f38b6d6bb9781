"""When a schedule is due: cron expressions and ISO 8601 repeating intervals, in a time zone."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

MIN_INTERVAL = timedelta(minutes=1)
MAX_LENGTH = 200
_EXPECTED = "enter cron such as '0 2 * * *', or an interval such as 'R/2026-01-01T00:00Z/PT6H'"
_INTERVAL = re.compile(r"R(?P<count>[0-9]{0,9})/(?P<start>[^/]+)/(?P<period>[^/]+)")
_PERIOD = re.compile(
    r"P(?:(?P<weeks>[0-9]{1,4})W)?(?:(?P<days>[0-9]{1,5})D)?"
    r"(?:T(?:(?P<hours>[0-9]{1,6})H)?(?:(?P<minutes>[0-9]{1,8})M)?(?:(?P<seconds>[0-9]{1,9})S)?)?"
)


def check_time_zone(name: str) -> None:
    """Raise ValueError unless the time zone is known, such as `Europe/Oslo`."""
    if name not in _time_zones():
        raise ValueError(f"{name!r} is not a time zone; enter one such as 'Europe/Oslo' or 'UTC'.")


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

    Cron times are in the time zone. One that a change of the clock skips is due at the change, and
    one that occurs twice is due once.

    Raises:
        ValueError: the schedule is invalid.
    """
    if text.startswith("R"):
        return _next_of_interval(text, time_zone, after)
    if len(text.split()) != 5:  # noqa: PLR2004 - cronsim accepts seconds, too
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.")
    try:
        found = next(CronSim(text, after.astimezone(ZoneInfo(time_zone))), None)
    except CronSimError as error:
        raise ValueError(f"{text!r} is not a schedule ({error}); {_EXPECTED}.") from None
    return None if found is None else found.astimezone(UTC)


def times_between(
    text: str, time_zone: str, *, first: datetime, until: datetime, most: int
) -> Iterator[datetime]:
    """Yield the times from the first to another, both included, and at most `most`."""
    due: datetime | None = first
    while due is not None and due <= until and most > 0:
        yield due
        due, most = next_time(text, time_zone, after=due), most - 1


def _next_of_interval(text: str, time_zone: str, after: datetime) -> datetime | None:
    match = _INTERVAL.fullmatch(text)
    period = _PERIOD.fullmatch(match["period"]) if match else None
    if match is None or period is None:
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.")
    every = timedelta(**{name: int(value or 0) for name, value in period.groupdict().items()})
    if every < MIN_INTERVAL:
        raise ValueError(f"{text!r} repeats in less than a minute; use PT1M or more.")
    try:
        start = datetime.fromisoformat(match["start"])
        start = start if start.tzinfo else start.replace(tzinfo=ZoneInfo(time_zone))
        passed = max(0, (after - start) // every + 1)
        # As in Chronos, R3 is due three times.
        if match["count"] and passed >= int(match["count"]):
            return None
        return start.astimezone(UTC) + passed * every
    except OverflowError:
        return None
    except ValueError:
        raise ValueError(f"{text!r} is not a schedule; {_EXPECTED}.") from None
