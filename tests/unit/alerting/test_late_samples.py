"""Samples that arrive after their windows were evaluated: what they show is sent later."""

from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.late_samples import MAX_SPAN, LateEvaluation
from alerting.language.text import parse_expression
from alerting.machine import LATE_HOLD
from alerting.models import Alert, AlertAction, Receiver
from alerting.notification.messages import Message
from alerting.rules.service import create_rule
from alerting.states import AlertState, ReceiverKind
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.ids import new_id
from tenants.models import Appliance, LateSamples, Tenant
from tests.cast import NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, evaluate_rules
from timeseries.points import FieldValue, Point
from timeseries.store import Store, write

HOT = "avg(gpu.temperature_celsius) over 1m by gpu > 80"
XID = 'sum(gpu_xid.events{xid="79"}) over 10m by gpu > 0 no_data resolve'
ECC = "increase(gpu.ecc_uncorrected) over 15m by gpu > 0 no_data resolve"


@dataclass
class Site:
    """Acme's appliance gpu-01, which was offline, and a receiver."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    appliance: Appliance
    receiver_id: str
    subjects: list[str] = field(default_factory=list)

    def rule(self, text: str, *actions: dict[str, object]) -> None:
        request = replace(
            parse_expression(text),
            name="Watch",
            receiver_ids=[self.receiver_id],
            actions=list(actions),
        )
        with transaction(self.sessions) as session:
            create_rule(session, scope_of(self.cast.alice), request, now=NOON - timedelta(days=1))

    def sample(self, measurement: str, *seconds: float, **fields: FieldValue) -> None:
        """Write samples of some seconds after noon, which arrive together now."""
        instants = [NOON + timedelta(seconds=after) for after in seconds]
        tags = {"gpu": "0"} | ({"xid": "79"} if measurement == "gpu_xid" else {})
        points = [Point(measurement, tags, fields, to_ns(at)) for at in instants]
        identity = {"tenant": self.cast.acme.id, "appliance": self.appliance.id}
        assert write(self.store, points, identity=identity) == []
        late = [at for at in instants if self.clock() - at > timedelta(seconds=30)]
        if late:
            with transaction(self.sessions) as session:
                session.add(
                    LateSamples(
                        id=new_id(),
                        tenant_id=self.cast.acme.id,
                        appliance_id=self.appliance.id,
                        measurements=[measurement],
                        first_at=min(late),
                        last_at=max(late),
                        arrived_at=self.clock(),
                    )
                )

    def evaluate(self, *, after: float = 0.0) -> None:
        self.clock.advance(after)
        evaluator = Evaluator(sessions=self.sessions, store=self.store)
        evaluate_rules(evaluator, now=self.clock())
        LateEvaluation(evaluator).run(now=self.clock())
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self}, now=self.clock())

    def send(self, _receiver: Receiver, message: Message) -> None:
        self.subjects.append(message.subject)

    def states(self) -> list[AlertState]:
        with transaction(self.sessions) as session:
            return list(session.scalars(select(Alert.state)))


@pytest.fixture
def site(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Site:
    """No rule yet."""
    with transaction(sessions) as session:
        appliance = make_appliance(session, session.get_one(Tenant, cast.acme.id), "gpu-01")
        receiver = add_mail(session, scope_of(cast.bob))
    return Site(sessions, store, clock, cast, appliance, receiver.id)


def test_an_event_that_arrives_after_its_window_fires_when_it_arrives(site: Site) -> None:
    site.rule(XID)
    site.evaluate()
    site.evaluate(after=15 * 60.0)
    site.sample("gpu_xid", 60.0, events=1)
    site.evaluate()
    site.evaluate(after=60.0)
    assert site.subjects == ["[WARNING, LATE] Watch on gpu-01 (gpu 0): 1"]
    site.evaluate(after=LATE_HOLD.total_seconds())
    assert site.subjects[1:] == ["[RESOLVED] Watch on gpu-01 (gpu 0): 1"]


def test_samples_that_are_always_later_than_their_window_are_judged(site: Site) -> None:
    site.rule(HOT)
    for minute in range(6):
        site.clock.now = NOON + timedelta(minutes=minute + 2)
        site.sample("gpu", minute * 60.0, temperature_celsius=95.0)
        site.evaluate()
    assert site.subjects == ["[WARNING, LATE] Watch on gpu-01 (gpu 0): 95 °C"]
    for minute in range(6, 20):
        site.clock.now = NOON + timedelta(minutes=minute + 2)
        site.sample("gpu", minute * 60.0, temperature_celsius=50.0)
        site.evaluate()
    assert site.subjects[1:] == ["[RESOLVED] Watch on gpu-01 (gpu 0): 95 °C"]


def test_an_increase_in_a_backlog_between_any_two_samples_fires(site: Site) -> None:
    site.rule(ECC)
    site.evaluate(after=75 * 60.0)
    for number, seconds in enumerate(range(0, 4500, 450)):
        site.sample("gpu", float(seconds), ecc_uncorrected=3 if number >= 4 else 2)
        site.evaluate()
    site.evaluate(after=3600.0)
    assert site.subjects == [
        "[WARNING, LATE] Watch on gpu-01 (gpu 0): 1",
        "[RESOLVED] Watch on gpu-01 (gpu 0): 0",
    ]


def test_what_fired_in_time_does_not_fire_late(site: Site) -> None:
    site.rule(HOT)
    site.sample("gpu", 0.0, temperature_celsius=95.0)
    site.evaluate(after=1.0)
    for seconds in range(10, 200, 10):
        site.clock.now = NOON + timedelta(seconds=seconds + 1)
        site.sample("gpu", float(seconds), temperature_celsius=95.0 if seconds < 90 else 50.0)
        site.evaluate()
    assert [subject.split()[0] for subject in site.subjects] == ["[WARNING]", "[RESOLVED]"]
    site.clock.advance(600.0)
    for late_seconds in (65.0, 75.0):
        site.sample("gpu", late_seconds, temperature_celsius=96.0)
    site.evaluate()
    assert len(site.subjects) == 2


def test_the_time_for_which_a_threshold_must_be_crossed_counts_in_a_backlog(site: Site) -> None:
    site.rule(HOT + " for 5m")
    site.evaluate(after=3600.0)
    site.sample("gpu", *range(0, 240, 30), *range(900, 1500, 30), temperature_celsius=95.0)
    site.sample("gpu", *range(240, 900, 30), *range(1500, 3000, 30), temperature_celsius=50.0)
    site.evaluate()
    assert len(site.subjects) == 1
    with transaction(site.sessions) as session:
        alert = session.scalars(select(Alert)).one()
    assert alert.active_since_at is not None
    assert alert.late_at is not None
    assert abs(alert.active_since_at - (NOON + timedelta(minutes=15))) <= timedelta(minutes=1)
    assert abs(alert.late_at - (NOON + timedelta(minutes=25))) <= timedelta(minutes=1)


def test_a_backlog_that_comes_in_parts_and_takes_hours_is_one_alert(site: Site) -> None:
    site.rule(HOT)
    site.evaluate(after=4 * 3600.0)
    for hour in range(3):
        seconds = range(hour * 3600, (hour + 1) * 3600, 30)
        site.sample("gpu", *seconds, temperature_celsius=95.0)
        site.evaluate(after=240.0)
    site.evaluate(after=LATE_HOLD.total_seconds())
    site.evaluate(after=3600.0)
    assert [subject.split()[0] for subject in site.subjects] == ["[WARNING,", "[RESOLVED]"]


def test_a_long_backlog_is_worked_off_in_parts(site: Site) -> None:
    site.rule(HOT)
    site.evaluate(after=8 * 3600.0)
    site.sample("gpu", 0.0, temperature_celsius=50.0)
    with transaction(site.sessions) as session:
        note = session.scalars(select(LateSamples)).one()
        note.last_at = NOON + timedelta(hours=7)
    site.sample("gpu", 6.5 * 3600.0, temperature_celsius=95.0)
    calls = 0
    while not site.subjects:
        site.evaluate(after=15.0)
        calls += 1
    assert calls == timedelta(hours=6.5) // MAX_SPAN + 1
    site.evaluate()
    with transaction(site.sessions) as session:
        assert session.scalars(select(LateSamples)).all() == []


def test_samples_from_before_a_rule_do_not_fire_it(site: Site) -> None:
    site.evaluate(after=3600.0)
    site.sample("gpu", -2 * 86_400.0, temperature_celsius=95.0)
    site.rule(HOT)
    site.evaluate()
    assert site.states() == []


def test_an_appliance_that_was_retired_does_not_fire_late(site: Site) -> None:
    site.rule(HOT)
    site.evaluate(after=3600.0)
    site.sample("gpu", 60.0, temperature_celsius=95.0)
    with transaction(site.sessions) as session:
        session.get_one(Appliance, site.appliance.id).retired_at = site.clock()
    site.evaluate()
    assert site.states() == []


def test_nothing_is_drained_for_late_samples(site: Site) -> None:
    site.rule(XID, {"kind": "drain"})
    site.evaluate(after=3600.0)
    site.sample("gpu_xid", 60.0, events=1)
    site.evaluate()
    with transaction(site.sessions) as session:
        assert session.scalars(select(AlertAction)).all() == []


def test_late_samples_fire_where_both_conditions_hold(site: Site) -> None:
    site.rule(f"{HOT} and last(gpu.utilization_percent) over 1m > 50")
    site.evaluate()
    site.evaluate(after=20 * 60.0)
    site.sample("gpu", 60.0, temperature_celsius=90.0, utilization_percent=10.0)
    site.evaluate(after=10.0)
    assert site.states() == []
    site.sample("gpu", 300.0, temperature_celsius=90.0, utilization_percent=90.0)
    site.evaluate(after=10.0)
    assert site.states() == [AlertState.FIRING]


def test_what_is_late_and_lasts_ends_when_it_recovers(site: Site) -> None:
    site.rule(HOT)
    site.clock.advance(10 * 60.0)
    for seconds in range(0, 600, 10):
        site.sample("gpu", seconds, temperature_celsius=95.0)
    LateEvaluation(Evaluator(sessions=site.sessions, store=site.store)).run(now=site.clock())
    with transaction(site.sessions) as session:
        late_at = session.scalars(select(Alert.late_at)).one()
    assert late_at is not None
    assert late_at <= site.clock()
    site.evaluate()
    site.sample("gpu", 660.0, temperature_celsius=50.0)
    site.evaluate(after=90.0)
    assert site.states() == [AlertState.RESOLVED]
