"""Names of time zones, and the times that their clocks show."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from core.zones import instant_text, round_times, zone_key, zone_of

AT = datetime(2026, 11, 25, 13, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Asia/Kolkata", "2026-11-25 18:48 IST"),
        ("America/New_York", "2026-11-25 08:18 EST"),
        ("America/Sao_Paulo", "2026-11-25 10:18 UTC-03"),
        ("Asia/Kathmandu", "2026-11-25 19:03 UTC+0545"),
        ("UTC", "2026-11-25 13:18 UTC"),
        ("Mars/Olympus", "2026-11-25 13:18 UTC"),
    ],
)
def test_an_instant_has_the_name_of_its_zone(name: str, text: str) -> None:
    assert instant_text(AT, zone_of(name)) == text


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "\0", "x" * 65, "Asia"])
def test_an_unknown_zone_has_no_name(name: str) -> None:
    assert zone_key(name) == ""


def test_a_zone_that_chromium_calls_by_its_former_name_has_its_current_one() -> None:
    assert zone_key("Asia/Calcutta") == "Asia/Kolkata"


def test_round_times_are_round_in_a_zone_with_half_an_hour_and_complete_over_a_change() -> None:
    step = timedelta(hours=2)
    kolkata = round_times(AT, AT + timedelta(hours=4), step, ZoneInfo("Asia/Kolkata"))
    assert [f"{at:%H:%M}" for at in kolkata] == ["20:00", "22:00"]
    change_at = datetime(2026, 11, 1, 6, tzinfo=UTC)
    hour = timedelta(hours=1)
    autumn = round_times(change_at - hour, change_at + hour, hour, ZoneInfo("America/New_York"))
    assert [f"{at:%H:%M %Z}" for at in autumn] == ["01:00 EDT", "01:00 EST", "02:00 EST"]
