"""When schedules are due."""

from datetime import UTC, datetime

import pytest

from core.schedule_times import check_schedule, check_time_zone, next_time, times_between


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        ("0 2 * * *", "UTC", "2026-06-01T12:00Z", "2026-06-02T02:00Z"),
        ("0 2 * * *", "Europe/Oslo", "2026-06-01T12:00Z", "2026-06-02T00:00Z"),
        ("0 9 * * 1", "UTC", "2026-11-22T12:00Z", "2026-11-23T09:00Z"),  # a Monday
        # 02:30 doesn't exist on the day that summer time starts, and occurs twice when it ends.
        ("30 2 * * *", "Europe/Oslo", "2026-03-28T12:00Z", "2026-03-29T01:00Z"),
        ("30 2 * * *", "Europe/Oslo", "2026-10-25T00:30Z", "2026-10-26T01:30Z"),
        ("R/2026-01-01T00:00Z/PT6H", "UTC", "2026-01-01T06:00Z", "2026-01-01T12:00Z"),
        ("R/2026-01-01T00:00Z/PT6H", "UTC", "2025-01-01T06:00Z", "2026-01-01T00:00Z"),
        ("R/2026-06-01T08:00/P1DT12H", "Europe/Oslo", "2026-06-01T12:00Z", "2026-06-02T18:00Z"),
        # A day is one of the calendar, unless the start names an offset.
        ("R/2026-03-27T02:00/P1D", "Europe/Oslo", "2026-03-28T01:00Z", "2026-03-29T01:00Z"),
        ("R/2026-03-27T02:00/P1D", "Europe/Oslo", "2026-03-29T01:00Z", "2026-03-30T00:00Z"),
        ("R/2026-03-27T02:00/P1D", "Europe/Oslo", "2026-10-25T00:30Z", "2026-10-26T01:00Z"),
        ("R/2026-03-27T02:00+01:00/P1D", "Europe/Oslo", "2026-03-29T12:00Z", "2026-03-30T01:00Z"),
        ("R/2026-03-27T02:00/PT24H", "Europe/Oslo", "2026-03-29T12:00Z", "2026-03-30T01:00Z"),
        ("R/2026-01-31T08:00/P1M", "UTC", "2026-01-31T08:00Z", "2026-02-28T08:00Z"),
        ("R/2026-01-31T08:00/P1M", "UTC", "2026-02-28T08:00Z", "2026-03-31T08:00Z"),
        ("R/2024-02-29T08:00/P1Y", "UTC", "2026-12-01T08:00Z", "2027-02-28T08:00Z"),
        ("R/2024-02-29T08:00/P1Y", "UTC", "2027-12-01T08:00Z", "2028-02-29T08:00Z"),
        ("R/2026-01-01T00:00/P1M1DT6H", "UTC", "2026-01-01T00:00Z", "2026-02-02T06:00Z"),
        ("R3/2026-01-31T00:00Z/P1M", "UTC", "2026-03-30T00:00Z", "2026-03-31T00:00Z"),
        ("R3/2026-01-31T00:00Z/P1M", "UTC", "2026-03-31T00:00Z", None),
        ("R/9999-12-31T23:59Z/P1M", "UTC", "9999-12-31T23:59Z", None),
        # 30 December 2011 did not take place in Samoa.
        ("R/2011-12-29T00:00/P1D", "Pacific/Apia", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ("R/2011-12-29T00:00/P1D", "Pacific/Apia", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        ("@daily", "Europe/Oslo", "2026-06-01T12:00Z", "2026-06-01T22:00Z"),
        ("@Hourly", "UTC", "2026-06-01T12:00Z", "2026-06-01T13:00Z"),
        ("@weekly", "UTC", "2026-06-01T12:00Z", "2026-06-07T00:00Z"),
        ("@monthly", "UTC", "2026-06-01T12:00Z", "2026-07-01T00:00Z"),
        ("@yearly", "UTC", "2026-06-01T12:00Z", "2027-01-01T00:00Z"),
        # Within the second 02:00 to 03:00, what was due in the first one is over.
        ("45 2 * * *", "Europe/Oslo", "2026-10-25T01:30Z", "2026-10-26T01:45Z"),
        ("R2/2026-01-01T00:00Z/P1W", "UTC", "2026-01-01T00:00Z", "2026-01-08T00:00Z"),
        ("R2/2026-01-01T00:00Z/P1W", "UTC", "2026-01-08T00:00Z", None),
        ("R/9999-12-31T23:59Z/P99999D", "UTC", "9999-12-31T23:59Z", None),
    ],
)
def test_the_next_time_is_found(schedule: str, zone: str, after: str, expected: str | None) -> None:
    assert next_time(schedule, zone, after=at(after)) == (expected and at(expected))


@pytest.mark.parametrize(
    "schedule",
    [
        *("", "hourly", "* * * *", "* * * * * *", "0 25 * * *", "0 0 30 2 *"),
        *("R/2026-01-01T00:00Z/PT30S", "R/2026-01-01T00:00Z/P", "R/soon/PT1H", "R/PT1H"),
        *("@reboot", "@daily @daily", "R/2026-01-01T00:00Z/P1DT", "R/2026-01-01T00:00Z/P0M"),
        "0 " * 200,
    ],
)
def test_other_schedules_are_refused(schedule: str) -> None:
    with pytest.raises(ValueError, match=r"schedule|minute"):
        check_schedule(schedule)


def test_time_zones_are_those_of_the_tz_database() -> None:
    check_time_zone("America/New_York")
    with pytest.raises(ValueError, match="Mars"):
        check_time_zone("Mars/Base")
    with pytest.raises(ValueError, match="Mars"):
        next_time("@daily", "Mars/Base", after=at("2026-01-01T00:00Z"))


def test_the_times_of_an_outage_are_counted_up_to_a_bound() -> None:
    first, until = at("2026-01-01T00:00Z"), at("2026-01-01T02:30Z")
    hours = [
        due_at.hour
        for due_at in times_between("0 * * * *", "UTC", first=first, until=until, max_count=9)
    ]
    assert hours == [0, 1, 2]
    assert len(list(times_between("* * * * *", "UTC", first=first, until=until, max_count=9))) == 9
