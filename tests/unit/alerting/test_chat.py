"""Chat and paging services: which addresses are accepted, and what arrives."""

import json
from collections.abc import Iterator

import pytest

from alerting.chat import ChatSender
from alerting.chat_addresses import chat_errors
from alerting.messages import render
from alerting.models import Receiver
from alerting.notification_models import Notification
from alerting.notify import DeliveryError
from alerting.states import NotificationState, ReceiverKind
from tests.cast import BOX, NOON
from tests.unit.alerting.helpers import PAYLOAD
from tests.unit.alerting.servers import Hook, hook_server

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A running web server that takes posts."""
    with hook_server() as hook:
        hook.status = 200
        yield hook


def send(target: str, **changes: object) -> None:
    """Send a message to an address; `json` stands for a service on this host."""
    notification = Notification(
        id="n1",
        payload=PAYLOAD | changes,
        state=NotificationState.WAITING,
        created_at=NOON,
    )
    receiver = Receiver(
        name="chat", kind=ReceiverKind.CHAT, target="json://…", secret=BOX.encrypt(target)
    )
    sender = ChatSender(box=BOX, services=frozenset({"json"}))
    sender.send(receiver, render(notification))


@pytest.mark.parametrize(
    "target",
    [
        SLACK,
        "tgram://123456789:abcdefghijklmnopqrstuvwxyz0123456789/12315544",
        "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    ],
)
def test_the_address_of_a_known_service_is_accepted(target: str) -> None:
    assert chat_errors(target) == []


@pytest.mark.parametrize(
    "target",
    [
        "json://127.0.0.1:8080/",
        "mailto://user:pass@gmail.com",
        "https://hooks.slack.com/services/T1/B1/x",
        "slack://short",
        f"{SLACK}?rto=86400",
        f"{SLACK}?retry=1000",
        "exec://rm",
    ],
)
def test_other_addresses_are_refused_without_being_repeated(target: str) -> None:
    (error,) = chat_errors(target)
    assert target not in error


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "failure"), ({"severity": "warning"}, "warning"), ({"state": "resolved"}, "success")],
)
def test_a_message_arrives_with_its_kind(hook: Hook, changes: dict[str, object], kind: str) -> None:
    send(hook.url.replace("http", "json"), **changes)
    ((_, body),) = hook.posts
    found = json.loads(body)
    assert found["type"] == kind
    assert "GPU <too> hot on gpu-01 (gpu 3)" in found["title"]
    assert "85 °C" in found["message"]


@pytest.mark.parametrize("status", [404, 429, 500])
def test_a_refusal_is_a_delivery_error_without_the_address(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(DeliveryError) as caught:
        send(hook.url.replace("http", "json").replace("/hook", "/secret-token"))
    assert "secret-token" not in caught.value.message
