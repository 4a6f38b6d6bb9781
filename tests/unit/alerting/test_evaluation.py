"""The evaluator on a real store and database: alerts, history and messages of whole episodes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from alerting.evaluation.evaluator import EvaluationSummary, Evaluator
from alerting.evaluation.expression import preview_rule
from alerting.models import Rule
from alerting.rules.service import set_rule_enabled, update_rule
from alerting.states import AlertState, Severity
from core.db import transaction
from core.errors import InvalidInputError
from core.leases import Lease, lease_is_held
from tenants.models import Appliance, Tenant, TenantState
from tests.cast import NOON, scope_of
from tests.unit.alerting.helpers import evaluate_rules, heat, hot
from tests.unit.alerting.watched_appliance import URL, PickyStore, Watch, watch
from timeseries.store import RangeQuery, Series, Store

__all__ = ["watch"]


def test_an_episode_leaves_its_history_and_its_messages(watch: Watch) -> None:
    watch.notifying_rule(for_seconds=60.0)
    for celsius in (70.0, 85.0, 85.0, 95.0, 70.0):
        watch.go(celsius)
    assert watch.moves() == [
        ("inactive", "pending", "warning"),
        ("pending", "firing", "warning"),
        ("firing", "firing", "critical"),
        ("firing", "resolved", "critical"),
    ]
    notified = [(m.payload["state"], m.payload["severity"]) for m in watch.messages()]
    assert notified == [("firing", "warning"), ("firing", "critical"), ("resolved", "critical")]


def test_a_message_carries_all_that_a_reader_needs(watch: Watch) -> None:
    rule = watch.notifying_rule()
    watch.go(85.5)
    (message,) = watch.messages()
    base = f"{URL}/dashboards/appliances/{watch.appliance.id}"
    assert message.payload | {"alert_id": ""} == {
        "version": 1,
        "alert_id": "",
        "rule_id": rule.id,
        "rule": "GPU too hot",
        "pack_key": "",
        "expression": (
            "avg(gpu.temperature_celsius) over 1m by appliance, gpu > 80 °C, critical > 90 °C"
        ),
        "tenant": "Acme",
        "state": "firing",
        "severity": "warning",
        "value": 85.5,
        "value_text": "85.5 °C",
        "threshold": 80.0,
        "threshold_text": "80 °C",
        "comparison": ">",
        "tags": {"appliance": "gpu-01", "gpu": "0"},
        "appliance_id": watch.appliance.id,
        "started_at": "2026-03-02T12:01:01Z",
        "fired_at": "2026-03-02T12:01:01Z",
        "resolved_at": None,
        "late_at": None,
        "at": "2026-03-02T12:01:01Z",
        "annotation": "",
        "links": {
            "alerts": f"{URL}/alerts",
            "rule": f"{URL}/rules/{rule.id}",
            "appliance": base,
            "gpu": f"{base}/gpus/0",
        },
    }


def test_groups_that_never_breached_have_no_row(watch: Watch) -> None:
    watch.notifying_rule()
    watch.heat(60.0, gpu="1")
    watch.go(85.0, after=0.0)
    assert [a.tags["gpu"] for a in watch.alerts()] == ["0"]


def test_each_group_has_its_own_alert(watch: Watch) -> None:
    watch.notifying_rule()
    watch.heat(95.0, gpu="1")
    summary = watch.go(85.0, after=0.0)
    severities = {a.tags["gpu"]: a.severity for a in watch.alerts()}
    assert severities == {"0": Severity.WARNING, "1": Severity.CRITICAL}
    assert (summary.rules, summary.transitions, summary.notifications) == (1, 2, 2)


def test_a_second_evaluation_of_the_same_value_notifies_nobody(watch: Watch) -> None:
    watch.notifying_rule()
    watch.go(85.0)
    assert watch.evaluate(after=1.0).notifications == 0
    assert len(watch.messages()) == 1


def test_a_rule_sees_only_its_own_tenants_samples(watch: Watch) -> None:
    watch.rule(hot(), by=watch.cast.charlie)
    watch.go(95.0)
    assert watch.alerts() == []


def test_filters_narrow_the_groups(watch: Watch) -> None:
    watch.notifying_rule(filters={"gpu": ["1"]})
    watch.go(95.0)
    assert watch.alerts() == []


def test_a_disabled_rule_is_not_evaluated(watch: Watch) -> None:
    rule = watch.notifying_rule()
    with transaction(watch.sessions) as session:
        set_rule_enabled(session, scope_of(watch.cast.bob), rule.id, is_enabled=False, now=NOON)
    assert watch.go(95.0).rules == 0
    assert watch.alerts() == []


def test_an_alert_of_a_rule_disabled_during_evaluation_is_resolved(watch: Watch) -> None:
    rule = watch.notifying_rule()
    watch.go(95.0)
    with transaction(watch.sessions) as session:
        session.execute(update(Rule).where(Rule.id == rule.id).values(is_enabled=False))
    watch.evaluate(after=1.0)
    assert [a.state for a in watch.alerts()] == [AlertState.RESOLVED]
    assert [m.payload["state"] for m in watch.messages()] == ["firing", "resolved"]


def test_an_alert_of_a_retired_appliance_ends_and_its_samples_raise_none(watch: Watch) -> None:
    watch.notifying_rule()
    watch.go(95.0)
    with transaction(watch.sessions) as session:
        session.get_one(Appliance, watch.appliance.id).retired_at = watch.clock.now
    watch.heat(95.0)
    watch.evaluate(after=1.0)
    watch.go(95.0)
    assert [a.state for a in watch.alerts()] == [AlertState.RESOLVED]
    assert [m.payload["state"] for m in watch.messages()] == ["firing", "resolved"]


@pytest.mark.parametrize(("gpu", "state"), [("0", "firing"), ("1", "resolved")])
def test_other_filters_keep_the_history_and_end_alerts_that_they_exclude(
    watch: Watch, gpu: str, state: str
) -> None:
    rule = watch.notifying_rule()
    watch.go(95.0)
    request = hot(receiver_ids=[watch.receiver_id], filters={"gpu": (gpu,)})
    with transaction(watch.sessions) as session:
        update_rule(session, scope_of(watch.cast.bob), rule.id, request, now=watch.clock.now)
    watch.heat(95.0)
    watch.evaluate(after=1.0)
    assert [a.state for a in watch.alerts()] == [state]
    assert watch.moves()[0] == ("inactive", "firing", "critical")


def test_a_rule_counts_the_series_of_its_last_evaluation(watch: Watch) -> None:
    rule = watch.notifying_rule()
    watch.go(20.0)
    with transaction(watch.sessions) as session:
        assert session.get_one(Rule, rule.id).series == 1


def test_rules_of_a_suspended_tenant_are_not_evaluated(watch: Watch) -> None:
    watch.notifying_rule()
    with transaction(watch.sessions) as session:
        session.get_one(Tenant, watch.cast.acme.id).state = TenantState.SUSPENDED
    assert watch.go(95.0).rules == 0


def test_a_rule_that_fails_shows_its_error_and_stops_no_other(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = watch.notifying_rule(name="Broken", measurement="disk", field="used_percent")
    good = watch.notifying_rule()
    watch.store = PickyStore(watch.store, down_for="disk")  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        summary = watch.go(85.0)
    assert (summary.rules, summary.failed, summary.transitions) == (2, 1, 1)
    errors = watch.read(lambda s: {r.id: r.evaluation_error for r in s.scalars(select(Rule))})
    assert errors == {broken.id: "The store does not answer. Try again later.", good.id: ""}


@dataclass
class DuringQuery:
    """A store during whose query a rule is deleted or disabled."""

    store: Store
    change: Callable[[], object]

    def query_range(self, query: RangeQuery) -> list[Series]:
        series = self.store.query_range(query)
        self.change()
        return series


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_rule_that_is_deleted_or_disabled_during_evaluation_is_skipped_without_an_error(
    watch: Watch, caplog: pytest.LogCaptureFixture, *, is_deleted: bool
) -> None:
    rule = watch.notifying_rule()
    watch.heat(95.0)

    def change() -> None:
        with transaction(watch.sessions) as session:
            if is_deleted:
                session.execute(delete(Rule).where(Rule.id == rule.id))
            else:
                session.execute(update(Rule).values(is_enabled=False))

    store: Any = DuringQuery(watch.store, change)
    summary = evaluate_rules(Evaluator(sessions=watch.sessions, store=store), now=watch.clock.now)
    assert summary == EvaluationSummary(rules=1)
    assert (watch.alerts(), watch.messages(), caplog.records) == ([], [], [])


def test_a_preview_shows_each_group_with_its_severity(watch: Watch) -> None:
    watch.heat(85.0)
    watch.heat(60.0, gpu="1")
    groups = preview_rule(
        watch.store, scope_of(watch.cast.bob), hot(name="", for_seconds=600.0), now=watch.clock.now
    )
    assert [(g.tags["gpu"], g.value, g.severity) for g in groups] == [
        ("0", 85.0, Severity.WARNING),
        ("1", 60.0, None),
    ]
    assert preview_rule(watch.store, scope_of(watch.cast.charlie), hot(), now=watch.clock.now) == []


def test_a_preview_of_an_invalid_rule_lists_the_errors(watch: Watch) -> None:
    with pytest.raises(InvalidInputError) as caught:
        preview_rule(
            watch.store, scope_of(watch.cast.bob), hot(aggregate="median"), now=watch.clock.now
        )
    assert list(caught.value.errors) == ["aggregate"]


def test_rules_are_evaluated_as_often_as_their_interval_says_at_moments_of_their_own(
    watch: Watch,
) -> None:
    names = [f"Rule {number}" for number in range(40)]
    for name in names:
        watch.rule(hot(name=name, interval_seconds=60.0))
    watch.rule(hot(name="Always"))
    counts = [watch.evaluate(after=10).rules - 1 for _ in range(30)]
    assert counts[0] == 40
    # Once a minute, and once earlier to come to their own moment.
    assert 5 * 40 <= sum(counts) <= 6 * 40
    assert all(0 < count < 20 for count in counts[-6:])
    assert sum(counts[-6:]) == 40


def test_rules_of_one_name_are_due_together(watch: Watch) -> None:
    watch.rule(hot(interval_seconds=60.0))
    watch.clock.advance(25.0)
    watch.rule(hot(interval_seconds=60.0), by=watch.cast.charlie)
    assert [watch.evaluate(after=10).rules for _ in range(30)][-6:].count(2) == 1


def test_an_evaluation_that_comes_after_a_later_one_changes_nothing(watch: Watch) -> None:
    watch.rule(hot(aggregate="max"))
    watch.go(60.0)
    stalled_at = watch.clock.now
    watch.go(95.0)
    late = Evaluator(sessions=watch.sessions, store=watch.store)
    assert evaluate_rules(late, now=stalled_at).transitions == 0
    assert [a.state for a in watch.alerts()] == [AlertState.FIRING]


def test_groups_with_alerts_are_read_beside_the_breaches_of_others(watch: Watch) -> None:
    watch.rule(hot())
    watch.heat(95.0)
    heat(watch.store, tenant=watch.cast.acme.id, appliance="a2", celsius=60.0, at=watch.clock.now)
    watch.evaluate(after=1.0)
    watch.clock.advance(61.0)
    watch.heat(60.0)
    heat(watch.store, tenant=watch.cast.acme.id, appliance="a2", celsius=85.0, at=watch.clock.now)
    watch.evaluate(after=1.0)
    states = {alert.tags["appliance"]: (alert.state, alert.value) for alert in watch.alerts()}
    assert states == {
        watch.appliance.id: (AlertState.RESOLVED, 60.0),
        "a2": (AlertState.FIRING, 85.0),
    }


def test_a_clock_that_is_set_back_does_not_stop_evaluation(watch: Watch) -> None:
    watch.notifying_rule()
    watch.go(50.0)
    watch.clock.advance(-300.0)
    watch.go(85.0)
    assert watch.moves() == [("inactive", "firing", "warning")]


def test_a_scheduler_whose_lease_was_taken_over_records_nothing(watch: Watch) -> None:
    watch.notifying_rule()
    watch.go(85.0)
    with transaction(watch.sessions) as session:
        session.add(Lease(name="scheduler", holder="successor", expires_at=NOON))
    watch.clock.advance(61.0)
    watch.heat(50.0)
    for holder, states in (("stopped", ["firing"]), ("successor", ["resolved"])):
        evaluator = Evaluator(
            sessions=watch.sessions,
            store=watch.store,
            fence=lease_is_held("scheduler", holder=holder),
        )
        evaluate_rules(evaluator, now=watch.clock.now)
        assert [alert.state.value for alert in watch.alerts()] == states
