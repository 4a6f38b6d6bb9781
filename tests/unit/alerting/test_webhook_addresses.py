"""Webhooks lead out of the operator's network, or to what the operator opened."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from alerting.addresses import AddressPolicy, Resolve
from alerting.messages import Message, render
from alerting.models import Notification, Receiver
from alerting.notify import DeliveryError, WebhookSender
from alerting.states import NotificationState, ReceiverKind
from tests.cast import BOX, NOON
from tests.fixtures.certificates import Authority
from tests.servers import free_port
from tests.unit.alerting.helpers import PAYLOAD
from tests.unit.alerting.servers import Hook, hook_server

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
    return lambda _host, _port: left.pop(0)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"],  # noqa: S104
)
def test_no_way_of_writing_this_host_is_reached(host: str) -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", host)
        with pytest.raises(DeliveryError, match="private network"):
            sender().send(to(target), message())
        assert hook.posts == []


def test_the_credentials_of_a_cloud_are_not_reached() -> None:
    with pytest.raises(DeliveryError, match="VEDETTE_WEBHOOK_ALLOWED_NETWORKS"):
        sender().send(to("http://169.254.169.254/latest/meta-data/"), message())


def test_an_error_does_not_say_to_which_address_a_name_leads() -> None:
    policy = AddressPolicy(resolve=answering(["10.1.2.3"]))
    with pytest.raises(DeliveryError) as caught:
        sender(policy).send(to("http://db.internal.example/"), message())
    assert "10.1.2.3" not in caught.value.message


def test_a_network_that_the_operator_opened_is_reached() -> None:
    with hook_server() as hook:
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(hook.url), message())
        assert len(hook.posts) == 1


def test_one_private_address_among_public_ones_closes_the_name() -> None:
    policy = AddressPolicy(resolve=answering(["8.8.8.8", "10.0.0.1"]))
    with pytest.raises(DeliveryError, match="private network"):
        sender(policy).send(to("https://mixed.example/"), message())


def test_a_name_is_asked_for_once_so_that_its_second_answer_is_never_connected_to() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "rebinding.example")
        policy = AddressPolicy(allowed=LOOPBACK, resolve=answering(["127.0.0.1"], ["10.0.0.1"]))
        sender(policy).send(to(target), message())
        ((headers, _body),) = hook.posts
        assert headers["Host"] == target.split("/")[2]


def test_the_next_address_of_a_name_is_tried_when_one_refuses() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "two.example")
        policy = AddressPolicy(allowed=LOOPBACK, resolve=answering(["127.0.0.2", "127.0.0.1"]))
        sender(policy).send(to(target), message())
        assert len(hook.posts) == 1


def test_a_redirect_into_a_private_network_is_not_followed() -> None:
    with hook_server() as inner, hook_server() as outer:
        outer.status, outer.location = 307, inner.url
        with pytest.raises(DeliveryError, match="answered 307"):
            sender(AddressPolicy(allowed=LOOPBACK)).send(to(outer.url), message())
        assert inner.posts == []


def test_user_and_password_of_the_address_are_sent_by_basic() -> None:
    with hook_server() as hook:
        target = hook.url.replace("127.0.0.1", "ops:p%40ss@127.0.0.1")
        sender(AddressPolicy(allowed=LOOPBACK)).send(to(target), message())
        ((headers, _body),) = hook.posts
        found = {name.lower(): value for name, value in headers.items()}
        assert found["authorization"] == "Basic b3BzOnBAc3M="


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70 + ".example", "a..example"])
def test_a_name_that_leads_nowhere_is_a_delivery_error(host: str) -> None:
    with pytest.raises(DeliveryError, match="did not answer"):
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


def test_an_answer_that_drips_does_not_hold_up_the_others() -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=dripping, args=(listener, stop))
        thread.start()
        impatient = WebhookSender(0.5, box=BOX, policy=AddressPolicy(allowed=LOOPBACK))
        with pytest.raises(DeliveryError, match="did not answer"):
            impatient.send(to(f"http://127.0.0.1:{listener.getsockname()[1]}/"), message())
        stop.set()
        thread.join(timeout=60)


@contextmanager
def tls_hook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """Run a web server with a certificate for 127.0.0.1, of an authority that is trusted here."""
    house = Authority(folder, "house")
    pair = house.issue("hook")
    monkeypatch.setenv("SSL_CERT_FILE", str(house.certificate))
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
        with pytest.raises(DeliveryError, match="SSLCertVerificationError"):
            sender(policy).send(to(hook.url.replace("127.0.0.1", "other.example")), message())
        assert hook.posts == []
