"""The outbox: every message is delivered, or retried for a day and then given up with its error."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from alerting.models import Receiver
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.outbox import RETRY_FOR, retry_delay
from alerting.notification.receivers import create_receiver
from alerting.notification.senders.notify import DeliveryError, Sender, WebhookSender
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from tenants.models import User
from tests.cast import BOX, NOON, Cast, scope_of
from tests.unit.alerting.helpers import PAYLOAD, drain_outbox
from tests.unit.alerting.servers import LOOPBACK, hook_server

S = NotificationState


@dataclass
class Postbox:
    """A sender that keeps what it is given, and fails for the receivers in `down`."""

    down: set[str] = field(default_factory=set)
    sent: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    def send(self, receiver: Receiver, message: Message) -> None:
        self.tried.append(message.id)
        if receiver.name in self.down:
            raise DeliveryError(f"{receiver.name} does not answer")
        self.sent.append(message.id)
        self.texts.append(message.text)


@dataclass
class Office:
    """The outbox of acme with two receivers, `ops` and `hook`."""

    sessions: SessionFactory
    receivers: dict[str, str]
    tenant_id: str

    def post(self, receiver: str = "ops", *, at: datetime = NOON) -> str:
        with transaction(self.sessions) as session:
            row = Notification(
                tenant_id=self.tenant_id,
                receiver_id=self.receivers[receiver],
                payload=PAYLOAD,
                state=S.WAITING,
                next_try_at=at,
                created_at=at,
            )
            session.add(row)
            session.flush()
            return row.id

    def drain(self, sender: Sender, *, after: timedelta = timedelta(0)) -> int:
        senders = dict.fromkeys(ReceiverKind, sender)
        return drain_outbox(self.sessions, senders, now=NOON + after)

    def rows(self) -> dict[str, Notification]:
        with transaction(self.sessions) as session:
            return {row.id: row for row in session.scalars(select(Notification))}


@pytest.fixture
def office(sessions: SessionFactory, cast: Cast) -> Office:
    """An empty outbox."""
    with transaction(sessions) as session:
        receivers = {
            name: create_receiver(
                session, scope_of(cast.bob), name=name, kind=kind, target=target, box=BOX, now=NOON
            )[0].id
            for name, kind, target in (
                ("ops", ReceiverKind.EMAIL, "ops@acme.example"),
                ("hook", ReceiverKind.WEBHOOK, "https://acme.example/hook"),
            )
        }
    return Office(sessions, receivers, cast.acme.id)


def test_a_message_is_sent_once(office: Office) -> None:
    ident, postbox = office.post(), Postbox()
    assert [office.drain(postbox), office.drain(postbox)] == [1, 0]
    row = office.rows()[ident]
    assert (row.state, row.sent_at, row.tries, postbox.sent) == (S.SENT, NOON, 1, [ident])


def test_an_email_is_in_the_time_zone_of_the_user_who_receives_it(
    office: Office, sessions: SessionFactory, cast: Cast
) -> None:
    with transaction(sessions) as session:
        user = session.get_one(User, cast.bob.id)
        user.time_zone, user.email = "Asia/Kolkata", "ops@acme.example"
    office.post()
    office.post("hook")
    postbox = Postbox()
    office.drain(postbox)
    times = [re.findall("Started at: *(.*)", text) for text in postbox.texts]
    assert times == [["2026-03-02 17:30:00 IST"], ["2026-03-02 12:00:00 UTC"]]


def test_a_failed_message_waits_and_keeps_its_error(office: Office) -> None:
    ident, postbox = office.post(), Postbox(down={"ops"})
    assert office.drain(postbox) == 0
    row = office.rows()[ident]
    assert (row.state, row.tries, row.last_error) == (S.WAITING, 1, "ops does not answer")
    assert row.next_try_at == NOON + timedelta(seconds=10)


def test_a_failed_message_is_sent_when_its_receiver_is_back(office: Office) -> None:
    ident, postbox = office.post(), Postbox(down={"ops"})
    office.drain(postbox)
    postbox.down.clear()
    assert office.drain(postbox, after=timedelta(seconds=9)) == 0
    assert office.drain(postbox, after=timedelta(seconds=10)) == 1
    assert (office.rows()[ident].tries, office.rows()[ident].last_error) == (2, "")


def test_the_wait_doubles_up_to_an_hour() -> None:
    seconds = [retry_delay(tries).total_seconds() for tries in (1, 2, 3, 9, 10, 10_000)]
    assert seconds == [10, 20, 40, 2560, 3600, 3600]


def test_a_message_is_given_up_after_a_day(office: Office) -> None:
    ident, postbox = office.post(), Postbox(down={"ops"})
    office.drain(postbox, after=RETRY_FOR - timedelta(seconds=1))
    assert office.rows()[ident].state is S.WAITING
    office.drain(postbox, after=RETRY_FOR + timedelta(seconds=9))
    assert office.rows()[ident].state is S.FAILED
    assert office.rows()[ident].last_error == "ops does not answer"


def test_a_dead_receiver_is_tried_once_a_round_and_delays_no_other(office: Office) -> None:
    first = [office.post() for _ in range(3)]
    other, postbox = office.post("hook"), Postbox(down={"ops"})
    assert office.drain(postbox) == 1
    assert (postbox.tried, postbox.sent) == ([first[0], other], [other])
    assert [office.rows()[ident].tries for ident in first] == [1, 0, 0]


def test_an_error_of_the_sender_stops_no_other_message(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Postbox):
        def send(self, receiver: Receiver, message: Message) -> None:
            if receiver.name == "ops":
                raise KeyError("oops")
            super().send(receiver, message)

    ident, _ = office.post(), office.post("hook")
    with caplog.at_level(logging.ERROR):
        assert office.drain(Broken()) == 1
    assert office.rows()[ident].last_error == "Internal error: KeyError: 'oops'"


def test_a_kind_without_a_sender_is_an_error_of_the_message(office: Office) -> None:
    ident = office.post()
    assert drain_outbox(office.sessions, {}, now=NOON) == 0
    assert office.rows()[ident].last_error.endswith("email.")


def test_two_workers_that_drain_at_once_send_each_message_once(office: Office) -> None:
    idents, postbox = [office.post() for _ in range(6)], Postbox()
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(lambda _: office.drain(postbox), range(2)))
    assert (sum(counts), sorted(postbox.sent)) == (6, idents)


def test_a_message_claimed_by_a_worker_that_died_is_sent_after_the_lease(office: Office) -> None:
    class Killed(Postbox):
        def send(self, receiver: Receiver, message: Message) -> None:
            raise KeyboardInterrupt(receiver.name, message.id)

    ident, postbox = office.post(), Postbox()
    with pytest.raises(KeyboardInterrupt):
        office.drain(Killed())
    assert office.drain(postbox, after=timedelta(minutes=4)) == 0
    assert office.drain(postbox, after=timedelta(minutes=5)) == 1
    assert office.rows()[ident].tries == 2


def test_a_message_goes_all_the_way_to_a_real_server(office: Office) -> None:
    ident = office.post("hook")
    with hook_server() as hook:
        with transaction(office.sessions) as session:
            session.get_one(Receiver, office.receivers["hook"]).target = hook.url
        assert office.drain(WebhookSender(5.0, policy=LOOPBACK, box=BOX)) == 1
    assert office.rows()[ident].state is S.SENT
    assert len(hook.posts) == 1


def test_a_receiver_that_limits_the_rate_is_tried_when_it_asks_to_be(office: Office) -> None:
    ident = office.post("hook")
    sender = WebhookSender(5.0, policy=LOOPBACK, box=BOX)
    with hook_server() as hook:
        with transaction(office.sessions) as session:
            session.get_one(Receiver, office.receivers["hook"]).target = hook.url
        hook.status, hook.retry_after = 429, "120"
        assert office.drain(sender) == 0
        row = office.rows()[ident]
        assert "429 Too Many Requests" in row.last_error
        assert row.next_try_at == NOON + timedelta(seconds=120)
        # Without a valid time, and up to an hour.
        for retry_after, seconds in (("soon", 20), ("9" * 25, 3600), ("9" * 5000, 80)):
            hook.retry_after = retry_after
            at = office.rows()[ident].next_try_at
            office.drain(sender, after=at - NOON)
            assert office.rows()[ident].next_try_at == at + timedelta(seconds=seconds)
        hook.status = 204
        at = office.rows()[ident].next_try_at
        assert office.drain(sender, after=at - NOON) == 1
    assert len(hook.posts) == 5


def test_a_message_without_a_receiver_goes_to_its_address(office: Office, cast: Cast) -> None:
    notice = {
        "kind": "notice",
        "subject": "Nearly full",
        "text": "x",
        "link": "y",
        "link_name": "z",
    }
    with transaction(office.sessions) as session:
        for address in ("a@acme.example", "b@acme.example"):
            session.add(
                Notification(
                    tenant_id=cast.acme.id,
                    address=address,
                    payload=notice,
                    state=S.WAITING,
                    next_try_at=NOON,
                    created_at=NOON,
                )
            )
    postbox = Postbox(down={"a@acme.example"})
    assert office.drain(postbox) == 1
    states = {row.address: row.state for row in office.rows().values()}
    assert states == {"a@acme.example": S.WAITING, "b@acme.example": S.SENT}
    postbox.down.clear()
    assert office.drain(postbox, after=retry_delay(1)) == 1
