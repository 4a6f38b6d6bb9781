"""Alerts of a policy from the evaluation to the mailbox: groups, repeats, escalation, holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import product

import pytest
from sqlalchemy import delete, select, update

from alerting.evaluation.evaluator import Evaluator
from alerting.evaluation.reminders import send_reminders
from alerting.models import Alert, Receiver, Rule
from alerting.notification.inhibition import SHIPPED, printed_rules
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.policies import (
    preview_policy,
    read_inhibit_rules,
    read_policy,
    save_policy,
)
from alerting.notification.receivers import delete_receiver, update_receiver
from alerting.notification.routes import printed
from alerting.notification.senders.notify import DeliveryError
from alerting.rules.pack import offer_rules
from alerting.rules.service import acknowledge_alert, create_rule, set_rule_enabled
from alerting.states import AlertState, NotificationState, ReceiverKind
from core.clock import to_ns
from core.db import SessionFactory, transaction
from core.errors import ConflictError, InvalidInputError
from tenants.models import Tenant
from tests.cast import BOX, NOON, Cast, FrozenClock, make_appliance, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, evaluate_rules, heat, hot
from timeseries.lineprotocol.parser import parse
from timeseries.store import Store


@dataclass
class Inbox:
    """A sender that keeps what it is given."""

    mails: list[tuple[str, Message]] = field(default_factory=list)
    errors: list[DeliveryError] = field(default_factory=list)

    def send(self, receiver: Receiver, message: Message) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.mails.append((receiver.name, message))


@dataclass
class Scene:
    """Acme with two receivers, a hot rule without own receivers, and time."""

    sessions: SessionFactory
    store: Store
    clock: FrozenClock
    cast: Cast
    inbox: Inbox
    ids: dict[str, str]

    def policy(self, **route: object) -> None:
        with transaction(self.sessions) as session:
            save_policy(session, scope_of(self.cast.bob), {**route}, now=self.clock.now)

    def heat(self, *gpus: str, celsius: float = 85.0, appliances: Sequence[str] = ("a1",)) -> None:
        at, tenant = self.clock.now - timedelta(seconds=1), self.cast.acme.id
        for appliance, gpu in product(appliances, gpus):
            heat(self.store, tenant=tenant, celsius=celsius, at=at, appliance=appliance, gpu=gpu)

    def go(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        """Let time pass, evaluate, remind and send; return what arrived: receiver and subject."""
        self.clock.advance(seconds)
        before = len(self.inbox.mails)
        evaluate_rules(Evaluator(sessions=self.sessions, store=self.store), now=self.clock.now)
        send_reminders(self.sessions, now=self.clock.now)
        drain_outbox(self.sessions, {ReceiverKind.EMAIL: self.inbox}, now=self.clock.now)
        return [(name, message.subject) for name, message in self.inbox.mails[before:]]


@pytest.fixture
def scene(sessions: SessionFactory, store: Store, clock: FrozenClock, cast: Cast) -> Scene:
    """A scene without a policy."""
    scope = scope_of(cast.bob)
    with transaction(sessions) as session:
        ids = {name: add_mail(session, scope, name).id for name in ("Mail", "Manager")}
        ids["rule"] = create_rule(session, scope, hot(window_seconds=3600.0), now=NOON).id
    return Scene(sessions, store, clock, cast, Inbox(), ids)


def test_alerts_of_a_group_wait_for_each_other_and_then_for_the_interval(scene: Scene) -> None:
    scene.policy(receivers=["Mail"], group_by=["rule"], group_wait="30s", group_interval="5m")
    scene.heat("0", "1")
    assert scene.go() == []
    scene.clock.advance(10)
    scene.heat("2")
    assert scene.go() == []
    assert scene.go(20) == [("Mail", "[3 FIRING] GPU too hot")]
    assert len(scene.inbox.mails[0][1].payload["alerts"]) == 3

    scene.heat("3")
    assert scene.go(60) == []
    assert scene.go(240) == [("Mail", "[4 FIRING] GPU too hot")]
    message = scene.inbox.mails[-1][1]
    assert [payload["tags"]["gpu"] for payload in message.payload["alerts"]] == ["3", "0", "1", "2"]
    assert "Unchanged:\n[WARNING] GPU too hot on a1 (gpu 0): 85 °C\n" in message.text
    with transaction(scene.sessions) as session:
        states = set(session.scalars(select(Notification.state)))
    assert states == {NotificationState.SENT}


def test_an_alert_whose_message_may_have_arrived_is_resolved_whatever_failed_since(
    scene: Scene,
) -> None:
    scene.policy(receivers=["Mail"])
    scene.inbox.errors += [
        DeliveryError("timed out", may_have_arrived=True),
        DeliveryError("refused"),
        DeliveryError("refused"),
    ]
    scene.heat("0")
    assert scene.go() == []
    assert scene.go(60) == []
    with transaction(scene.sessions) as session:
        set_rule_enabled(
            session,
            scope_of(scene.cast.bob),
            scene.ids["rule"],
            is_enabled=False,
            now=scene.clock.now,
        )
    assert scene.go(60) == []
    assert scene.inbox.errors == []
    assert scene.go(3600) == [("Mail", "[RESOLVED] GPU too hot on a1 (gpu 0): 85 °C")]


def test_a_firing_alert_is_repeated_and_escalated_until_it_is_acknowledged(scene: Scene) -> None:
    scene.policy(
        receivers=["Mail"],
        repeat_interval="10m",
        escalate_after="15m",
        escalate_to=["Manager"],
    )
    scene.heat("0")
    assert [name for name, _ in scene.go()] == ["Mail"]
    assert scene.go(300) == []
    assert [name for name, _ in scene.go(300)] == ["Mail"]
    assert [name for name, _ in scene.go(300)] == ["Manager"]
    assert [name for name, _ in scene.go(300)] == ["Mail"]
    with transaction(scene.sessions) as session:
        alert = session.scalars(select(Alert)).one()
        acknowledge_alert(session, scope_of(scene.cast.bob), alert.id, now=scene.clock.now)
    assert scene.go(900) == []


def test_an_acknowledgement_ends_with_the_alert(scene: Scene) -> None:
    scene.policy(receivers=["Mail"])
    scene.heat("0")
    scene.go()
    with transaction(scene.sessions) as session:
        alert = session.scalars(select(Alert)).one()
        acknowledge_alert(session, scope_of(scene.cast.bob), alert.id, now=scene.clock.now)
    scene.clock.advance(3700)
    scene.heat("0", celsius=20.0)
    scene.go()
    with transaction(scene.sessions) as session, pytest.raises(ConflictError):
        acknowledge_alert(session, scope_of(scene.cast.bob), alert.id, now=scene.clock.now)
    scene.clock.advance(3700)
    scene.heat("0")
    scene.go()
    with transaction(scene.sessions) as session:
        fired_alert = session.scalars(select(Alert)).one()
    assert (fired_alert.state, fired_alert.acknowledged_at) == (AlertState.FIRING, None)


def test_an_appliance_that_is_down_holds_its_other_alerts(scene: Scene) -> None:
    scene.policy(receivers=["Mail"])
    with transaction(scene.sessions) as session:
        down = create_rule(
            session, scope_of(scene.cast.bob), hot(name="Down", field="power_watts"), now=NOON
        )
        down.pack_key, down.evaluated_at = "appliance-down", NOON
        session.flush()
        session.add(
            Alert(
                rule_id=down.id,
                tenant_id=scene.cast.acme.id,
                group_key="x",
                tags={"appliance": "a1"},
                state=AlertState.FIRING,
                severity="critical",
                observed_at=NOON,
                updated_at=NOON,
            )
        )
    scene.heat("0")
    assert scene.go() == [("Mail", "[CRITICAL] Down on a1")]
    assert scene.go(60) == []
    with transaction(scene.sessions) as session:
        session.execute(
            update(Alert).where(Alert.rule_id == down.id).values(state=AlertState.INACTIVE)
        )
    assert {subject for _, subject in scene.go(31)} == {
        "[RESOLVED] Down on a1",
        "[WARNING] GPU too hot on a1 (gpu 0): 85 °C",
    }


def test_an_alert_holds_those_that_a_rule_of_the_tenant_names(scene: Scene) -> None:
    """Critical alerts hold warnings of the same GPU; an alert never holds itself."""
    scope = scope_of(scene.cast.bob)
    rule = {
        "source_matchers": ["severity=~critical|warning", "gpu=0"],
        "target_matchers": ["rule=GPU too hot"],
        "equal": ["appliance_id"],
    }
    with transaction(scene.sessions) as session:
        save_policy(session, scope, {"receivers": ["Mail"]}, inhibit_rules=[rule], now=NOON)
        assert printed_rules(read_inhibit_rules(session, scope)) == [rule]
    scene.heat("0")
    assert [name for name, _ in scene.go()] == ["Mail"]
    scene.heat("1")
    assert scene.go(1) == []
    with transaction(scene.sessions) as session:
        save_policy(session, scope, {"receivers": ["Mail"]}, inhibit_rules=[], now=NOON)
    assert [name for name, _ in scene.go(31)] == ["Mail"]


def test_labels_of_appliances_route_group_and_inhibit(scene: Scene) -> None:
    """The alerts of a rack share a message; a critical one holds those of its rack only."""
    scope = scope_of(scene.cast.bob)
    with transaction(scene.sessions) as session:
        acme = session.get_one(Tenant, scene.cast.acme.id)
        racks = {"a": "b12", "b": "b12", "c": "c3"}
        fleet = {name: make_appliance(session, acme, name) for name in racks}
        for name, rack in racks.items():
            fleet[name].labels = {"rack": rack}
    by_rack = {
        "matchers": ["label.rack=~b.*|c.*"],
        "receivers": ["Mail"],
        "group_by": ["label.rack"],
    }
    scene.policy(routes=[by_rack])

    def receiver_names(labels: dict[str, str]) -> list[str]:
        with transaction(scene.sessions) as session:
            return [
                destination.receiver_name
                for destination in preview_policy(session, scope, labels, now=NOON)
            ]

    assert receiver_names({"appliance": "a"}) == receiver_names({"label.rack": "c3"}) == ["Mail"]
    assert (
        receiver_names({"appliance": "a", "label.rack": "z"})
        == receiver_names({"appliance": "z"})
        == []
    )

    scene.heat("0", appliances=[appliance.id for appliance in fleet.values()])
    assert {subject for _, subject in scene.go()} == {
        "[2 FIRING] GPU too hot",
        "[WARNING] GPU too hot on c (gpu 0): 85 °C",
    }
    inhibit = {
        "source_matchers": ["label.rack=b12", "gpu=0"],
        "target_matchers": ["gpu=1"],
        "equal": ["label.rack"],
    }
    with transaction(scene.sessions) as session:
        root = {"receivers": ["Mail"]}
        save_policy(session, scope, root, inhibit_rules=[inhibit], now=NOON)
    scene.heat("1", appliances=[fleet["a"].id, fleet["c"].id])
    assert [subject for _, subject in scene.go()] == ["[WARNING] GPU too hot on c (gpu 1): 85 °C"]


@pytest.mark.parametrize(
    "rule",
    [
        "text",
        {"target_matchers": ["a=b"]},
        {"source_matchers": ["a"], "target_matchers": ["a=b"]},
        {"source_matchers": ["a=b"], "target_matchers": ["a=b"], "other": []},
        {"source_matchers": ["a=b"], "target_matchers": ["a=b"], "equal": "gpu"},
    ],
)
def test_an_invalid_inhibition_rule_is_named_and_nothing_saved(scene: Scene, rule: object) -> None:
    scope = scope_of(scene.cast.bob)
    with transaction(scene.sessions) as session:
        with pytest.raises(InvalidInputError) as caught:
            save_policy(session, scope, {}, inhibit_rules=[rule], now=NOON)
        assert set(caught.value.errors) == {"inhibit_rules.0"}
        assert read_inhibit_rules(session, scope) == SHIPPED


def test_a_rules_own_receivers_are_notified_once_and_at_once(scene: Scene) -> None:
    scene.policy(receivers=["Mail", "Manager"], group_by=["rule"], group_wait="30s")
    with transaction(scene.sessions) as session:
        session.execute(update(Rule).values(receiver_ids=[scene.ids["Mail"]]))
    scene.heat("0")
    assert [name for name, _ in scene.go()] == ["Mail"]
    assert [name for name, _ in scene.go(30)] == ["Manager"]


def test_the_policy_follows_its_receivers(scene: Scene) -> None:
    scope = scope_of(scene.cast.bob)
    scene.policy(receivers=["Mail", "Manager"], escalate_after="1h", escalate_to=["Manager"])
    with transaction(scene.sessions) as session:
        update_receiver(session, scope, scene.ids["Mail"], name="Post", target="", box=BOX)
        delete_receiver(session, scope, scene.ids["Manager"])
        assert printed(read_policy(session, scope)) == {"receivers": ["Post"]}
        (destination,) = preview_policy(session, scope, {"rule": "x"}, now=NOON)
        assert destination.receiver_name == "Post"


def test_a_policy_has_receivers_of_its_tenant_only(scene: Scene) -> None:
    scope = scope_of(scene.cast.charlie)
    with transaction(scene.sessions) as session, pytest.raises(InvalidInputError) as caught:
        save_policy(session, scope, {"receivers": ["Mail"]}, now=NOON)
    assert set(caught.value.errors) == {"route.receivers"}


BROKEN = """
gpu_xid,gpu=0,xid=79 events=1
gpu,gpu=0,uuid=u lost=1,ecc_uncorrected_volatile=0
gpu_health gpus_missing=1,state=2
gpu_health,gpu=0 state=2
"""


@pytest.mark.parametrize(
    ("lines", "mails"),
    [
        (
            BROKEN.replace("lost=1", "lost=0"),
            ["Fatal XID on a1 (gpu 0, xid 79): 1"],
        ),
        (
            "gpu_health,gpu=0 state=2",
            ["GPU is not healthy on a1 (gpu 0): failed (2)"],
        ),
        # The alerts of another GPU are sent.
        (
            BROKEN + "gpu_health,gpu=1 state=2",
            [
                "GPU is lost on a1 (gpu 0, uuid u): yes (1)",
                "GPU is not healthy on a1 (gpu 1): failed (2)",
            ],
        ),
    ],
)
def test_one_broken_gpu_gives_one_message(scene: Scene, lines: str, mails: list[str]) -> None:
    scene.policy(receivers=["Mail"])
    with transaction(scene.sessions) as session:
        offer_rules(session, now=NOON)
        about_gpus = (Rule.tenant_id == scene.cast.acme.id) & Rule.measurement.like("gpu%")
        session.execute(delete(Rule).where(~about_gpus))
    identity = {"tenant": scene.cast.acme.id, "appliance": "a1"}
    sent = []
    for _ in range(8):
        at_ns = to_ns(scene.clock.now) - 1
        batch = parse(lines.encode(), default_time_ns=at_ns).batch
        assert scene.store.submit(batch, identity=identity).result() == []
        sent += scene.go(60)
    assert [subject for _, subject in sent] == [f"[CRITICAL] {text}" for text in mails]
