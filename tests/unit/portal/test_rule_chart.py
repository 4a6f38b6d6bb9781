"""The picture of the rule in the form: series, levels, and why there is none."""

import re
from datetime import timedelta

import pytest

from core.clock import to_ns
from portal.time_zone import ZONE_COOKIE
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from timeseries.points import Point
from timeseries.store import Store, write

FORM: dict[str, object] = {
    "metric": "gpu.temperature_celsius",
    "aggregate": "avg",
    "window_seconds": "1m",
    "group_by": "gpu",
    "comparison": ">",
    "warning_threshold": "70",
    "critical_threshold": "80",
}


@pytest.fixture(autouse=True)
def _heat(store: Store, cast: Cast, clock: FrozenClock) -> None:
    """Half an hour of two GPUs of acme, of which the second is too hot."""
    points = [
        Point(
            "gpu",
            {"gpu": gpu},
            {"temperature_celsius": celsius},
            to_ns(clock.now - timedelta(minutes=minutes)) - 1,
        )
        for minutes in range(30)
        for gpu, celsius in (("0", 50.0), ("1", 75.0))
    ]
    write(store, points, identity={"tenant": cast.acme.id, "appliance": "a1"})


def chart(browser: Browser, **changes: object) -> str:
    answer = browser.post("/rules/chart?width=600", FORM | changes)
    assert answer.status_code == 200
    return answer.text


def test_the_series_are_drawn_worst_first_with_their_levels(bob: Browser) -> None:
    drawn = chart(bob)
    lines = re.findall(r'<polyline points="([^"]+)"', drawn)
    heights = [{pair.split(",")[1] for pair in line.split()} for line in lines]
    levels = {
        severity: float(y)
        for severity, y in re.findall(r'vd-plot-level vd-plot-(\w+)"[^>]* y1="([^"]+)"', drawn)
    }
    assert [len(line.split()) for line in lines] == [30, 30]
    assert [len(ys) for ys in heights] == [1, 1]  # both are level
    hot, cool = (float(ys.pop()) for ys in heights)
    # From the top: critical 80, 75 degrees, warning 70, 50 degrees.
    assert levels["critical"] < hot < levels["warning"] < cool
    assert hot - levels["critical"] == pytest.approx(levels["warning"] - hot, abs=0.2)
    assert "1 of 2 series breaches a threshold now" in drawn


def test_an_expression_that_was_changed_is_drawn(bob: Browser) -> None:
    text = "max(gpu.temperature_celsius{gpu=0}) over 1m by gpu > 70"
    drawn = chart(bob, expression=text, shown_expression="")
    assert len(re.findall("<polyline", drawn)) == 1
    assert "75" not in re.sub(r'points="[^"]*"', "", drawn.partition("</svg>")[2])


@pytest.mark.parametrize(
    "changes", [{"metric": "gpu.power_watts"}, {"filters": "gpu=7"}, {"filters": "rack=b1"}]
)
def test_a_rule_that_matches_nothing_is_warned_of(bob: Browser, changes: dict[str, object]) -> None:
    drawn = chart(bob, **changes)
    assert "vd-warning" in drawn
    assert "<svg" not in drawn


def test_another_tenants_series_match_nothing(charlie: Browser) -> None:
    assert "vd-warning" in chart(charlie)


@pytest.mark.parametrize(
    "changes", [{"metric": ""}, {"metric": "temperature"}, {"window_seconds": "soon"}]
)
def test_an_unfinished_rule_is_not_drawn(bob: Browser, changes: dict[str, object]) -> None:
    drawn = chart(bob, **changes)
    assert "<svg" not in drawn
    assert "vd-warning" not in drawn


def test_the_times_below_a_chart_are_in_the_users_zone(bob: Browser) -> None:
    bob.client.set_cookie(ZONE_COOKIE, "Asia/Kolkata")
    times = re.findall(r"(\d\d:\d\d) IST</text>", chart(bob))
    # Noon in UTC is 17:30, and the chart ends there.
    assert len(times) == 1
    assert "16:30" <= times[0] <= "17:30"
    assert "Asia/Kolkata." in chart(bob)


def test_a_forecast_shows_its_trend(bob: Browser) -> None:
    drawn = chart(bob, aggregate="forecast", window_seconds="30m", ahead_seconds="1h")
    assert drawn.count("vd-plot-trend") == 2
