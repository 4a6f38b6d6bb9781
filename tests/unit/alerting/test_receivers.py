"""Receivers are edited and tested, and show none of their secrets."""

import pytest
from sqlalchemy.orm import Session

from alerting.models import Receiver
from alerting.notification.receivers import create_receiver, send_test, signing_key, update_receiver
from alerting.states import NotificationState, ReceiverKind
from core.errors import ForbiddenError, InvalidInputError, NotFoundError
from tests.cast import BOX, NOON, Cast, scope_of

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


def make(session: Session, cast: Cast, kind: ReceiverKind, target: str) -> Receiver:
    receiver, _secret = create_receiver(
        session, scope_of(cast.bob), name="ops", kind=kind, target=target, box=BOX, now=NOON
    )
    return receiver


@pytest.mark.parametrize(
    ("kind", "target", "shown"),
    [
        (ReceiverKind.EMAIL, "ops@acme.example", "ops@acme.example"),
        (
            ReceiverKind.WEBHOOK,
            "https://u:p@hooks.example:8443/services/T1/secret?key=1",
            "https://hooks.example:8443/…",
        ),
        (ReceiverKind.ALERTMANAGER, "http://am.example:9093", "http://am.example:9093"),
        (ReceiverKind.CHAT, SLACK, "slack://…"),
    ],
)
def test_a_target_is_shown_without_its_secrets(
    session: Session, cast: Cast, kind: ReceiverKind, target: str, shown: str
) -> None:
    assert make(session, cast, kind, target).shown_target == shown


def test_the_address_of_a_chat_service_is_stored_encrypted(session: Session, cast: Cast) -> None:
    longest = SLACK + "/#" + "c" * (248 - len(SLACK))
    receiver = make(session, cast, ReceiverKind.CHAT, longest)
    assert signing_key(receiver, BOX) == longest
    assert len(receiver.secret) <= Receiver.secret.type.length
    assert "TIiaj" not in receiver.target + receiver.secret


def test_a_changed_receiver_keeps_what_is_left_empty(session: Session, cast: Cast) -> None:
    receiver = make(session, cast, ReceiverKind.WEBHOOK, "https://hooks.example/1")
    secret = receiver.secret
    scope = scope_of(cast.bob)
    update_receiver(session, scope, receiver.id, name="on call", target="", box=BOX)
    assert (receiver.name, receiver.target) == ("on call", "https://hooks.example/1")
    update_receiver(
        session, scope, receiver.id, name="on call", target="https://hooks.example/2", box=BOX
    )
    assert (receiver.target, receiver.secret) == ("https://hooks.example/2", secret)
    with pytest.raises(InvalidInputError) as caught:
        update_receiver(session, scope, receiver.id, name="", target="nothing", box=BOX)
    assert set(caught.value.errors) == {"name", "target"}


def test_a_test_message_waits_in_the_outbox(session: Session, cast: Cast) -> None:
    receiver = make(session, cast, ReceiverKind.EMAIL, "ops@acme.example")
    sent = send_test(
        session, scope_of(cast.bob), receiver.id, public_url="https://portal.example", now=NOON
    )
    assert (sent.state, sent.receiver_id) == (NotificationState.WAITING, receiver.id)
    assert sent.payload["link"] == "https://portal.example/receivers"


def test_only_editors_of_its_tenant_test_a_receiver(session: Session, cast: Cast) -> None:
    receiver = make(session, cast, ReceiverKind.EMAIL, "ops@acme.example")
    with pytest.raises(NotFoundError):
        send_test(session, scope_of(cast.charlie), receiver.id, public_url="", now=NOON)
    with pytest.raises(ForbiddenError):
        send_test(session, scope_of(cast.olivia), receiver.id, public_url="", now=NOON)
