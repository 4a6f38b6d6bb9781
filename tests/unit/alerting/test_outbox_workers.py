"""A receiver that answers slowly holds its own messages only."""

import threading
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from alerting.models import Receiver
from alerting.notification.messages import Message
from alerting.notification.models import Notification
from alerting.notification.outbox_workers import THREADS_PER_TENANT, OutboxWorkers
from alerting.states import NotificationState, ReceiverKind
from core.db import SessionFactory, transaction
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.fixtures.polling import eventually
from tests.unit.alerting.helpers import add_mail


@dataclass
class SlowForAcme:
    """A sender that keeps acme's messages until it is released."""

    released: threading.Event = field(default_factory=threading.Event)
    waiting: list[str] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)

    def send(self, receiver: Receiver, message: Message) -> None:
        if receiver.name.startswith("acme"):
            self.waiting.append(receiver.name)
            assert self.released.wait(30)
        self.sent.append((receiver.name, message.id))


@pytest.fixture
def queued(sessions: SessionFactory, cast: Cast) -> dict[str, list[str]]:
    """Three messages to each of six receivers of acme, and to one of globex, by receiver."""
    owners = {f"acme-{number}": cast.bob for number in range(THREADS_PER_TENANT + 2)}
    queued: dict[str, list[str]] = {}
    with transaction(sessions) as session:
        for name, user in {**owners, "globex": cast.charlie}.items():
            receiver = add_mail(session, scope_of(user), name)
            for number in range(3):
                row = Notification(
                    tenant_id=receiver.tenant_id,
                    receiver_id=receiver.id,
                    payload={
                        "kind": "notice",
                        "subject": f"{name} {number}",
                        "text": "",
                        "link": "",
                        "link_name": "",
                    },
                    state=NotificationState.WAITING,
                    next_try_at=NOON,
                    created_at=NOON,
                )
                session.add(row)
                session.flush()
                queued.setdefault(name, []).append(row.id)
    return queued


def test_a_slow_tenant_takes_its_part_of_the_threads_and_delays_nobody(
    sessions: SessionFactory, clock: FrozenClock, queued: dict[str, list[str]]
) -> None:
    sender = SlowForAcme()
    workers = OutboxWorkers(sessions, {ReceiverKind.EMAIL: sender}, clock=clock)
    try:
        workers.start_due()
        eventually(lambda: len(sender.sent) == 3, what="the messages of globex")
        assert sender.sent == [("globex", ident) for ident in queued["globex"]]
        eventually(lambda: len(sender.waiting) == THREADS_PER_TENANT, what="acme's part")
        assert len(set(sender.waiting)) == THREADS_PER_TENANT
        workers.start_due()
        assert len(sender.waiting) == THREADS_PER_TENANT
        sender.released.set()
        # Receivers that waited for a thread follow by themselves.
        eventually(lambda: len(sender.sent) == 3 * len(queued), what="all messages")
    finally:
        sender.released.set()
        workers.close()
    for name, idents in queued.items():
        assert [ident for receiver, ident in sender.sent if receiver == name] == idents
    with transaction(sessions) as session:
        assert set(session.scalars(select(Notification.state))) == {NotificationState.SENT}
