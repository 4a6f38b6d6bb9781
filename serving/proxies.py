"""The addresses of clients behind reverse proxies."""

import logging
from collections.abc import Awaitable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from core.networks import Network, is_within

log = logging.getLogger(__name__)

_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})


def trust_proxies(app: ASGIApp, trusted: tuple[Network, ...]) -> ASGIApp:
    """Return the app with client address and scheme as forwarded by the trusted proxies.

    Anyone can send `X-Forwarded-For`. It is read only from the networks in `trusted_proxies`, and
    the last of its addresses that is not a trusted proxy is the client.
    """
    # uvicorn has its own types for ASGI.
    inner = ProxyHeadersMiddleware(app, [str(network) for network in trusted]) if trusted else app  # type: ignore[arg-type]
    has_warned = False

    # Not a coroutine of its own, which each request would pay for.
    def outer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        nonlocal has_warned
        has_warned = has_warned or _warn_of_proxy(scope, trusted)
        return inner(scope, receive, send)  # type: ignore[arg-type]

    return outer


def _warn_of_proxy(scope: Scope, trusted: tuple[Network, ...]) -> bool:
    """Log that a proxy is not trusted, and return whether one is."""
    for name, _ in scope["headers"]:
        if name in _FORWARDED:
            break
    else:
        return False
    client = scope.get("client")
    if client is None:
        return False
    if is_within(ip_address(client[0].partition("%")[0]), trusted):
        return False
    log.warning(
        "%s forwards addresses (X-Forwarded-For or X-Forwarded-Proto) but is not in "
        "trusted_proxies: its clients count as one address. If it is your proxy, set "
        "trusted_proxies = %s",
        client[0],
        client[0],
    )
    return True
