"""Whose word about the sender's address is believed."""

import asyncio
from ipaddress import ip_network

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.proxies import trust_proxies

TRUSTED = (ip_network("10.0.0.0/24"), ip_network("192.0.2.1/32"))


def seen_from(peer: str, *, trusted: bool = True, **headers: str) -> str:
    """Return scheme and address that the app sees when `peer` connects."""
    seen: list[str] = []

    async def note(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(f"{scope['scheme']} {scope['client'][0]}")

    pairs = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "scheme": "http", "client": (peer, 5000), "headers": pairs}
    app = trust_proxies(note, TRUSTED if trusted else ())
    asyncio.run(_call(app, scope))
    return seen[0]


async def _call(app: ASGIApp, scope: Scope) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        pass

    await app(scope, receive, send)


@pytest.mark.parametrize("peer", ["10.0.0.7", "192.0.2.1"])
def test_a_trusted_proxy_is_believed(peer: str) -> None:
    seen = seen_from(peer, x_forwarded_for="203.0.113.5", x_forwarded_proto="https")
    assert seen == "https 203.0.113.5"


def test_anybody_else_is_not_believed() -> None:
    seen = seen_from("203.0.113.9", x_forwarded_for="10.0.0.7", x_forwarded_proto="https")
    assert seen == "http 203.0.113.9"


def test_this_host_is_not_believed_unless_it_is_named() -> None:
    assert seen_from("127.0.0.1", x_forwarded_for="203.0.113.5") == "http 127.0.0.1"


def test_nobody_is_believed_without_the_setting() -> None:
    assert seen_from("10.0.0.7", trusted=False, x_forwarded_for="203.0.113.5") == "http 10.0.0.7"


def test_what_a_sender_wrote_in_front_is_not_believed() -> None:
    seen = seen_from("10.0.0.7", x_forwarded_for="198.51.100.1, 203.0.113.5, 10.0.0.8")
    assert seen == "http 203.0.113.5"
