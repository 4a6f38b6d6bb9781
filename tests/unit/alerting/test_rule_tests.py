"""Unit tests of rules: the notation of series, and what a test finds."""

from dataclasses import replace
from typing import Any

import pytest

from alerting.language.text import parse_expression
from alerting.rule_request import RuleRequest
from alerting.rules.unit_tests import run_test, series_values
from core.errors import InvalidInputError

SERIES = 'gpu.temperature_celsius{appliance="dgx-01", gpu="0"}'
HOT = "last(gpu.temperature_celsius) over 1m by gpu > 85, critical > 94 for 2m"


def rule(text: str = HOT, **changes: Any) -> dict[str, RuleRequest]:  # noqa: ANN401
    return {"hot": replace(parse_expression(text), name="hot", **changes)}


def fired(
    rules: dict[str, RuleRequest], values: str, minutes: int, *, annotated: bool = False
) -> list[dict[str, Any]]:
    """Return what fires after some minutes, read from a test that expects something else."""
    nothing: dict[str, Any] = {"exp_labels": {"is": "never so"}}
    expected = [nothing | ({"exp_annotations": {}} if annotated else {})]
    test = {
        "interval": "1m",
        "input_series": [{"series": SERIES, "values": values}],
        "alert_rule_test": [
            {"eval_time": f"{minutes}m", "alertname": "hot", "exp_alerts": expected}
        ],
    }
    (failure,) = run_test(test, rules, evaluation_interval=60.0)
    return [dict(alert) for alert in failure.actual]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2.5 -3", [1.0, 2.5, -3.0]),
        ("1+2x3", [1.0, 3.0, 5.0, 7.0]),
        ("-2+4x1", [-2.0, 2.0]),
        ("10-5x2", [10.0, 5.0, 0.0]),
        ("7x2", [7.0, 7.0, 7.0]),
        ("1 _ 2 _x3 stale", [1.0, None, 2.0, None, None, None, None]),
    ],
)
def test_series_are_written_as_for_promtool(text: str, values: list[float | None]) -> None:
    assert series_values(text) == values


@pytest.mark.parametrize("text", ["x", "1+x3", "1*2", "1x999999999", "_x"])
def test_other_notation_is_an_error(text: str) -> None:
    with pytest.raises(InvalidInputError):
        series_values(text)


def test_an_alert_fires_after_its_for_duration_and_resolves() -> None:
    values = "80 90 90 90 96 80x10"
    labels = {"appliance": "dgx-01", "gpu": "0"}
    assert [fired(rule(), values, minutes) for minutes in (2, 3, 4, 5)] == [
        [],
        [{"labels": labels | {"severity": "warning"}}],
        [{"labels": labels | {"severity": "critical"}}],
        [],
    ]


def test_what_fires_as_expected_is_no_failure() -> None:
    labels = {"appliance": "dgx-01", "gpu": "0", "severity": "critical"}
    expected = {"exp_labels": labels, "exp_annotations": {"summary": "dgx-01 has 99 °C"}}
    test = {
        "input_series": [{"series": SERIES, "values": "99x5"}],
        "alert_rule_test": [
            {"eval_time": "2m", "alertname": "hot", "exp_alerts": [expected]},
            {"eval_time": "1m", "alertname": "hot"},
        ],
    }
    rules = rule(annotation="{{ labels.appliance }} has {{ value_text }}")
    assert list(run_test(test, rules, evaluation_interval=60.0)) == []


def test_missing_samples_follow_the_policy_of_the_rule() -> None:
    values = "90x4 _x10"
    keeping, resolving = f"{HOT} no_data keep", f"{HOT} no_data resolve"
    assert len(fired(rule(keeping), values, 8)) == 1
    assert fired(rule(resolving), values, 8) == []


@pytest.mark.parametrize(
    ("test", "part"),
    [
        ({"alert_rule_test": [{"eval_time": "1m", "alertname": "cold"}]}, "cold"),
        ({"alert_rule_test": [{"alertname": "hot"}]}, "eval_time"),
        ({"alert_rule_test": [{"eval_time": "soon", "alertname": "hot"}]}, "soon"),
        (
            {
                "input_series": [{"series": "gpu"}],
                "alert_rule_test": [{"eval_time": "1m", "alertname": "hot"}],
            },
            "Column",
        ),
    ],
)
def test_an_invalid_test_is_an_error_that_names_it(test: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidInputError, match=part):
        list(run_test(test, rule(), evaluation_interval=60.0))
