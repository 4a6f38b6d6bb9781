"""Rules in PromQL: their text, their alerts, their backtests and their series."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.expression import preview_rule
from alerting.evaluation.rule_series import read_series, request_of, rule_of_group
from alerting.language.checks import rule_errors
from alerting.language.text import parse_expression, rule_expression
from alerting.models import Alert, Rule
from alerting.notification.models import Notification
from alerting.rule_request import RuleRequest
from alerting.rules.backtest import backtest_rule
from alerting.rules.service import create_rule, update_rule
from alerting.rules.unit_tests import run_test
from alerting.states import AlertState, Severity
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from tenants.models import Tenant
from tests.cast import NOON, Cast, make_appliance, scope_of
from tests.unit.alerting.helpers import add_mail, evaluate_rules, heat
from timeseries.points import Point
from timeseries.store import Store, write

HOT = (
    'promql(max by (appliance, gpu) (gpu_temperature_celsius{gpu!~"9|[x)]"}) > 80) critical '
    'labels {team="dc"} for 1m keep_firing_for 2m every 30s'
)
S = AlertState


def rule(text: str = HOT, **changes: object) -> RuleRequest:
    return replace(parse_expression(text), name="Hot", **changes)  # type: ignore[arg-type] # real fields


def test_a_rule_in_promql_is_one_line_of_text() -> None:
    request = rule()

    assert request.promql == 'max by (appliance, gpu) (gpu_temperature_celsius{gpu!~"9|[x)]"}) > 80'
    assert (request.critical_threshold, request.labels) == (0.0, {"team": "dc"})
    assert (request.for_seconds, request.keep_firing_seconds) == (60.0, 120.0)
    assert rule_expression(request) == HOT
    assert rule_errors(request) == {}
    assert parse_expression("promql ( up ) ").warning_threshold == 0.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("promql(up == 0", "Column 7: this parenthesis is not closed"),
        ('promql(up{a="(})', "Column 7: this parenthesis is not closed"),
        ("promql(up == 0) > 5", "Column 17: expected a severity, labels, for"),
        ("promql(up == 0) critical info", "Column 26: expected"),
        ("promql(up == 0) no_data alert", "Column 17: expected"),
        ("promql(up == 0) for 1m for 2m", "'for' is repeated"),
        ('promql(up == 0) labels {a="b" c="d"}', "expected ',' or '}'"),
        ("promql(up == 0) labels {a}", "expected '='"),
    ],
)
def test_an_error_of_the_text_names_its_column(text: str, error: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_expression(text)

    assert error in refused.value.message


@pytest.mark.parametrize(
    ("request_", "field", "error"),
    [
        (rule("promql(rate(up))"), "promql", "expected type matrix"),
        (rule("promql(up[5m])"), "promql", "instant vector or a scalar"),
        (rule('promql("x")'), "promql", "instant vector or a scalar"),
        (rule(measurement="gpu"), "measurement", "in PromQL"),
        (rule(warning_threshold=1.0), "warning_threshold", "one severity"),
        (rule(critical_threshold=5.0), "warning_threshold", "one severity"),
        (rule(labels={"rule": "x"}), "labels", "can't have the label 'rule'"),
        (rule(labels={"a-b": "x"}), "labels", "can't have the label 'a-b'"),
        (rule(labels={"a": "x" * 201}), "labels", "up to 200"),
        (rule("max(gpu.x) > 1", labels={"a": "b"}), "labels", "Only a rule in PromQL"),
    ],
)
def test_an_invalid_rule_is_refused(request_: RuleRequest, field: str, error: str) -> None:
    assert error in rule_errors(request_)[field][0]


def test_its_alerts_have_the_states_of_prometheus(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    """Pending for a minute, firing, and firing for two minutes after the condition has ended."""
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "dgx-1")
        request = rule(annotation="GPU {{ labels.gpu }} of {{ labels.appliance }}: {{ value }}")
        rule_id = create_rule(session, scope_of(cast.bob), request, now=NOON).id
    states = []
    celsius = [90.0, 90.0, 90.0, 70.0, 70.0, 70.0, 70.0, 70.0, 70.0]
    for number, value in enumerate(celsius):
        at = NOON + timedelta(seconds=30 * number)
        heat(store, tenant=cast.acme.id, celsius=value, at=at, appliance=appliance.id)
        heat(store, tenant=cast.globex.id, celsius=99.0, at=at, appliance="other")
        summary = evaluate_rules(Evaluator(sessions=sessions, store=store), now=at)
        assert summary.failed == 0
        with transaction(sessions) as session:
            states += [alert.state for alert in session.scalars(select(Alert))]
    # It fires until two minutes after the last breach, at 60 s.
    assert states == [*[S.PENDING] * 2, *[S.FIRING] * 4, *[S.RESOLVED] * 3]
    with transaction(sessions) as session:
        (alert,) = session.scalars(select(Alert))
        assert alert.tags == {"appliance": appliance.id, "gpu": "0", "team": "dc"}
        assert alert.severity is Severity.CRITICAL
        assert session.get_one(Rule, rule_id).evaluation_error == ""


def test_its_messages_have_value_and_annotation(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "dgx-1")
        scope = scope_of(cast.alice)
        receiver = add_mail(session, scope)
        request = rule(
            "promql(gpu_temperature_celsius / 0)",
            annotation="GPU {{ labels.gpu }} of {{ labels.appliance }}",
            receiver_ids=[receiver.id],
        )
        create_rule(session, scope, request, now=NOON)
    heat(store, tenant=cast.acme.id, celsius=90.0, at=NOON, appliance=appliance.id)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=NOON)
    with transaction(sessions) as session:
        (notification,) = session.scalars(select(Notification))
        payload = notification.payload
    assert payload["annotation"] == "GPU 0 of dgx-1"
    assert (payload["threshold"], payload["threshold_text"]) == (None, "")
    # Databases and JSON have no infinity.
    assert payload["value"] == pytest.approx(1.7e308)


def test_what_is_absent_raises_an_alert_without_an_appliance(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        request = rule('promql(absent(up{job="node"})) info')
        create_rule(session, scope_of(cast.bob), request, now=NOON)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=NOON)
    with transaction(sessions) as session:
        (alert,) = session.scalars(select(Alert))
        assert (alert.state, alert.tags) == (S.FIRING, {"job": "node"})
    up = Point("up", {"job": "node"}, {"value": 1.0}, to_ns(NOON))
    write(store, [up], identity={"tenant": cast.acme.id, "appliance": "a1"})
    later = NOON + timedelta(seconds=60)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=later)
    with transaction(sessions) as session:
        (alert,) = session.scalars(select(Alert))
        assert alert.state is S.RESOLVED


def test_a_condition_that_fails_is_shown_and_changes_nothing(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    with transaction(sessions) as session:
        request = rule('promql(label_replace(gpu_temperature_celsius, "gpu", "x", "gpu", ".*"))')
        rule_id = create_rule(session, scope_of(cast.bob), request, now=NOON).id
    for gpu in ("0", "1"):
        heat(store, tenant=cast.acme.id, celsius=90.0, at=NOON, gpu=gpu)
    assert evaluate_rules(Evaluator(sessions=sessions, store=store), now=NOON).failed == 1
    with transaction(sessions) as session:
        assert "the same labels" in session.get_one(Rule, rule_id).evaluation_error
        assert session.scalars(select(Alert)).all() == []


def test_a_new_condition_ends_the_alerts_of_the_old_one(
    sessions: SessionFactory, store: Store, cast: Cast
) -> None:
    scope = scope_of(cast.bob)
    with transaction(sessions) as session:
        request = rule("promql(gpu_temperature_celsius > 80)")
        rule_id = create_rule(session, scope, request, now=NOON).id
    heat(store, tenant=cast.acme.id, celsius=90.0, at=NOON)
    evaluate_rules(Evaluator(sessions=sessions, store=store), now=NOON)
    with transaction(sessions) as session:
        assert len(session.scalars(select(Alert)).all()) == 1
        changed = rule("promql(gpu_temperature_celsius > 85)")
        update_rule(session, scope, rule_id, changed, now=NOON)
    with transaction(sessions) as session:
        assert session.scalars(select(Alert)).all() == []


def test_preview_series_and_backtest_read_appliances_by_name(store: Store, cast: Cast) -> None:
    for minutes in range(0, 180, 1):
        at = NOON - timedelta(minutes=minutes + 1)
        hot = 90.0 if minutes in range(30, 90) else 50.0
        heat(store, tenant=cast.acme.id, celsius=hot, at=at)
    scope, names = scope_of(cast.bob), {"a1": "dgx-1"}
    request = rule('promql(gpu_temperature_celsius{appliance="dgx-1"} > 80) for 10m')

    assert preview_rule(store, scope, request, now=NOON, names=names) == []
    (group,) = preview_rule(store, scope, request, now=NOON - timedelta(minutes=60), names=names)
    assert (group.tags, group.severity) == ({"appliance": "a1", "gpu": "0"}, Severity.WARNING)

    backtest = backtest_rule(store, scope, request, now=NOON, days=1, names=names)
    (firings,) = backtest.firings
    assert firings.tags == {"appliance": "a1", "gpu": "0"}
    assert firings.periods == [(NOON - timedelta(minutes=80), NOON - timedelta(minutes=30))]

    start = NOON - timedelta(hours=3)
    series = read_series(store, request, tenants=scope.tenants, start=start, end=NOON, names=names)
    (line,) = series.lines
    assert {*line.values} == {90.0}
    assert (series.groups, series.breaching) == (1, 0)
    other = rule_of_group(Rule(**vars_of(request)), {"appliance": "a2", "gpu": "0"})
    assert (
        read_series(store, other, tenants=scope.tenants, start=start, end=NOON, names=names).lines
        == []
    )
    assert request_of(Rule(**vars_of(request))).promql == request.promql


def vars_of(request: RuleRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


def test_rules_in_promql_have_unit_tests() -> None:
    test = {
        "interval": "1m",
        "input_series": [{"series": 'up.value{job="node"}', "values": "1 1 0 0 0 1"}],
        "alert_rule_test": [
            {"eval_time": "2m", "alertname": "Down", "exp_alerts": []},
            {
                "eval_time": "3m",
                "alertname": "Down",
                "exp_alerts": [{"exp_labels": {"job": "node", "severity": "warning"}}],
            },
            {"eval_time": "5m", "alertname": "Down", "exp_alerts": []},
        ],
    }
    down = replace(rule("promql(up == 0) for 1m"), name="Down")

    assert list(run_test(test, {"Down": down}, evaluation_interval=60.0)) == []
