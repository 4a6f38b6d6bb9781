"""Rules with matchers, two conditions, and comparisons with another window."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.expression import preview_rule, read_groups
from alerting.evaluation.rule_series import read_series
from alerting.language.text import parse_expression
from alerting.models import Alert, Rule
from alerting.rule_request import RuleRequest
from alerting.rules.backtest import backtest_rule
from alerting.rules.service import create_rule, needed_fields
from alerting.states import AlertState, Severity
from core.clock import to_ns
from core.db import SessionFactory, transaction
from tests.cast import NOON, Cast, scope_of
from tests.unit.alerting.helpers import evaluate_rules
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, write

HOT_AND_BUSY = (
    "avg(gpu.temperature_celsius) over 1m by gpu > 80 °C reset 70 °C "
    "and avg(gpu.utilization_percent) over 1m > 50 %"
)
Sample = tuple[datetime, str, dict[str, float]]
UNUSUAL = "avg(gpu.power_watts) over 5m / avg(gpu.power_watts) over 1h offset 1h by gpu > 1.5"


def rule(text: str) -> RuleRequest:
    return replace(parse_expression(text), name="x")


def fill(store: Store, tenant: str, samples: Iterable[Sample]) -> None:
    """Write the fields of some GPUs of one appliance."""
    points = [Point("gpu", {"gpu": gpu}, dict(fields), to_ns(at)) for at, gpu, fields in samples]
    assert write(store, points, identity={"tenant": tenant, "appliance": "a1"}) == []


def gpu_at(at: datetime, gpu: str, celsius: float, percent: float) -> Sample:
    return at, gpu, {"temperature_celsius": celsius, "utilization_percent": percent}


def groups(store: Store, tenant: str, text: str, *, only_breaches: bool = False) -> dict[str, bool]:
    """Return the GPUs of a rule at noon, and whether it would fire."""
    wanted = rule(text)
    rule_groups = read_groups(
        store, wanted, tenants=(tenant,), now=NOON, only_breaches=only_breaches
    )
    return {
        group.tags["gpu"]: group.holds
        and wanted.comparison.is_breached(group.value, wanted.warning_threshold or 0.0)
        for group in rule_groups
    }


@pytest.mark.parametrize("only_breaches", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("comparison", "firing"),
    [
        (">", {"2"}),
        (">=", {"1", "2"}),
        ("<", {"0"}),
        ("<=", {"0", "1"}),
        ("==", {"1"}),
        ("!=", {"0", "2"}),
    ],
)
def test_each_comparison_breaches_its_values(
    store: Store, cast: Cast, comparison: str, firing: set[str], *, only_breaches: bool
) -> None:
    at = NOON - timedelta(seconds=30)
    fill(store, cast.acme.id, [gpu_at(at, str(number), 60.0 + number, 0.0) for number in range(3)])
    text = f"last(gpu.temperature_celsius) over 1m by gpu {comparison} 61"
    fires_by_gpu = groups(store, cast.acme.id, text, only_breaches=only_breaches)
    assert {gpu for gpu, is_firing in fires_by_gpu.items() if is_firing} == firing


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ('gpu!="0"', {"1", "10"}),
        ('gpu=~"1.*"', {"1", "10"}),
        ('gpu=~"1"', {"1"}),
        ('gpu!~"1.+", gpu!="0"', {"1"}),
        ('job=""', {"0", "1", "10"}),
        ('job!=""', set()),
    ],
)
def test_matchers_choose_series(store: Store, cast: Cast, filters: str, expected: set[str]) -> None:
    at = NOON - timedelta(seconds=30)
    fill(store, cast.acme.id, [gpu_at(at, gpu, 60.0, 0.0) for gpu in ("0", "1", "10")])
    text = f"last(gpu.temperature_celsius{{{filters}}}) over 1m by gpu > 5"
    assert groups(store, cast.acme.id, text).keys() == expected


def test_a_pattern_that_others_would_backtrack_on_is_evaluated_at_once(
    store: Store, cast: Cast
) -> None:
    tags = {"gpu": "a" * 2000 + "!"}
    point = Point("gpu", tags, {"power_watts": 1.0}, to_ns(NOON - timedelta(seconds=1)))
    write(store, [point], identity={"tenant": cast.acme.id, "appliance": "a1"})
    assert groups(store, cast.acme.id, 'last(gpu.power_watts{gpu=~"(a+)+b"}) by gpu > 0') == {}


def test_a_rule_fires_only_where_both_conditions_hold(store: Store, cast: Cast) -> None:
    at = NOON - timedelta(seconds=30)
    samples = [
        gpu_at(at, "0", 90.0, 90.0),
        gpu_at(at, "1", 90.0, 10.0),
        gpu_at(at, "2", 60.0, 90.0),
    ]
    fill(store, cast.acme.id, [*samples, (at, "3", {"temperature_celsius": 90.0})])
    firing = {"0": True, "1": False, "2": False, "3": False}
    assert groups(store, cast.acme.id, HOT_AND_BUSY) == firing
    previewed = preview_rule(store, scope_of(cast.bob), rule(HOT_AND_BUSY), now=NOON)
    assert [group.severity for group in previewed] == [Severity.WARNING, None, None, None]
    series = read_series(store, rule(HOT_AND_BUSY), tenants=(cast.acme.id,), end=NOON)
    assert (series.groups, series.breaching) == (4, 1)


def test_a_second_condition_may_be_of_fewer_tags(store: Store, cast: Cast) -> None:
    at = NOON - timedelta(seconds=30)
    fill(store, cast.acme.id, [gpu_at(at, "0", 90.0, 0.0), gpu_at(at, "1", 95.0, 0.0)])
    point = Point("memory", {}, {"used_percent": 99.0}, to_ns(at))
    write(store, [point], identity={"tenant": cast.acme.id, "appliance": "a1"})
    text = "max(gpu.temperature_celsius) by gpu > 80 and max(memory.used_percent) by appliance"
    assert groups(store, cast.acme.id, f"{text} > 90") == {"0": True, "1": True}
    assert groups(store, cast.acme.id, f"{text} > 99") == {"0": False, "1": False}


class CountingStore:
    """A store that counts its range queries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.measured: list[tuple[str, ...]] = []

    def query_range(self, query: RangeQuery) -> list[Series]:
        self.measured.append(query.fields)
        return self._store.query_range(query)


