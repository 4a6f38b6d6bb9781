"""Proxies in front of the server: for whom they ask, and by which scheme.

Anybody can send `X-Forwarded-For`. It is believed from the networks of `trusted_proxies` alone, and
of its addresses the last that is no trusted proxy's counts: those before it are the sender's words.
"""

from typing import cast

from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from core.networks import Network


def believe_proxies(app: ASGIApp, trusted: tuple[Network, ...]) -> ASGIApp:
    """Return the app as it looks from behind the trusted proxies; without any, as it is."""
    if not trusted:
        return app
    networks = [str(network) for network in trusted]
    # uvicorn names the same ASGI shapes by types of its own.
    return cast("ASGIApp", ProxyHeadersMiddleware(app, networks))  # type: ignore[arg-type]
