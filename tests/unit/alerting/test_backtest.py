"""Backtests: how often and how long a rule would have fired."""

from dataclasses import replace
from datetime import timedelta

import pytest

from alerting.backtest import backtest_rule
from alerting.rule_text import parse_expression
from core.clock import to_ns
from core.errors import InvalidInputError
from tests.cast import NOON, Cast, scope_of
from timeseries.points import Point
from timeseries.store import Store, write

HOT = "max(gpu.temperature_celsius) over 5m by gpu > 85 reset 80 for 5m"


def fill(store: Store, cast: Cast, gpu: str, celsius: dict[int, float]) -> None:
    """Write a day of 50 °C every 5 minutes; other values from some minutes before noon on."""
    value = 50.0
    points = []
    for minutes in range(1440, 0, -5):
        value = celsius.get(minutes, value)
        at_ns = to_ns(NOON - timedelta(minutes=minutes))
        points.append(Point("gpu", {"gpu": gpu}, {"temperature_celsius": value}, at_ns))
    assert write(store, points, identity={"tenant": cast.acme.id, "appliance": "a1"}) == []


def test_a_backtest_counts_and_measures_what_would_have_fired(store: Store, cast: Cast) -> None:
    # Hot for an hour, then between the levels for half of one; and again until noon.
    fill(store, cast, "0", {600: 90.0, 540: 83.0, 510: 50.0, 60: 95.0})
    fill(store, cast, "1", {600: 84.0})
    fill(store, cast, "2", {300: 90.0, 295: 50.0})

    found = backtest_rule(store, scope_of(cast.bob), parse_expression(HOT), now=NOON, days=1)

    assert (found.step_seconds, found.groups) == (300.0, 3)
    (firings,) = found.firings
    assert firings.tags == {"appliance": "a1", "gpu": "0"}
    # An evaluation is at the end of its step, and `for` is one step more.
    first, second = firings.periods
    assert first[0] == NOON - timedelta(minutes=590)
    assert (first[1] - first[0]).total_seconds() == 85 * 60
    assert second == (NOON - timedelta(minutes=50), NOON)
    assert firings.firing_seconds == (85 + 50) * 60
    assert firings.longest_seconds == 85 * 60


def test_a_backtest_reads_samples_of_its_tenant_only(store: Store, cast: Cast) -> None:
    fill(store, cast, "0", {600: 90.0})
    rule = parse_expression(HOT)
    found = backtest_rule(store, scope_of(cast.charlie), rule, now=NOON, days=1)
    assert (found.groups, found.firings) == (0, [])


def test_what_can_not_be_replayed_is_an_error(store: Store, cast: Cast) -> None:
    rule = parse_expression(HOT)
    forecast = replace(rule, aggregate="forecast", ahead_seconds=60.0)
    for wrong, days, field in ((forecast, 1, "aggregate"), (rule, 31, "days")):
        with pytest.raises(InvalidInputError) as caught:
            backtest_rule(store, scope_of(cast.bob), wrong, now=NOON, days=days)
        assert set(caught.value.errors) == {field}
