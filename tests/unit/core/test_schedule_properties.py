"""Schedules over zones and changes of the clock, against models that go minute by minute."""

from datetime import UTC, date, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.schedule_times import next_time

ZONES = (
    *("UTC", "Europe/Oslo", "America/New_York", "America/St_Johns", "Asia/Kolkata"),
    *("Australia/Lord_Howe", "Africa/Cairo", "America/Santiago", "Asia/Kathmandu"),
)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
# Every zone of these changes its clock, if it does at all, within one of the windows.
FIRST_DAYS = [date(2026, 3, 6), date(2026, 3, 27), date(2026, 4, 3), date(2026, 4, 22)]
FIRST_DAYS += [date(2026, 9, 4), date(2026, 10, 2), date(2026, 10, 23), date(2026, 10, 30)]
WINDOW_DAYS = 4
zones, first_days = st.sampled_from(ZONES), st.sampled_from(FIRST_DAYS)
clock_times = st.tuples(st.integers(0, 23), st.integers(0, 59))


def shown_first(wall: datetime, zone: ZoneInfo) -> datetime:
    """When clocks show a time first, or jump over it: the first minute that is not before it."""
    at = wall.replace(tzinfo=zone).astimezone(UTC) - timedelta(hours=4)
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += MINUTE
    return at


def due_times(schedule: str, zone: str, first: date) -> list[datetime]:
    """Return the times that are due in a window of days."""
    after = datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    until, times = after + WINDOW_DAYS * DAY, []
    after -= MINUTE
    while (following := next_time(schedule, zone, after=after)) is not None and following < until:
        assert following > after
        times.append(following)
        after = following
    return times


def model(first: date, zone: str, clock_time: tuple[int, int]) -> list[datetime]:
    """Each day of the window at a time of its clock."""
    name = ZoneInfo(zone)
    begin = datetime(first.year, first.month, first.day)  # noqa: DTZ001 - on the clock
    until = begin.replace(tzinfo=name).astimezone(UTC) + WINDOW_DAYS * DAY
    walls = [
        begin + number * DAY + timedelta(hours=clock_time[0], minutes=clock_time[1])
        for number in range(WINDOW_DAYS + 1)
    ]
    return list(takewhile(lambda at: at < until, (shown_first(wall, name) for wall in walls)))


@given(zones, first_days, clock_times)
def test_each_day_is_due_once_at_its_time_of_the_clock(
    zone: str, first: date, clock_time: tuple[int, int]
) -> None:
    hour, minute = clock_time
    expected = model(first, zone, clock_time)
    assert due_times(f"{minute} {hour} * * *", zone, first) == expected
    start = f"{first - 40 * DAY}T{hour:02}:{minute:02}"
    assert due_times(f"R/{start}/P1D", zone, first) == expected


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("first", FIRST_DAYS)
def test_each_hour_and_each_quarter_is_due_once(zone: str, first: date) -> None:
    name = ZoneInfo(zone)
    begin = datetime(first.year, first.month, first.day, tzinfo=name).astimezone(UTC)
    minutes = [begin + number * MINUTE for number in range(WINDOW_DAYS * 24 * 60)]
    for schedule, every in (("@hourly", 60), ("0 * * * *", 60), ("*/15 * * * *", 15)):
        expected = [at for at in minutes if at.astimezone(name).minute % every == 0]
        assert due_times(schedule, zone, first) == expected


@given(
    zones,
    first_days,
    clock_times,
    st.sampled_from(["{1} {0} * * *", "*/20 {0} * * *", "R/2025-12-31T{0:02}:{1:02}/P1D"]),
    st.integers(0, WINDOW_DAYS * 24 * 60 * 60),
)
@example("Australia/Lord_Howe", date(2026, 4, 3), (0, 0), "*/20 {0} * * *", 181_799)
@example("Australia/Lord_Howe", date(2026, 4, 3), (0, 0), "*/20 {0} * * *", 181_800)
def test_due_times_do_not_depend_on_the_time_of_the_query(
    zone: str, first: date, clock_time: tuple[int, int], pattern: str, seconds: int
) -> None:
    schedule = pattern.format(*clock_time)
    times = due_times(schedule, zone, first)
    begin = datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    after = begin + timedelta(seconds=seconds)
    later = [at for at in times if at > after]
    following = next_time(schedule, zone, after=after)
    assert following is not None
    assert following == later[0] if later else following >= begin + WINDOW_DAYS * DAY


@given(
    zones,
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - on the clock
    st.integers(1, 13),
    st.integers(1, 13),
)
def test_months_are_those_of_the_calendar(
    zone: str, start: datetime, months: int, number: int
) -> None:
    start = start.replace(second=0, microsecond=0)
    schedule, name = f"R/{start.isoformat()}/P{months}M", ZoneInfo(zone)
    at = start.replace(tzinfo=name).astimezone(UTC) - 2 * DAY
    for step in range(number):
        following = next_time(schedule, zone, after=at)
        assert following is not None
        assert following > at
        at = following
        month = start.year * 12 + start.month - 1 + step * months
        shown = following.astimezone(name)
        last = (date(month // 12, month % 12 + 1, 28) + 4 * DAY).replace(day=1) - DAY
        wall = datetime(month // 12, month % 12 + 1, min(start.day, last.day))  # noqa: DTZ001
        wall += timedelta(hours=start.hour, minutes=start.minute)
        assert shown_first(wall, name) == following, shown
