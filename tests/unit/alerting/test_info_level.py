"""The info level of rules: below a warning, everywhere that severities are."""

from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from alerting.compatibility.prometheus_rules import Metric, convert_rules
from alerting.evaluation.evaluator import record_groups
from alerting.evaluation.expression import Group
from alerting.evaluation.firing_steps import firing_steps
from alerting.evaluation.recorder import Recorder
from alerting.language.checks import rule_errors
from alerting.language.text import parse_expression, rule_expression
from alerting.machine import AlertView, next_state, severity_of
from alerting.models import Alert, Rule
from alerting.notification.policies import policy_of, save_policy
from alerting.rules.service import acknowledge_alert, create_rule, list_alerts
from alerting.states import AlertState, Comparison, Severity
from tests.cast import NOON, Cast, scope_of
from tests.unit.alerting.helpers import hot

LEVELS = hot(info_threshold=70.0, info_reset=65.0)


@pytest.mark.parametrize(
    ("value", "firing", "severity"),
    [
        (70, None, None),
        (71, None, Severity.INFO),
        (81, None, Severity.WARNING),
        (91, None, Severity.CRITICAL),
        (66, Severity.INFO, Severity.INFO),
        (66, Severity.CRITICAL, Severity.INFO),
        (65, Severity.INFO, None),
        (66, None, None),
    ],
)
def test_a_value_has_the_worst_level_that_it_breaches(
    value: float, firing: Severity | None, severity: Severity | None
) -> None:
    assert severity_of(value, LEVELS, firing=firing) is severity


def test_an_alert_escalates_from_info_to_critical() -> None:
    current: AlertView | None = None
    notified = []
    for minute, value in enumerate((75, 85, 95, 20)):
        outcome = next_state(current, value, LEVELS, now=NOON + timedelta(minutes=minute))
        current = outcome.after
        notified.append((outcome.notify, current.severity))
    assert notified == [
        (AlertState.FIRING, Severity.INFO),
        (AlertState.FIRING, Severity.WARNING),
        (AlertState.FIRING, Severity.CRITICAL),
        (AlertState.RESOLVED, Severity.CRITICAL),
    ]


def test_a_backtest_knows_the_level() -> None:
    values = np.array([[60.0, 75.0, 66.0, 85.0, 64.0]])
    (steps,) = firing_steps(LEVELS, values, step_seconds=60.0)
    assert steps.tolist() == [False, True, True, True, False]


def test_a_rule_with_levels_is_printed_and_parsed() -> None:
    text = (
        "avg(gpu.temperature_celsius) over 1m by appliance, gpu "
        "info > 70 °C reset 65 °C, > 80 °C, critical > 90 °C"
    )
    assert rule_expression(LEVELS) == text
    parsed = parse_expression(text)
    assert (parsed.info_threshold, parsed.info_reset) == (70.0, 65.0)
    assert rule_expression(parsed) == text
    alone = parse_expression("avg(gpu.power_watts) by gpu, info > 5")
    assert (alone.info_threshold, alone.warning_threshold) == (5.0, None)
    assert rule_errors(hot(warning_threshold=None, critical_threshold=None, info_threshold=1)) == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"info_threshold": 85.0}, "warning_threshold"),
        ({"info_threshold": 95.0, "warning_threshold": None}, "critical_threshold"),
        ({"info_threshold": 50.0, "info_reset": 55.0}, "info_reset"),
        ({"info_reset": 55.0}, "info_reset"),
        ({"info_threshold": float("inf")}, "info_threshold"),
        (
            {"comparison": Comparison.BELOW, "critical_threshold": 10.0, "info_threshold": 60.0},
            "warning_threshold",
        ),
    ],
)
def test_levels_out_of_order_are_refused(changes: dict[str, object], field: str) -> None:
    assert list(rule_errors(hot(**changes))) == [field]


def test_a_prometheus_rule_has_its_severity() -> None:
    rule = {
        "alert": "Warm",
        "expr": "avg_over_time(gpu_temperature_celsius[5m]) > 60",
        "labels": {"severity": "info"},
    }
    metrics = [Metric("gpu", "temperature_celsius", ("gpu",))]
    ((entry,), left_out) = convert_rules([{"rules": [rule]}], metrics)
    assert "info > 60" in entry.expression
    assert left_out == []


def observe(session: Session, rule_id: str, *celsius: float, minute: int = 0) -> None:
    rule = session.get_one(Rule, rule_id)
    recorder = Recorder(session, rule, NOON + timedelta(minutes=minute))
    tags = [{"appliance": "a1", "gpu": str(number)} for number in range(len(celsius))]
    groups = [Group(group_tags, value) for group_tags, value in zip(tags, celsius, strict=True)]
    record_groups(recorder, groups, frozenset(), is_missing_known=True)


def test_alerts_are_listed_by_severity(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    rule = create_rule(session, scope, LEVELS, now=NOON)
    observe(session, rule.id, 75, 95, 85)
    for sort, expected in (
        ({}, ["critical", "warning", "info"]),
        ({"sort": "severity"}, ["info", "warning", "critical"]),
        ({"sort": "-severity"}, ["critical", "warning", "info"]),
    ):
        page = list_alerts(session, scope, **sort)  # type: ignore[arg-type] # of a TypedDict
        assert [alert.severity.value for alert in page.items] == expected
    page = list_alerts(session, scope, severity=Severity.INFO)
    assert [alert.severity for alert in page.items] == [Severity.INFO]


def test_an_alert_acknowledged_as_info_must_be_acknowledged_again_as_a_warning(
    session: Session, cast: Cast
) -> None:
    scope = scope_of(cast.bob)
    rule = create_rule(session, scope, LEVELS, now=NOON)
    observe(session, rule.id, 75)
    alert = session.scalars(select(Alert)).one()
    acknowledge_alert(session, scope, alert.id, now=NOON)
    observe(session, rule.id, 76, minute=1)
    assert alert.acknowledged_at is not None
    observe(session, rule.id, 85, minute=2)
    assert alert.acknowledged_at is None


def test_routes_match_the_level(session: Session, cast: Cast) -> None:
    scope = scope_of(cast.bob)
    route = {"routes": [{"matchers": ["severity=info"]}, {"matchers": ["severity!=info"]}]}
    save_policy(session, scope, route, now=NOON)
    policy = policy_of(session, cast.acme.id)
    (route_taken,) = policy.matching({"severity": "info"})
    assert route_taken.path == "route.routes.0"
