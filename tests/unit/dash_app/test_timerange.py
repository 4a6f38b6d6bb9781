from datetime import timedelta
from urllib.parse import urlencode

import pytest

from core.clock import NS_PER_SECOND, to_ns
from dash_app.timerange import RANGES, Controls, span_between, step_seconds
from tests.cast import NOON


def test_the_query_string_is_read_back_as_it_was_written() -> None:
    controls = Controls(range_key="6h", refresh_key="off")
    assert Controls.parse(controls.search) == controls


@pytest.mark.parametrize("search", [None, "", "?range=9y&refresh=now", "?range="])
def test_an_unknown_choice_falls_back_to_the_default(search: str | None) -> None:
    assert Controls.parse(search) == Controls(range_key="1h", refresh_key="5s")


@pytest.mark.parametrize("key", RANGES)
def test_a_range_has_at_most_about_300_points_and_no_step_under_a_sample(key: str) -> None:
    span = Controls(range_key=key).span(NOON)
    step = span.step_ns // NS_PER_SECOND
    assert step >= 10
    assert (span.end_ns - span.start_ns) / span.step_ns <= 301


def test_a_span_starts_on_the_start_of_a_window() -> None:
    span = Controls(range_key="6h").span(NOON + timedelta(seconds=7))
    assert span.start_ns % span.step_ns == 0


def test_a_run_of_seconds_is_shown_as_a_minute() -> None:
    span = span_between(NOON, NOON + timedelta(seconds=3))
    assert span.end_ns == to_ns(NOON + timedelta(minutes=1))


def test_a_month_has_a_step_of_hours() -> None:
    assert step_seconds(30 * 24 * 3600) == 4 * 3600


def test_a_window_in_the_address_does_not_move() -> None:
    controls = Controls.parse("?range=1h&refresh=5s&from=1795291200000&to=1795292400000")
    early, late = controls.span(NOON), controls.span(NOON + timedelta(days=1))
    assert early == late
    assert early.end_ns - early.start_ns == 1200 * NS_PER_SECOND


def test_a_window_is_carried_to_another_tier_and_left_again() -> None:
    controls = Controls(range_key="6h", window=(1795291200000, 1795292400000))
    assert Controls.parse(controls.search) == controls
    assert controls.without_window() == Controls(range_key="6h")


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../../etc/passwd", "\0"])
def test_an_unknown_zone_is_the_users(zone: str) -> None:
    search = f"?{urlencode({'tz': zone})}"
    assert Controls.parse(search, user_zone="Asia/Kolkata").zone_name == "Asia/Kolkata"


def test_the_last_window_can_be_shown_in_every_zone() -> None:
    end_ms = 253_402_041_599_000
    search = f"?from={end_ms - 60_000}&to={end_ms}"
    controls = Controls.parse(search, user_zone="Pacific/Kiritimati")
    assert controls.window_text(NOON) == "Dec 29, 9999 13:58 to 13:59 UTC+14"
    assert Controls.parse(f"?from={end_ms - 60_000}&to={end_ms + 1}").window is None


def test_an_address_may_name_utc_instead_of_the_users_zone() -> None:
    controls = Controls.parse("?tz=UTC", user_zone="Asia/Kolkata")
    assert controls.zone_name == "UTC"
    assert "tz=UTC" in controls.search


def test_a_window_over_a_change_of_the_clock_names_both_zones() -> None:
    # 1 November 2026 from 04:30 to 08:00 UTC; New York changes at 06:00 UTC.
    window = (1793507400000, 1793520000000)
    controls = Controls(window=window, user_zone="America/New_York")
    assert controls.window_text(NOON) == "Nov 01 00:30 EDT to 03:00 EST"


def test_a_page_is_compared_with_an_earlier_period_of_the_same_width() -> None:
    controls = Controls.parse("?range=6h&compare=previous&tz=Asia/Tokyo&kiosk=1&text=dgx")
    assert Controls.parse(controls.whole_search) == controls
    span, earlier = controls.span(NOON), controls.earlier(NOON)
    assert earlier is not None
    assert span.start_ns - earlier.start_ns == 6 * 3600 * NS_PER_SECOND
    assert earlier.end_ns - earlier.start_ns == span.end_ns - span.start_ns
    assert Controls(compare="gpu-1").earlier(NOON) is None


def test_a_window_is_shown_in_utc() -> None:
    within_a_day = Controls(window=(1795291200000, 1795292400000))
    over_midnight = Controls(window=(1795291200000, 1795377600000))
    assert within_a_day.window_text(NOON) == "Nov 21 20:00 to 20:20 UTC"
    assert over_midnight.window_text(NOON) == "Nov 21 20:00 to Nov 22 20:00 UTC"
    a_year_later = NOON + timedelta(days=365)
    assert within_a_day.window_text(a_year_later) == "Nov 21, 2026 20:00 to 20:20 UTC"


@pytest.mark.parametrize(
    "search",
    [
        "?from=1",
        "?from=5&to=5",
        "?from=9&to=5",
        "?from=-5&to=5",
        "?from=a&to=b",
        "?from=1&to=9" + "9" * 30,
    ],
)
def test_an_invalid_window_is_ignored(search: str) -> None:
    assert Controls.parse(search).window is None


@pytest.mark.parametrize(("width_ms", "clamped_ms"), [(1, 60_000), (10**12, 2 * 366 * 86_400_000)])
def test_the_width_of_a_window_is_clamped(width_ms: int, clamped_ms: int) -> None:
    end_ms = 1795292400000
    window = Controls.parse(f"?from={end_ms - width_ms}&to={end_ms}").window
    assert window == (end_ms - clamped_ms, end_ms)
