"""Messages above the budget of a tenant: they wait, and then say what is true by then."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from alerting.evaluation.evaluator import record_groups
from alerting.evaluation.expression import Group
from alerting.evaluation.recorder import Recorder
from alerting.models import Receiver, Rule
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.notices import add_notice
from alerting.notification.senders.notify import DeliveryError
from alerting.rules.service import create_rule
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from tenants.lifecycle.message_budgets import MessageBudgets
from tests.cast import NOON, Cast, scope_of
from tests.unit.alerting.helpers import add_mail, drain_outbox, hot

HOUR = timedelta(hours=1)
OPS = "ops@acme.example"


@dataclass
class Outbox:
    """The outbox of acme, with one rule that notifies one address, and what arrived there."""

    sessions: SessionFactory
    tenant_id: str
    rule_id: str
    budgets: MessageBudgets
    subjects: list[str] = field(default_factory=list)
    is_down: bool = False

    def send(self, _receiver: Receiver, message: Message) -> None:
        if self.is_down:
            raise DeliveryError("down")
        self.subjects.append(message.subject)

    def drain(self, now: datetime) -> list[str]:
        self.subjects.clear()
        senders = {ReceiverKind.EMAIL: self}
        drain_outbox(self.sessions, senders, budgets=self.budgets, now=now)
        return list(self.subjects)

    def notice(self, subject: str, *, now: datetime = NOON) -> None:
        payload = {"subject": subject, "text": "", "link": "", "link_name": ""}
        with transaction(self.sessions) as session:
            add_notice(session, self.tenant_id, payload, address=OPS, now=now)

    def observe(self, celsius: float, *, now: datetime) -> None:
        with transaction(self.sessions) as session:
            recorder = Recorder(session, session.get_one(Rule, self.rule_id), now)
            group = Group({"appliance": "a1", "gpu": "0"}, celsius)
            record_groups(recorder, [group], frozenset(), is_missing_known=True)

    def waiting(self) -> list[Notification]:
        with transaction(self.sessions) as session:
            is_waiting = Notification.state == NotificationState.WAITING
            return list(session.scalars(select(Notification).where(is_waiting)))


@pytest.fixture
def outbox(sessions: SessionFactory, cast: Cast) -> Outbox:
    with transaction(sessions) as session:
        scope = scope_of(cast.bob)
        receiver = add_mail(session, scope)
        rule = create_rule(session, scope, hot(receiver_ids=[receiver.id]), now=NOON)
    return Outbox(sessions, cast.acme.id, rule.id, MessageBudgets(of_tenant=2, of_alerts=1))


def test_messages_above_the_budget_wait_for_the_next_hour_with_the_reason(outbox: Outbox) -> None:
    for subject in ("first", "second", "third"):
        outbox.notice(subject)
    assert outbox.drain(NOON) == ["first", "second"]
    [held] = outbox.waiting()
    assert (held.next_try_at, held.tries) == (NOON + HOUR, 0)
    assert "limit of 2 messages within an hour" in held.last_error
    outbox.notice("fourth", now=NOON + HOUR / 2)
    assert outbox.drain(NOON + HOUR / 2) == []
    assert outbox.drain(NOON + HOUR) == ["third", "fourth"]
    assert outbox.waiting() == []


def test_alerts_have_a_reserve_that_other_messages_do_not_use(outbox: Outbox) -> None:
    for number in range(3):
        outbox.notice(str(number))
    outbox.drain(NOON)
    outbox.observe(95, now=NOON)
    [subject] = outbox.drain(NOON)
    assert "GPU too hot" in subject


def test_an_alert_above_the_reserve_is_reported_with_its_state_of_the_next_hour(
    outbox: Outbox,
) -> None:
    outbox.observe(95, now=NOON)
    assert len(outbox.drain(NOON)) == 1
    minute = timedelta(minutes=1)
    for number, celsius in enumerate((20, 95, 20), 1):
        outbox.observe(celsius, now=NOON + number * minute)
        assert outbox.drain(NOON + number * minute) == []
    [held] = outbox.waiting()
    assert "limit of 1 messages" in held.last_error
    [subject] = outbox.drain(NOON + HOUR)
    assert "resolved" in subject.lower()


def test_messages_that_fail_and_those_of_other_tenants_use_nothing_of_it(
    outbox: Outbox, cast: Cast
) -> None:
    outbox.is_down = True
    outbox.notice("first")
    outbox.drain(NOON)
    outbox.is_down = False
    with transaction(outbox.sessions) as session:
        payload = {"subject": "other", "text": "", "link": "", "link_name": ""}
        for _ in range(3):
            add_notice(session, cast.globex.id, payload, address="a@globex.example", now=NOON)
    outbox.notice("second", now=NOON + timedelta(seconds=20))
    sent = outbox.drain(NOON + timedelta(seconds=20))
    assert sorted(sent) == ["first", "other", "other", "second"]
