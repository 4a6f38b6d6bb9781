"""A webhook into a private network is rejected before its receiver is saved."""

import time
from collections.abc import Iterator
from pathlib import Path

import dns.resolver
import pytest

from alerting.notification.receivers import check_target
from alerting.notification.senders import webhooks
from alerting.notification.senders.webhooks import AddressPolicy
from alerting.states import ReceiverKind
from core.errors import ForbiddenError, InvalidInputError
from tenants.models import Role
from tenants.scope import Scope
from tests.unit.alerting.servers import LOOPBACK, dns_server

BOB = Scope("bob", Role.MEMBER, "acme")


def names(host: str) -> list[str]:
    """Resolve these names alone."""
    addresses = {"public.example": ["8.8.8.8"], "inner.example": ["10.0.0.9"], "127.0.0.1": [host]}
    if host not in addresses:
        raise OSError("no such name")
    return addresses[host]


def check(target: str, kind: ReceiverKind = ReceiverKind.WEBHOOK) -> None:
    check_target(BOB, kind, target, policy=AddressPolicy(resolve=names))


@pytest.mark.parametrize("target", ["http://127.0.0.1:8080/hook", "https://inner.example/hook"])
def test_a_private_target_is_rejected_with_the_field(target: str) -> None:
    with pytest.raises(InvalidInputError, match="private network") as refused:
        check(target)
    assert "target" in refused.value.errors
    assert "10.0.0.9" not in refused.value.message


def test_an_allowed_network_is_accepted() -> None:
    check_target(BOB, ReceiverKind.WEBHOOK, "http://127.0.0.1:1/hook", policy=LOOPBACK)


@pytest.mark.parametrize(
    "target",
    [
        "https://public.example/hook",
        "https://unknown.example/",
        "no address",
        "http://[",
        "ftp://x",
    ],
)
def test_public_unknown_and_invalid_targets_pass(target: str) -> None:
    check(target)


def test_an_email_address_is_not_looked_up() -> None:
    check("ops@inner.example", ReceiverKind.EMAIL)


def test_a_viewer_cannot_probe_host_names() -> None:
    viewer = Scope("vera", Role.VIEWER, "acme")
    policy = AddressPolicy(resolve=names)
    with pytest.raises(ForbiddenError):
        check_target(viewer, ReceiverKind.WEBHOOK, "https://inner.example", policy=policy)


@pytest.fixture
def local_dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A DNS server that knows public.example, and a hosts file with a name of its own."""
    with dns_server({"public.example.": ["8.8.8.8"]}) as resolver:
        monkeypatch.setattr(webhooks, "RESOLVE_SECONDS", 0.3)
        monkeypatch.setattr(dns.resolver, "Resolver", lambda: resolver)
        yield


@pytest.mark.usefixtures("local_dns")
def test_a_host_is_resolved_by_dns() -> None:
    assert webhooks.resolve("public.example") == ["8.8.8.8"]


@pytest.mark.usefixtures("local_dns")
def test_a_dns_server_that_does_not_respond_is_not_waited_for() -> None:
    started = time.monotonic()
    with pytest.raises(OSError, match=r"slow\.example can't be resolved"):
        webhooks.resolve("slow.example")
    assert time.monotonic() - started < 10


def test_a_name_in_the_hosts_file_needs_no_dns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# comment\n10.0.0.7  chat.Internal chat # the chat server\nfd00::7 chat\n\n")
    monkeypatch.setattr(webhooks, "HOSTS_FILE", hosts)
    assert webhooks.resolve("chat.internal") == ["10.0.0.7"]
    assert webhooks.resolve("CHAT") == ["10.0.0.7", "fd00::7"]


@pytest.mark.parametrize(
    ("host", "address"),
    [("2130706433", "127.0.0.1"), ("0x7f.1", "127.0.0.1"), ("::1", "::1"), ("8.8.8.8", "8.8.8.8")],
)
def test_an_address_in_any_notation_needs_no_dns(host: str, address: str) -> None:
    assert webhooks.resolve(host) == [address]


@pytest.mark.parametrize("host", ["a" * 70, "a..b", ""])
def test_an_invalid_host_name_has_no_address(host: str) -> None:
    with pytest.raises(OSError, match=r"\S"):
        webhooks.resolve(host)