def test_the_second_condition_is_read_only_if_the_first_one_may_hold(
    store: Store, cast: Cast
) -> None:
    at = NOON - timedelta(seconds=30)
    fill(store, cast.acme.id, [gpu_at(at, "0", 69.0, 90.0)])
    counting: Store = CountingStore(store)  # type: ignore[assignment] # rules only read ranges
    read_groups(counting, rule(HOT_AND_BUSY), tenants=(cast.acme.id,), now=NOON)
    # Between the threshold and its reset, an alert that fires depends on the second one.
    fill(store, cast.acme.id, [gpu_at(at, "0", 75.0, 90.0)])
    read_groups(counting, rule(HOT_AND_BUSY), tenants=(cast.acme.id,), now=NOON)
    assert counting.measured == [  # type: ignore[attr-defined] # as above
        ("temperature_celsius",),
        ("temperature_celsius",),
        ("utilization_percent",),
    ]


def day_of_power(now: datetime, watts: dict[str, float]) -> list[Sample]:
    """100 W each minute of two hours, and other watts in the last five minutes."""
    return [
        (
            now - timedelta(minutes=minutes),
            gpu,
            {"power_watts": 100.0 if minutes > 5 else latest},
        )
        for gpu, latest in watts.items()
        for minutes in range(1, 121)
    ]


def test_a_value_is_compared_with_another_window(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id, day_of_power(NOON, {"0": 160.0, "1": 140.0}))
    fill(store, cast.acme.id, [(NOON - timedelta(minutes=1), "2", {"power_watts": 500.0})])
    values = {
        group.tags["gpu"]: group.value
        for group in read_groups(store, rule(UNUSUAL), tenants=(cast.acme.id,), now=NOON)
    }
    # There is nothing to compare the third GPU with.
    assert values == {"0": pytest.approx(1.6), "1": pytest.approx(1.4)}
    difference = UNUSUAL.replace("/", "-")
    assert groups(store, cast.acme.id, difference) == {"0": True, "1": True}


def test_another_metric_may_be_the_limit(store: Store, cast: Cast) -> None:
    at = NOON - timedelta(seconds=30)
    limits = {"0": (88.0, 90.0), "1": (88.0, 105.0)}
    fill(
        store,
        cast.acme.id,
        [
            (at, gpu, {"temperature_celsius": celsius, "slowdown_celsius": limit})
            for gpu, (celsius, limit) in limits.items()
        ],
    )
    text = (
        "max(gpu.temperature_celsius) over 5m - last(gpu.slowdown_celsius) over 1h by gpu > -5 °C"
    )
    assert groups(store, cast.acme.id, text) == {"0": True, "1": False}


