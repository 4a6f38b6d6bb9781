"""The evaluator on a real store and database: alerts, history and messages of whole episodes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from alerting.evaluation.evaluator import EvaluationSummary, Evaluator
from alerting.evaluation.expression import preview_rule
from alerting.models import Alert, AlertTransition, Receiver, Rule
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.receivers import create_receiver
from alerting.rule_request import RuleRequest
from alerting.rules.service import create_rule, set_rule_enabled, update_rule
from alerting.states import AlertState, NoDataPolicy, ReceiverKind, Severity
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.errors import InvalidInputError
from core.leases import Lease, lease_is_held
from tenants.models import Appliance, ApplianceState, Tenant, TenantState, User
from tests.cast import BOX, NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.alerting.helpers import drain_outbox, evaluate_rules, heat, hot
from timeseries.points import Point
from timeseries.store import RangeQuery, Series, Store, StoreUnavailableError, write

URL = "https://portal.example"
T = TypeVar("T")


@dataclass
class Watch:
    """Acme's appliance gpu-01 and a receiver."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    appliance: Appliance
    receiver_id: str

    def rule(self, request: RuleRequest, *, by: User | None = None) -> Rule:
        with transaction(self.sessions) as session:
            return create_rule(session, scope_of(by or self.cast.bob), request, now=NOON)

    def notifying_rule(self, **changes: object) -> Rule:
        return self.rule(hot(receiver_ids=[self.receiver_id], **changes))

    def heat(self, celsius: float, *, gpu: str = "0") -> None:
        heat(
            self.store,
            tenant=self.cast.acme.id,
            appliance=self.appliance.id,
            celsius=celsius,
            at=self.clock.now - timedelta(seconds=1),
            gpu=gpu,
        )

    def evaluate(self, *, after: float = 0.0) -> EvaluationSummary:
        self.clock.advance(after)
        evaluator = Evaluator(sessions=self.sessions, store=self.store, public_url=URL)
        summary = evaluate_rules(evaluator, now=self.clock.now)
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock.now)
        return summary

    def send(self, receiver: Receiver, message: Message) -> None:
        """Deliver a message, which is read from the database."""

    def go(self, celsius: float, *, after: float = 61.0) -> EvaluationSummary:
        """Let the window pass, write one temperature and evaluate."""
        self.clock.advance(after)
        self.heat(celsius)
        return self.evaluate()

    def read(self, question: Callable[[Session], T]) -> T:
        with transaction(self.sessions) as session:
            return question(session)

    def alerts(self) -> list[Alert]:
        return self.read(lambda s: list(s.scalars(select(Alert).order_by(Alert.id))))

    def moves(self) -> list[tuple[str, str, str]]:
        order = select(AlertTransition).order_by(AlertTransition.at, AlertTransition.id)
        rows = self.read(lambda s: list(s.scalars(order)))
        return [(r.from_state.value, r.to_state.value, r.severity.value) for r in rows]

    def messages(self) -> list[Notification]:
        return self.read(lambda s: list(s.scalars(select(Notification).order_by(Notification.id))))


@pytest.fixture
def watch(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Watch:
    """Everything an evaluation needs, and no rule yet."""
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
        receiver, _secret = create_receiver(
            session,
            scope_of(cast.bob),
            name="ops",
            kind=ReceiverKind.EMAIL,
            target="ops@acme.example",
            box=BOX,
            now=NOON,
        )
    return Watch(sessions, store, clock, cast, appliance, receiver.id)


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


class PickyStore:
    """The store it is given, but down for questions about one measurement."""

    def __init__(self, store: Store, down_for: str) -> None:
        self._store = store
        self._down_for = down_for

    def query_range(self, query: RangeQuery) -> list[Series]:
        if query.measurement == self._down_for:
            raise StoreUnavailableError("The store does not answer. Try again later.")
        return self._store.query_range(query)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


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


def test_an_unavailable_store_is_not_missing_data(watch: Watch) -> None:
    watch.notifying_rule(no_data=NoDataPolicy.ALERT)
    watch.go(85.0)
    real, watch.store = watch.store, PickyStore(watch.store, down_for="gpu")  # type: ignore[assignment]
    watch.evaluate(after=120.0)
    assert [a.state for a in watch.alerts()] == [AlertState.FIRING]
    watch.store = real
    watch.go(85.0, after=1.0)
    assert watch.read(lambda s: s.scalars(select(Rule)).one().evaluation_error) == ""


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


def test_an_evaluation_that_comes_after_a_later_one_changes_nothing(watch: Watch) -> None:
    watch.rule(hot(aggregate="max"))
    watch.go(60.0)
    stalled_at = watch.clock.now
    watch.go(95.0)
    late = Evaluator(sessions=watch.sessions, store=watch.store)
    assert evaluate_rules(late, now=stalled_at).transitions == 0
    assert [a.state for a in watch.alerts()] == [AlertState.FIRING]


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


def test_a_gap_of_samples_starts_the_time_of_a_pending_alert_anew(watch: Watch) -> None:
    watch.notifying_rule(for_seconds=300.0)
    watch.go(85.0)
    watch.evaluate(after=61.0)
    for _ in range(5):
        watch.go(85.0, after=60.0)
    assert [move[1] for move in watch.moves()] == ["pending", "inactive", "pending"]
    watch.go(85.0, after=60.0)
    assert watch.moves()[-1][1] == "firing"
