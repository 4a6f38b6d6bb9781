"""Rules whose samples are missing, late or not readable."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import Evaluator
from alerting.models import Rule
from alerting.states import AlertState, NoDataPolicy
from core.clock import to_ns
from core.db import transaction
from tenants.models import Appliance, ApplianceState
from tests.cast import NOON
from tests.unit.alerting.helpers import evaluate_rules, hot
from tests.unit.alerting.watched_appliance import PickyStore, Watch, watch
from timeseries.points import Point
from timeseries.store import write

__all__ = ["watch"]


@pytest.mark.parametrize(
    ("policy", "state", "notified"),
    [
        (NoDataPolicy.KEEP, AlertState.FIRING, []),
        (NoDataPolicy.RESOLVE, AlertState.RESOLVED, ["resolved"]),
        (NoDataPolicy.ALERT, AlertState.NO_DATA, ["no_data"]),
    ],
)
def test_missing_data_is_handled_by_the_policy(
    watch: Watch, policy: NoDataPolicy, state: AlertState, notified: list[str]
) -> None:
    watch.notifying_rule(no_data=policy)
    watch.go(85.0)
    watch.evaluate(after=120.0)
    assert [a.state for a in watch.alerts()] == [state]
    assert [m.payload["state"] for m in watch.messages()[1:]] == notified


def test_a_no_data_rule_fires_for_a_group_that_never_breached(watch: Watch) -> None:
    watch.notifying_rule(no_data=NoDataPolicy.ALERT)
    watch.go(60.0)
    assert watch.messages() == []
    watch.evaluate(after=120.0)
    (message,) = watch.messages()
    assert (message.payload["state"], message.payload["value_text"]) == ("no_data", "no data")
    watch.go(60.0, after=1.0)
    assert [m.payload["state"] for m in watch.messages()] == ["no_data", "resolved"]


def test_missing_data_is_ignored_until_the_portal_has_ingested_for_a_window(watch: Watch) -> None:
    watch.notifying_rule(no_data=NoDataPolicy.ALERT)
    watch.go(85.0)
    started_at = watch.clock.advance(3600.0)
    for seconds, expected in ((59, AlertState.FIRING), (60, AlertState.NO_DATA)):
        evaluator = Evaluator(
            sessions=watch.sessions, store=watch.store, listening_since=started_at
        )
        evaluate_rules(evaluator, now=started_at + timedelta(seconds=seconds))
        assert [a.state for a in watch.alerts()] == [expected]


def test_the_alert_of_a_group_missing_for_a_month_is_deleted(watch: Watch) -> None:
    watch.notifying_rule(no_data=NoDataPolicy.RESOLVE)
    watch.go(85.0)
    watch.evaluate(after=120.0)
    watch.evaluate(after=30 * 86400.0)
    assert watch.alerts() == []


def test_an_unavailable_store_is_not_missing_data(watch: Watch) -> None:
    watch.notifying_rule(no_data=NoDataPolicy.ALERT)
    watch.go(85.0)
    real, watch.store = watch.store, PickyStore(watch.store, down_for="gpu")  # type: ignore[assignment]
    watch.evaluate(after=120.0)
    assert [a.state for a in watch.alerts()] == [AlertState.FIRING]
    watch.store = real
    watch.go(85.0, after=1.0)
    assert watch.read(lambda s: s.scalars(select(Rule)).one().evaluation_error) == ""


def test_windows_that_an_outage_of_the_scheduler_left_unread_are_evaluated_later(
    watch: Watch,
) -> None:
    watch.rule(hot(aggregate="max"))
    watch.go(60.0)
    watch.clock.advance(120.0)
    watch.heat(95.0)
    watch.go(60.0, after=240.0)
    assert watch.moves() == [
        ("inactive", "firing", "critical"),
        ("firing", "resolved", "critical"),
    ]
    (alert,) = watch.alerts()
    assert alert.fired_at == watch.clock.now - timedelta(seconds=240)
    assert alert.resolved_at == watch.clock.now  # the next value


def test_a_count_that_falls_because_no_samples_arrive_does_not_resolve(watch: Watch) -> None:
    watch.rule(hot(aggregate="count", warning_threshold=1.5, critical_threshold=None))
    for after in (1.0, 30.0):
        watch.clock.advance(after)
        watch.heat(50.0)
    watch.evaluate()
    with transaction(watch.sessions) as session:
        session.get_one(Appliance, watch.appliance.id).state = ApplianceState.UNREACHABLE
    watch.evaluate(after=45.0)
    assert [a.state for a in watch.alerts()] == [AlertState.FIRING]
    with transaction(watch.sessions) as session:
        session.get_one(Appliance, watch.appliance.id).state = ApplianceState.ONLINE
    watch.evaluate(after=1.0)
    assert [a.state for a in watch.alerts()] == [AlertState.RESOLVED]


def test_with_a_delay_late_samples_are_part_of_their_window(watch: Watch) -> None:
    watch.rule(hot(aggregate="sum", window_seconds=10.0))
    watch.heat(50.0)  # a second ago; the next one comes ten seconds late
    watch.clock.advance(10.0)
    late = Point("gpu", {"gpu": "0"}, {"temperature_celsius": 50.0}, to_ns(NOON))
    identity = {"tenant": watch.cast.acme.id, "appliance": watch.appliance.id}
    assert write(watch.store, [late], identity=identity) == []
    for delay_seconds, expected in ((0.0, 0), (9.0, 1)):
        evaluator = Evaluator(
            sessions=watch.sessions, store=watch.store, delay_seconds=delay_seconds
        )
        assert evaluate_rules(evaluator, now=watch.clock.now).transitions == expected


def test_a_gap_of_samples_starts_the_time_of_a_pending_alert_anew(watch: Watch) -> None:
    watch.notifying_rule(for_seconds=300.0)
    watch.go(85.0)
    watch.evaluate(after=61.0)
    for _ in range(5):
        watch.go(85.0, after=60.0)
    assert [move[1] for move in watch.moves()] == ["pending", "inactive", "pending"]
    watch.go(85.0, after=60.0)
    assert watch.moves()[-1][1] == "firing"
