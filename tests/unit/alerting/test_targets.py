"""A webhook into a private network is refused before its receiver is saved."""

import threading

import pytest

from alerting.addresses import AddressPolicy, TimedResolver
from alerting.states import ReceiverKind
from alerting.targets import check_target
from core.errors import ForbiddenError, InvalidInputError
from tenants.models import Role
from tenants.scope import Scope
from tests.unit.alerting.servers import LOOPBACK

BOB = Scope("bob", Role.MEMBER, "acme")


def names(host: str, _port: int) -> list[str]:
    """Answer as a resolver that knows these names alone."""
    known = {"public.example": ["8.8.8.8"], "inner.example": ["10.0.0.9"], "127.0.0.1": [host]}
    if host not in known:
        raise OSError("no such name")
    return known[host]


def check(target: str, kind: ReceiverKind = ReceiverKind.WEBHOOK) -> None:
    check_target(BOB, kind, target, policy=AddressPolicy(resolve=names))


@pytest.mark.parametrize("target", ["http://127.0.0.1:8080/hook", "https://inner.example/hook"])
def test_a_target_that_leads_inside_is_refused_with_the_field(target: str) -> None:
    with pytest.raises(InvalidInputError, match="leads into a private network") as refused:
        check(target)
    assert "target" in refused.value.errors
    assert "10.0.0.9" not in refused.value.message


def test_a_network_that_the_operator_opened_may_be_named() -> None:
    check_target(BOB, ReceiverKind.WEBHOOK, "http://127.0.0.1:1/hook", policy=LOOPBACK)


@pytest.mark.parametrize(
    "target",
    [
        "https://public.example/hook",
        "https://unheard.example/",
        "no address",
        "http://[",
        "ftp://x",
    ],
)
def test_what_is_public_unknown_or_no_address_is_left_to_others(target: str) -> None:
    check(target)


def test_an_email_address_is_not_looked_up() -> None:
    check("ops@inner.example", ReceiverKind.EMAIL)


def test_who_may_not_change_alerts_learns_nothing_of_names() -> None:
    viewer = Scope("vera", Role.VIEWER, "acme")
    policy = AddressPolicy(resolve=names)
    with pytest.raises(ForbiddenError):
        check_target(viewer, ReceiverKind.WEBHOOK, "https://inner.example", policy=policy)


def test_a_resolver_that_does_not_answer_is_not_waited_for() -> None:
    answer = threading.Event()

    def silent(_host: str, _port: int) -> list[str]:
        answer.wait(60)
        return []

    resolver = TimedResolver(silent, seconds=0.05, most=1)
    with pytest.raises(TimeoutError, match="nobody tells the address of slow"):
        resolver("slow.example", 443)
    with pytest.raises(TimeoutError, match="too many names"):
        resolver("next.example", 443)
    answer.set()


def test_what_the_resolver_says_is_said() -> None:
    resolver = TimedResolver(names)
    assert resolver("public.example", 443) == ["8.8.8.8"]
    with pytest.raises(OSError, match="no such name"):
        resolver("unheard.example", 443)


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "\x00"])
def test_what_is_no_name_is_told_as_one_that_has_no_address(host: str) -> None:
    with pytest.raises(OSError, match=r"\S"):
        TimedResolver()(host, 443)
