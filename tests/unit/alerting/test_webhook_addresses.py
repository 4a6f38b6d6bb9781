"""Webhooks reach public addresses and the networks that the operator allows."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

import dns.resolver
import pytest

from alerting.models import Receiver
from alerting.notification.messages import Message, render
from alerting.notification.models import Notification
from alerting.notification.senders.notify import DeliveryError, WebhookSender
from alerting.notification.senders.webhooks import AddressPolicy, Resolve
from alerting.states import NotificationState, ReceiverKind
from tests.cast import BOX, NOON
from tests.fixtures.certificates import Authority
from tests.servers import free_port
from tests.unit.alerting.helpers import PAYLOAD
from tests.unit.alerting.servers import Hook, dns_server, hook_server

LOOPBACK = (IPv4Network("127.0.0.0/8"),)


def message() -> Message:
    waiting = NotificationState.WAITING
    return render(Notification(id="n1", payload=PAYLOAD, state=waiting, created_at=NOON))


def to(target: str) -> Receiver:
    secret = BOX.encrypt("vdw_secret")
    return Receiver(name="ops", kind=ReceiverKind.WEBHOOK, target=target, secret=secret)


def sender(policy: AddressPolicy | None = None) -> WebhookSender:
    return WebhookSender(5.0, box=BOX, policy=policy)


def answering(*rounds: list[str]) -> Resolve:
    """Return a resolver that gives each time what the next round says."""
    left = list(rounds)
    return lambda _host: left.pop(0)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"],  # noqa: S104
)
def test_this_host_is_blocked_in_every_notation(host: str) -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", host)
        with pytest.raises(DeliveryError, match="private network"):
            sender().send(to(target), message())
        assert hook.posts == []


def test_the_metadata_service_of_a_cloud_is_blocked() -> None:
    with pytest.raises(DeliveryError, match="VEDETTE_WEBHOOK_ALLOWED_NETWORKS"):
        sender().send(to("http://169.254.169.254/latest/meta-data/"), message())


def test_an_error_does_not_reveal_the_resolved_address() -> None:
    policy = AddressPolicy(resolve=answering(["10.1.2.3"]))
    with pytest.raises(DeliveryError) as caught:
        sender(policy).send(to("http://db.internal.example/"), message())
    assert "10.1.2.3" not in caught.value.message


def test_an_allowed_network_is_reached() -> None:
    with hook_server() as hook:
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(hook.url), message())
        assert len(hook.posts) == 1


def test_one_private_address_among_public_ones_blocks_the_host() -> None:
    policy = AddressPolicy(resolve=answering(["8.8.8.8", "10.0.0.1"]))
    with pytest.raises(DeliveryError, match="private network"):
        sender(policy).send(to("https://mixed.example/"), message())


def test_a_host_is_resolved_once_so_that_rebinding_has_no_effect() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "rebinding.example")
        policy = AddressPolicy(allowed=LOOPBACK, resolve=answering(["127.0.0.1"], ["10.0.0.1"]))
        sender(policy).send(to(target), message())
        ((headers, _body),) = hook.posts
        assert headers["Host"] == target.split("/")[2]


def test_a_name_that_moves_to_a_private_address_after_it_was_judged_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS answers 127.0.0.2, which is allowed and where nobody listens, and then 127.0.0.1."""
    allowed = (IPv4Network("127.0.0.2/32"),)
    with (
        hook_server() as hook,
        dns_server({"moving.example.": ["127.0.0.2", "127.0.0.1"]}) as resolver,
    ):
        monkeypatch.setattr(dns.resolver, "Resolver", lambda: resolver)
        target = to(hook.url.replace("127.0.0.1", "moving.example"))
        with pytest.raises(DeliveryError, match="did not respond"):
            sender(AddressPolicy(allowed=allowed)).send(target, message())
        with pytest.raises(DeliveryError, match="private network"):
            sender(AddressPolicy(allowed=allowed)).send(target, message())
        assert hook.posts == []


@pytest.mark.parametrize(
    "address", ["192.0.0.8", "fec0::1", "::7f00:1", "::ffff:7f00:1", "2002:7f00:1::1", "2001:0::1"]
)
def test_a_name_of_a_special_address_is_blocked(address: str) -> None:
    policy = AddressPolicy(resolve=answering([address]))
    with pytest.raises(DeliveryError, match="private network"):
        sender(policy).send(to("https://special.example/"), message())


def test_the_next_address_of_a_name_is_tried_when_one_refuses() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "two.example")
        policy = AddressPolicy(allowed=LOOPBACK, resolve=answering(["127.0.0.2", "127.0.0.1"]))
        sender(policy).send(to(target), message())
        assert len(hook.posts) == 1


def test_a_redirect_into_a_private_network_is_not_followed() -> None:
    with hook_server() as inner, hook_server() as outer:
        outer.status, outer.location = 307, inner.url
        with pytest.raises(DeliveryError, match="307"):
            sender(AddressPolicy(allowed=LOOPBACK)).send(to(outer.url), message())
        assert inner.posts == []


def test_user_and_password_of_the_address_are_sent_by_basic() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "ops:p%40ss@127.0.0.1")
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(target), message())
        ((headers, _body),) = hook.posts
        sent_headers = {name.lower(): value for name, value in headers.items()}
        assert sent_headers["authorization"] == "Basic b3BzOnBAc3M="


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("nowhere.invalid", "can't be resolved"),
        ("a" * 70 + ".example", "invalid host name"),
        ("a..example", "invalid host name"),
    ],
)
def test_an_unresolvable_host_is_a_delivery_error(host: str, reason: str) -> None:
    with pytest.raises(DeliveryError, match=reason):
        sender().send(to(f"http://{host}:{free_port()}/"), message())


def test_a_proxy_of_the_servers_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with hook_server() as hook:
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(hook.url), message())
        assert len(hook.posts) == 1


def dripping(listener: socket.socket, stop: threading.Event) -> None:
    """Take a connection and answer a byte at a time, for ever."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Never-Ends: ")
        while not stop.wait(0.05):
            connection.sendall(b"x")


def test_a_slow_response_is_cut_off() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=dripping, args=(listener, stop))
        thread.start()
        quick_sender = WebhookSender(0.5, box=BOX, policy=AddressPolicy(allowed=LOOPBACK))
        with pytest.raises(DeliveryError, match="did not respond: it timed out"):
            quick_sender.send(to(f"http://127.0.0.1:{listener.getsockname()[1]}/"), message())
        stop.set()
        thread.join(timeout=60)


@contextmanager
def tls_hook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """Run a web server with a certificate for 127.0.0.1, of an authority that is trusted here."""
    deployment = Authority(folder, "deployment")
    pair = deployment.issue("hook")
    monkeypatch.setenv("SSL_CERT_FILE", str(deployment.certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with hook_server(context) as hook:
        yield hook


def test_a_webhook_by_https_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tls_hook(tmp_path, monkeypatch) as hook:
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(hook.url), message())
        assert len(hook.posts) == 1


def test_a_certificate_must_be_of_the_name_and_not_of_the_address_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_hook(tmp_path, monkeypatch) as hook:
        policy = AddressPolicy(allowed=LOOPBACK, resolve=answering(["127.0.0.1"]))
        with pytest.raises(DeliveryError, match="certificate is not trusted"):
            sender(policy).send(to(hook.url.replace("127.0.0.1", "other.example")), message())
        assert hook.posts == []
