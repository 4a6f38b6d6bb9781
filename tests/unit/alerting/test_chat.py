"""Chat and paging services: which addresses are accepted, what arrives, and where nothing goes."""

import json
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests

from alerting.models import Receiver
from alerting.notification.messages import render
from alerting.notification.models import Notification
from alerting.notification.senders import chat_requests
from alerting.notification.senders.chat import ChatSender
from alerting.notification.senders.chat_addresses import (
    SERVICES,
    ChatService,
    Services,
    chat_errors,
    chat_service,
)
from alerting.notification.senders.notify import DeliveryError
from alerting.notification.senders.webhooks import AddressPolicy
from alerting.states import NotificationState, ReceiverKind
from tests.cast import BOX, NOON
from tests.fixtures.certificates import Authority
from tests.unit.alerting.helpers import PAYLOAD
from tests.unit.alerting.servers import LOOPBACK, Hook, hook_server

SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
ADDRESSES = {
    "discord": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "gchat": "gchat://workspace/key/token",
    "opsgenie": "opsgenie://12345678-1234-1234-1234-123456789012?region=eu",
    "pagerduty": "pagerduty://AAAAAAAAAAAAAAAAAAAA@bbbbbbbbbbbbbbbbbbbb",
    "pover": f"pover://{'u' * 30}@{'a' * 30}",
    "signl4": "signl4://secret",
    "slack": SLACK,
    "tgram": "tgram://123456789:abcdefghijklmnopqrstuvwxyz0123456789/12315544",
    "twilio": f"twilio://AC{'a' * 32}:{'b' * 32}@12345678901/12345678902",
    "victorops": "victorops://route@12345678-1234-1234-1234-123456789012",
    "webex": f"webex://{'a' * 80}",
    "workflows": "workflows://prod-1.westeurope.logic.azure.com:443/643e69f83c8944/aBcD",
}
# On this host, where real services can't be.
JSON = {"jsons": ChatService("JSON", ("127.0.0.1",))}
PRIVATE = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "::1", "fe80::1", "fd00::1"]


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A running web server with a certificate that this process trusts."""
    authority = Authority(tmp_path, "authority")
    pair = authority.issue("hook")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    with hook_server(context) as hook:
        hook.status = 200
        yield hook


def send(
    target: str,
    *,
    policy: AddressPolicy = LOOPBACK,
    services: Services = JSON,
    changes: Mapping[str, object] | None = None,
) -> None:
    """Send a message to an address."""
    notification = Notification(
        id="n1",
        payload=PAYLOAD | dict(changes or {}),
        state=NotificationState.WAITING,
        created_at=NOON,
    )
    receiver = Receiver(
        name="chat", kind=ReceiverKind.CHAT, target="json://…", secret=BOX.encrypt(target)
    )
    sender = ChatSender(box=BOX, policy=policy, services=services)
    sender.send(receiver, render(notification))


def address_of(hook: Hook) -> str:
    return hook.url.replace("https", "jsons")


@pytest.mark.parametrize("scheme", SERVICES)
def test_the_address_of_a_known_service_is_accepted(scheme: str) -> None:
    assert chat_errors(ADDRESSES[scheme]) == []


@pytest.mark.parametrize(
    "target",
    [
        "json://127.0.0.1:8080/",
        "mailto://user:pass@gmail.com",
        "mqtt://127.0.0.1/topic",
        "syslog://",
        "dbus://",
        "https://hooks.slack.com/services/T1/B1/x",
        "slack://short",
        "slack:/short",
        "discord://[",
        "exec://rm",
        f"{SLACK}/{'/'.join(f'%23channel-{number}' for number in range(11))}",
    ],
)
def test_other_addresses_are_refused_without_being_repeated(target: str) -> None:
    (error,) = chat_errors(target)
    assert target not in error


@pytest.mark.parametrize("scheme", SERVICES)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("template", "http://127.0.0.1:1/?%2BX-aws=1"),
        ("template", "/etc/passwd"),
        ("Template", "file:///etc/passwd"),
        ("%74emplate", "/etc/passwd"),
        ("verify", "no"),
        ("CTO", "600"),
        ("RTO", "600"),
        ("RETRY", "1000"),
        ("wait", "600"),
        ("redirect", "yes"),
        ("store", "no"),
        ("format", "html"),
        ("+X-aws", "1"),
        (":token", "1"),
        ("-x", "1"),
        ("unheard-of", "1"),
    ],
)
def test_options_that_do_not_shape_the_message_are_refused_by_name(
    scheme: str, name: str, value: str
) -> None:
    start = ADDRESSES[scheme] + ("&" if "?" in ADDRESSES[scheme] else "?")
    (error,) = chat_errors(f"{start}{name}={value}")
    assert repr(name.replace("%74", "t").lower()) in error
    # apprise splits at semicolons, too, and knows no fragments.
    for before in ("thread=1;", "thread=1#&"):
        assert chat_errors(f"{start}{before}{name}={value}") != []


@pytest.mark.parametrize("scheme", SERVICES)
@pytest.mark.parametrize("address", PRIVATE)
def test_a_service_reaches_its_own_hosts_at_public_addresses_only(
    scheme: str, address: str
) -> None:
    resolved: list[str] = []

    def resolve(host: str) -> list[str]:
        resolved.append(host)
        return ["93.184.215.14", address]

    with pytest.raises(DeliveryError, match="is in a private network"):
        send(ADDRESSES[scheme], policy=AddressPolicy(resolve=resolve), services=SERVICES)
    assert resolved
    assert all(SERVICES[scheme].has_host(host) for host in resolved)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "logic.azure.com", "xlogic.azure.com", "a.logic.azure.com.evil.example"],
)
def test_a_host_that_is_not_the_services_own_is_not_resolved(host: str) -> None:
    resolved: list[str] = []

    def resolve(name: str) -> list[str]:
        resolved.append(name)
        return []

    policy = AddressPolicy(resolve=resolve)
    with pytest.raises(DeliveryError, match="may not send to"):
        send(f"workflows://{host}/643e69f83c8944/aBcD", policy=policy, services=SERVICES)
    assert resolved == []


def test_no_module_of_apprise_has_another_way_out(hook: Hook) -> None:
    send(address_of(hook))
    modules = {name: module for name, module in sys.modules.items() if name.startswith("apprise.")}
    assert [
        name for name, module in modules.items() if vars(module).get("requests") is requests
    ] == []
    ways = {"socket", "smtplib", "urllib3", "http", "httpx", "subprocess", "ctypes"}
    for scheme, target in ADDRESSES.items():
        plugin = chat_service(target)
        assert plugin is not None, scheme
        assert ways.isdisjoint(vars(sys.modules[type(plugin).__module__])), scheme
    own = sys.modules["apprise.plugins.custom_json"].requests
    with pytest.raises(requests.ConnectionError, match="while a message is delivered"):
        own.post(hook.url)
    assert len(hook.posts) == 1


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "failure"), ({"severity": "warning"}, "warning"), ({"state": "resolved"}, "success")],
)
def test_a_message_arrives_with_its_kind(hook: Hook, changes: dict[str, object], kind: str) -> None:
    send(address_of(hook), changes=changes)
    ((_, body),) = hook.posts
    posted = json.loads(body)
    assert posted["type"] == kind
    assert "GPU <too> hot on gpu-01 (gpu 3)" in posted["title"]
    assert "85 °C" in posted["message"]


@pytest.mark.parametrize("status", [302, 404, 429, 500])
def test_a_refusal_is_a_delivery_error_without_the_address(hook: Hook, status: int) -> None:
    hook.status, hook.location = status, hook.url
    with pytest.raises(DeliveryError, match=f"JSON responded {status}") as caught:
        send(address_of(hook).replace("/hook", "/secret-token"))
    assert "secret-token" not in caught.value.message
    assert len(hook.posts) == 1


def test_a_certificate_of_another_authority_is_refused(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "other", "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(other.certificate))
    with pytest.raises(DeliveryError, match="did not respond"):
        send(address_of(hook))
    assert hook.posts == []


def test_plain_http_and_large_answers_are_refused(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeliveryError):
        send(
            hook.url.replace("https", "json"),
            services={"json": ChatService("JSON", ("127.0.0.1",))},
        )
    assert hook.posts == []
    monkeypatch.setattr(chat_requests, "MAX_ANSWER_BYTES", 10)
    hook.content = b"x" * 11
    with pytest.raises(DeliveryError, match="too large"):
        send(address_of(hook))


def test_a_delivery_ends_in_bounded_time(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_requests, "DELIVERY_SECONDS", 0.0)
    with pytest.raises(DeliveryError, match="took longer"):
        send(address_of(hook))
    assert hook.posts == []
