"""An endpoint without a framework around it, for the address that every agent posts to.

Errors are answered by the same handlers that Starlette is given.
"""

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from access.errors import handler_of, on_bug

logger = logging.getLogger(__name__)

Endpoint = Callable[[Scope, Receive], Awaitable[Response | None]]


class Hot:
    """An endpoint as an application of its own; where it returns nothing, that is said by 204."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            response = await self._endpoint(scope, receive)
        except Exception as error:
            request = Request(scope)
            handler = handler_of(error)
            if handler is on_bug:
                logger.exception("%s %s failed", request.method, request.url.path)
            response = await handler(request, error)
        if response is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
        else:
            await response(scope, receive, send)
