"""Time intervals contain what Alertmanager's do, on the clocks of their location."""

from datetime import UTC, datetime
from typing import Any

import pytest

from alerting.notification.time_intervals import contains, parse_time_intervals, written_intervals


def interval(*entries: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "x", "time_intervals": list(entries)}]


def is_in(entry: dict[str, Any], at: str) -> bool:
    """Return whether a time, which is UTC without an offset, is in an entry."""
    intervals, errors = parse_time_intervals(interval(entry))
    assert errors == {}
    when = datetime.fromisoformat(at)
    return contains(intervals["x"], when if when.tzinfo else when.replace(tzinfo=UTC))


WORK = {"start_time": "09:00", "end_time": "17:00"}


@pytest.mark.parametrize(
    ("entry", "inside", "outside"),
    [
        ({"times": [WORK]}, ["2026-03-02T09:00", "2026-03-02T16:59:59"], ["2026-03-02T17:00"]),
        (
            {"times": [{"start_time": "22:00", "end_time": "24:00"}]},
            ["2026-03-02T23:59:59"],
            ["2026-03-03T00:00", "2026-03-02T21:59:59"],
        ),
        # The 2nd of March 2026 is a Monday.
        ({"weekdays": ["monday:friday"]}, ["2026-03-02T00:00"], ["2026-03-01T23:59"]),
        ({"weekdays": ["Saturday", "sunday"]}, ["2026-03-01T12:00"], ["2026-03-02T00:00"]),
        ({"weekdays": ["sunday:tuesday"]}, ["2026-03-03T12:00"], ["2026-03-04T12:00"]),
        ({"days_of_month": ["1:5"]}, ["2026-03-05T23:59"], ["2026-03-06T00:00"]),
        ({"days_of_month": [15]}, ["2026-03-15T00:00"], ["2026-03-14T23:59"]),
        (
            {"days_of_month": ["-3:-1"]},
            ["2026-02-26T00:00", "2024-02-29T00:00", "2026-03-31T00:00"],
            ["2026-02-25T23:59", "2024-02-26T23:59"],
        ),
        ({"days_of_month": ["29:31"]}, ["2026-03-29T00:00"], ["2026-02-28T00:00"]),
        ({"days_of_month": ["20:-1"]}, ["2026-02-28T00:00"], ["2026-02-19T00:00"]),
        ({"months": ["april:june"]}, ["2026-06-30T12:00"], ["2026-07-01T00:00"]),
        ({"months": ["1:2", 12]}, ["2026-12-01T00:00"], ["2026-11-30T23:59"]),
        ({"years": ["2026:2027"]}, ["2027-12-31T23:59"], ["2028-01-01T00:00"]),
        (
            {"times": [WORK], "weekdays": ["monday"]},
            ["2026-03-02T10:00"],
            ["2026-03-03T10:00", "2026-03-02T08:00"],
        ),
        ({}, ["2026-03-02T10:00"], []),
    ],
)
def test_an_entry_contains_what_all_of_its_ranges_contain(
    entry: dict[str, Any], inside: list[str], outside: list[str]
) -> None:
    assert [at for at in inside if not is_in(entry, at)] == []
    assert [at for at in outside if is_in(entry, at)] == []


def test_days_and_times_are_those_of_the_location() -> None:
    entry = {"times": [WORK], "weekdays": ["monday:friday"], "location": "Europe/Oslo"}
    assert is_in(entry, "2026-01-05T08:00")
    assert not is_in(entry, "2026-01-05T07:59")
    assert is_in(entry, "2026-07-06T07:00")
    assert not is_in(entry, "2026-07-06T15:00")
    assert is_in({"weekdays": ["monday"], "location": "Asia/Tokyo"}, "2026-03-01T15:00")


def test_a_change_of_the_clocks_skips_and_repeats_times() -> None:
    night = {"start_time": "02:00", "end_time": "03:00"}
    entry = {"times": [night], "location": "Europe/Oslo"}
    # On the 29th of March 02:00 to 03:00 does not exist; on the 25th of October it is twice.
    skipped = [
        is_in(entry, f"2026-03-29T{hour:02}:{minute:02}") for hour in (0, 1) for minute in (0, 30)
    ]
    assert not any(skipped)
    repeated = [is_in(entry, f"2026-10-25T{hour:02}:30") for hour in range(4)]
    assert repeated == [True, True, False, False]


def test_one_entry_is_enough() -> None:
    intervals, _ = parse_time_intervals(interval({"weekdays": ["sunday"]}, {"months": ["march"]}))
    assert contains(intervals["x"], datetime(2026, 3, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"times": [{"start_time": "17:00", "end_time": "09:00"}]}, "two entries"),
        ({"times": [{"start_time": "9:00", "end_time": "24:01"}]}, "not a time"),
        ({"times": [{"start_time": "09:00"}]}, "end_time"),
        ({"times": "09:00"}, "list"),
        ({"weekdays": ["saturday:sunday"]}, "begins with Sunday"),
        ({"weekdays": ["funday"]}, "not a weekday"),
        ({"days_of_month": ["0"]}, "no day 0"),
        ({"days_of_month": ["-1:5"]}, "before it begins"),
        ({"days_of_month": ["25:-10"]}, "before it begins"),
        ({"days_of_month": [65]}, "quotes"),
        ({"months": ["13"]}, "not a month"),
        ({"years": ["2027:2026"]}, "before it begins"),
        ({"years": ["x" * 100]}, "not a year"),
        ({"location": "Oslo"}, "time zone"),
        ({"time_zone": "UTC"}, "location"),
        ("monday", "keys"),
    ],
)
def test_what_is_wrong_is_named_with_the_interval(entry: Any, reason: str) -> None:  # noqa: ANN401 - any YAML
    _, errors = parse_time_intervals(interval(entry))
    assert list(errors) == ["time_intervals.0"]
    (text,) = errors["time_intervals.0"]
    assert "x" in text
    assert reason in text


@pytest.mark.parametrize("data", [{}, "x", [{}], [{"name": "", "time_intervals": [{}]}], [1] * 51])
def test_another_structure_is_refused(data: object) -> None:
    _, errors = parse_time_intervals(data)
    assert errors


def test_a_repeated_name_is_refused() -> None:
    _, errors = parse_time_intervals(interval({}) * 2)
    assert list(errors) == ["time_intervals.1"]


def test_times_that_yaml_reads_as_minutes_are_times() -> None:
    data = interval({"times": [{"start_time": 22 * 60, "end_time": 24 * 60}]})
    intervals, errors = parse_time_intervals(data)
    assert errors == {}
    assert contains(intervals["x"], datetime(2026, 3, 2, 23, tzinfo=UTC))
    (written,) = written_intervals(data)[0]["time_intervals"]
    assert written["times"] == [{"start_time": "22:00", "end_time": "24:00"}]
