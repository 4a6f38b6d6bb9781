"""Backtests: how often and how long a rule would have fired."""

from dataclasses import replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerting.evaluation.expression import forecast
from alerting.language.text import parse_expression
from alerting.machine import AlertView, next_state
from alerting.rules.backtest import backtest_rule, rolling_forecast
from alerting.states import AlertState, Comparison, NoDataPolicy
from core.clock import NS_PER_SECOND, to_ns
from core.errors import InvalidInputError
from tenants.models import Role
from tenants.scope import Scope
from tests.cast import NOON, Cast, scope_of
from timeseries.columns import SeriesColumns, columns_of
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, write

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

    backtest = backtest_rule(store, scope_of(cast.bob), parse_expression(HOT), now=NOON, days=1)

    assert (backtest.step_seconds, backtest.groups) == (300.0, 3)
    (firings,) = backtest.firings
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
    backtest = backtest_rule(store, scope_of(cast.charlie), rule, now=NOON, days=1)
    assert (backtest.groups, backtest.firings) == (0, [])


def test_what_can_not_be_replayed_is_an_error(store: Store, cast: Cast) -> None:
    rule = parse_expression(HOT)
    forecast = replace(rule, aggregate="forecast", ahead_seconds=60.0, window_seconds=7200.0)
    for wrong, days, field in ((forecast, 30, "window_seconds"), (rule, 31, "days")):
        with pytest.raises(InvalidInputError) as caught:
            backtest_rule(store, scope_of(cast.bob), wrong, now=NOON, days=days)
        assert set(caught.value.errors) == {field}


def test_a_forecast_is_replayed(store: Store, cast: Cast) -> None:
    # It rises by 1 °C each 5 minutes, from 50 °C ten hours before noon on; and one that does not.
    rising = {600 - 5 * step: 50.0 + step for step in range(120)}
    fill(store, cast, "0", rising)
    fill(store, cast, "1", {600: 60.0})
    text = "forecast(gpu.temperature_celsius) ahead 1h over 1h by gpu > 120.5"

    backtest = backtest_rule(store, scope_of(cast.bob), parse_expression(text), now=NOON, days=1)

    (firings,) = backtest.firings
    assert firings.tags["gpu"] == "0"
    # A line through values t steps after its begin has 50 + t: the last step's begin, one step and
    # 12 more ahead. 50 + t + 13 > 120.5 first for t = 58, evaluated at the end of that step.
    assert firings.periods == [(NOON - timedelta(minutes=600 - 5 * 59), NOON)]


NUMBERS = st.lists(st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6)), min_size=1, max_size=80)


@given(values=NUMBERS, window=st.integers(3, 60), ahead=st.floats(0, 100))
def test_rolling_forecasts_are_those_of_each_window(
    values: list[float], window: int, ahead: float
) -> None:
    forecasts = rolling_forecast(np.array([values]), window=window, ahead=ahead)[0]
    for step in range(len(values)):
        first = max(0, step - window + 1)
        pairs = [(at, values[at]) for at in range(first, step + 1) if isfinite(values[at])]
        is_known = len(pairs) >= 30 or (
            len(pairs) >= 3 and (pairs[-1][0] - pairs[0][0]) * 2 >= window
        )
        if not is_known:
            assert not isfinite(forecasts[step])
            continue
        times, finite_values = zip(
            *((at * NS_PER_SECOND, value) for at, value in pairs), strict=True
        )
        expected = forecast(times, finite_values, at_ns=round((step + 1 + ahead) * NS_PER_SECOND))
        assert forecasts[step] == pytest.approx(expected, rel=1e-6, abs=1e-2)


class Recorded:
    """A store that has one series, whatever it is asked."""

    def __init__(self, values: dict[int, float]) -> None:
        self._values = values

    def query_columns(self, query: RangeQuery) -> list[SeriesColumns]:
        tags = {"appliance": "a1", "gpu": "0"}
        times, values = list(self._values), list(self._values.values())
        return columns_of([Series(query.fields[0], tags, times, values)])


SPANS = st.sampled_from([0.0, 300.0, 600.0, 3600.0])


@given(
    values=st.dictionaries(
        st.integers(0, 287),
        st.sampled_from([50.0, 66.0, 73.0, 79.0, 82.0, 86.0, 92.0, float("nan")]),
    ),
    for_seconds=SPANS,
    keep_firing_seconds=SPANS,
    no_data=st.sampled_from(NoDataPolicy),
    has_resets=st.booleans(),
    has_info=st.booleans(),
    is_above=st.booleans(),
)
def test_a_backtest_finds_what_the_state_machine_does_step_by_step(
    values: dict[int, float],
    for_seconds: float,
    keep_firing_seconds: float,
    no_data: NoDataPolicy,
    *,
    has_resets: bool,
    has_info: bool,
    is_above: bool,
) -> None:
    info, info_reset = (70.0, 65.0) if is_above else (88.0, 91.0)
    levels = [85.0, 90.0, 80.0, 87.0] if is_above else [85.0, 81.0, 90.0, 84.0]
    warning, critical, warning_reset, critical_reset = levels
    rule = replace(
        parse_expression(HOT),
        comparison=Comparison.ABOVE if is_above else Comparison.BELOW,
        info_threshold=info if has_info else None,
        warning_threshold=warning,
        critical_threshold=critical,
        info_reset=info_reset if has_info and has_resets else None,
        warning_reset=warning_reset if has_resets else None,
        critical_reset=critical_reset if has_resets else None,
        for_seconds=for_seconds,
        keep_firing_seconds=keep_firing_seconds,
        no_data=no_data,
    )
    start = NOON - timedelta(days=1)
    ends = {number: start + timedelta(minutes=5 * (number + 1)) for number in range(288)}
    samples = {
        to_ns(ends[number] - timedelta(minutes=5)): value
        for number, value in sorted(values.items())
    }
    store: Any = Recorded(samples)

    scope = Scope(user_id="bob", role=Role.MEMBER, tenant_id="acme")
    backtest = backtest_rule(store, scope, rule, now=NOON, days=1)

    alert: AlertView | None = None
    expected: list[tuple[datetime, datetime]] = []
    since = None
    for number, now in ends.items():
        value = values.get(number)
        is_known = value is not None and isfinite(value)
        if alert is None and not is_known:
            continue  # no group yet
        alert = next_state(alert, value if is_known else None, rule, now=now).after
        if alert.state is AlertState.FIRING:
            since = since or now
        elif since is not None:
            expected.append((since, now))
            since = None
    expected += [(since, NOON)] if since else []
    assert [period for firings in backtest.firings for period in firings.periods] == expected
