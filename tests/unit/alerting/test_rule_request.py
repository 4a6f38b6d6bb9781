"""What a rule may say: every fault is named by its field, all together."""

import math

import pytest

from alerting.expression import duration_text, group_key, rule_expression
from alerting.rule_request import rule_faults
from alerting.states import Comparison
from tests.unit.alerting.helpers import HOT, hot


def test_a_good_rule_has_no_faults() -> None:
    assert rule_faults(HOT) == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "  "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"measurement": "gpu; drop"}, "measurement"),
        ({"field": ""}, "field"),
        ({"aggregate": "median"}, "aggregate"),
        ({"window_seconds": 0.9}, "window_seconds"),
        ({"window_seconds": math.nan}, "window_seconds"),
        ({"group_by": ("gpu", "no space")}, "group_by"),
        ({"group_by": ("tenant",)}, "group_by"),
        ({"filters": {"tenant": ["t"]}}, "filters"),
        ({"filters": {"gpu": []}}, "filters"),
        ({"filters": {"gpu": "0"}}, "filters"),
        ({"for_seconds": -1.0}, "for_seconds"),
        ({"keep_firing_seconds": math.inf}, "keep_firing_seconds"),
        ({"warning_threshold": None, "critical_threshold": None}, "warning_threshold"),
        ({"warning_threshold": math.inf}, "warning_threshold"),
        ({"critical_threshold": 80.0}, "critical_threshold"),
        ({"comparison": Comparison.BELOW}, "critical_threshold"),
        ({"warning_reset": 81.0}, "warning_reset"),
        ({"critical_reset": 90.5}, "critical_reset"),
        ({"critical_threshold": None, "critical_reset": 85.0}, "critical_reset"),
    ],
)
def test_a_fault_is_named_by_its_field(changes: dict[str, object], field: str) -> None:
    assert list(rule_faults(hot(**changes))) == [field]


def test_all_faults_come_together() -> None:
    faulty = hot(name="", field="?", window_seconds=0.0, critical_threshold=1.0)
    assert sorted(rule_faults(faulty)) == ["critical_threshold", "field", "name", "window_seconds"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "avg(gpu.temperature_celsius) over 1m by appliance, gpu > 80 °C, critical > 90 °C"),
        (
            {"critical_threshold": None, "for_seconds": 90.0, "group_by": ()},
            "avg(gpu.temperature_celsius) over 1m by appliance > 80 °C for 90s",
        ),
        (
            {
                "warning_threshold": None,
                "aggregate": "count",
                "comparison": Comparison.BELOW,
                "critical_threshold": 3.0,
                "filters": {"gpu": ["0", "1"]},
            },
            "count(gpu.temperature_celsius{gpu=0|1}) over 1m by appliance, gpu < 3",
        ),
    ],
)
def test_a_rule_reads_as_one_line(changes: dict[str, object], line: str) -> None:
    assert rule_expression(hot(**changes)) == line


@pytest.mark.parametrize(
    ("seconds", "text"), [(300, "5m"), (90, "90s"), (7200, "2h"), (86400, "1d"), (1.5, "1.5s")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_a_group_has_one_key_whatever_the_order_of_its_tags() -> None:
    assert group_key({"gpu": "0", "appliance": "a"}) == group_key({"appliance": "a", "gpu": "0"})


def test_groups_whose_tags_differ_in_case_only_have_two_keys() -> None:
    assert group_key({"mount": "/Data"}) != group_key({"mount": "/data"})