def test_the_series_of_a_rule_are_compared_at_each_step(store: Store, cast: Cast) -> None:
    fill(store, cast.acme.id, day_of_power(NOON, {"0": 160.0}))
    start = NOON - timedelta(minutes=30)
    series = read_series(store, rule(UNUSUAL), tenants=(cast.acme.id,), start=start, end=NOON)
    (line,) = series.lines
    assert line.values[0] == pytest.approx(1.0)
    assert line.values[-1] == pytest.approx(1.6)
    assert series.breaching == 1


def test_a_backtest_replays_both_conditions(store: Store, cast: Cast) -> None:
    # Hot for two hours, busy in the second one of them only.
    fill(
        store,
        cast.acme.id,
        [
            gpu_at(
                NOON - timedelta(minutes=minutes),
                "0",
                90.0 if 120 < minutes <= 240 else 50.0,
                90.0 if minutes <= 180 else 10.0,
            )
            for minutes in range(5, 600, 5)
        ],
    )
    backtest = backtest_rule(store, scope_of(cast.bob), rule(HOT_AND_BUSY), now=NOON, days=1)
    (firings,) = backtest.firings
    (period,) = firings.periods
    assert period == (NOON - timedelta(minutes=175), NOON - timedelta(minutes=115))


def test_a_backtest_compares_with_another_window(store: Store, cast: Cast) -> None:
    # Twice the power for half an hour, six hours ago; the hour before is the measure.
    samples = [
        (
            NOON - timedelta(minutes=minutes),
            "0",
            {"power_watts": 200.0 if 330 < minutes <= 360 else 100.0},
        )
        for minutes in range(5, 1440, 5)
    ]
    fill(store, cast.acme.id, samples)
    backtest = backtest_rule(store, scope_of(cast.bob), rule(UNUSUAL), now=NOON, days=1)
    (firings,) = backtest.firings
    (period,) = firings.periods
    assert period == (NOON - timedelta(minutes=355), NOON - timedelta(minutes=325))


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_alert_ends_when_its_second_condition_does(
    store: Store, cast: Cast, sessions: SessionFactory, *, is_shared: bool
) -> None:
    with transaction(sessions) as session:
        saved = create_rule(session, scope_of(cast.alice), rule(HOT_AND_BUSY), now=NOON)
        create_rule(session, scope_of(cast.charlie), rule(HOT_AND_BUSY), now=NOON)
        rule_id = saved.id
    evaluator = Evaluator(sessions=sessions, store=store)
    states = []
    for seconds, percent in ((0, 90.0), (60, 90.0), (120, 10.0), (180, 90.0)):
        now = NOON + timedelta(seconds=seconds)
        fill(store, cast.acme.id, [gpu_at(now - timedelta(seconds=30), "0", 90.0, percent)])
        if is_shared:
            with transaction(sessions) as session:
                rules = list(session.query(Rule))
            shared = evaluator.read_shared(rules, now=now)
            assert (rule_id in shared) is (seconds > 0)
            for shared_rule in rules:
                evaluator.evaluate([shared_rule], now=now, shared=shared)
        else:
            evaluate_rules(evaluator, now=now)
        with transaction(sessions) as session:
            states.append([alert.state for alert in session.query(Alert)])
    firing, resolved = [AlertState.FIRING], [AlertState.RESOLVED]
    assert states == [firing, firing, resolved, firing]


def test_what_a_rule_is_compared_with_is_rolled_up_too(
    cast: Cast, sessions: SessionFactory
) -> None:
    text = f"{UNUSUAL} and last(memory.used_percent) by appliance > 5"
    with transaction(sessions) as session:
        create_rule(session, scope_of(cast.alice), rule(text), now=NOON)
        assert needed_fields(session) == {
            (cast.acme.id, "gpu", "power_watts"),
            (cast.acme.id, "memory", "used_percent"),
        }


def test_a_chart_of_a_long_comparison_reads_a_bounded_number_of_steps(
    store: Store, cast: Cast
) -> None:
    fill(store, cast.acme.id, day_of_power(NOON, {"0": 160.0}))
    widths: list[float] = []

    class Measuring(CountingStore):
        def query_columns(self, query: RangeQuery) -> object:
            assert query.step_ns is not None
            widths.append((query.end_ns - query.start_ns) / query.step_ns)
            return self._store.query_columns(query)

    text = "avg(gpu.power_watts) over 1s / avg(gpu.power_watts) over 30d by gpu > 1.5"
    measuring: Store = Measuring(store)  # type: ignore[assignment] # rules only read ranges
    start = NOON - timedelta(seconds=900)
    read_series(measuring, rule(text), tenants=(cast.acme.id,), start=start, end=NOON)
    assert sum(widths) <= 70
