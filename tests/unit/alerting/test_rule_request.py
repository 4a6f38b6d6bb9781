"""Validation of rules: every error by its field, all together."""

import math

import pytest

from alerting.evaluation.expression import group_key
from alerting.language.checks import rule_errors
from alerting.states import Comparison
from tests.unit.alerting.helpers import HOT, hot


def test_a_valid_rule_has_no_errors() -> None:
    assert rule_errors(HOT) == {}


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
def test_an_error_is_listed_by_its_field(changes: dict[str, object], field: str) -> None:
    assert list(rule_errors(hot(**changes))) == [field]


def test_all_errors_are_listed_together() -> None:
    invalid = hot(name="", field="?", window_seconds=0.0, critical_threshold=1.0)
    assert sorted(rule_errors(invalid)) == ["critical_threshold", "field", "name", "window_seconds"]


def test_a_group_has_one_key_whatever_the_order_of_its_tags() -> None:
    assert group_key({"gpu": "0", "appliance": "a"}) == group_key({"appliance": "a", "gpu": "0"})


def test_groups_whose_tags_differ_in_case_only_have_two_keys() -> None:
    assert group_key({"mount": "/Data"}) != group_key({"mount": "/data"})
