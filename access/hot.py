"""An endpoint without a framework around it, for the address that every agent posts to.

Errors are answered by the same handlers that Starlette is given.
"""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from access.errors import handler_of, on_bug

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def hot(endpoint: Endpoint) -> ASGIApp:
    """Return an endpoint as an application of its own."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await endpoint(request)
        except Exception as error:
            handler = handler_of(error)
            if handler is on_bug:
                logger.exception("%s %s failed", request.method, request.url.path)
            response = await handler(request, error)
        await response(scope, receive, send)

    return app
