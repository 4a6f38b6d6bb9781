"""Sends requests for running jobs to the process that holds the tunnel to their appliance."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from access.errors import on_vedette_error
from access.jobs.forwarding import SCOPE_KEY, Forwarder, HolderGoneError
from access.jobs.tunnels import Tunnels
from core.errors import DatabaseUnavailableError, UnavailableError

JobOf = Callable[[Scope], Awaitable[str | None]]
"""Returns the ID of the job that a request is for."""


def to_holder(app: ASGIApp, *, job_of: JobOf, tunnels: Tunnels, forwarder: Forwarder) -> ASGIApp:
    """Return the app for requests of jobs whose tunnel this process has, or nobody has yet.

    The app answers as well where the holder has gone, and opens a tunnel of its own.
    """

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        url = None
        with suppress(DatabaseUnavailableError):  # the app reports it in its own format
            job_id = None if SCOPE_KEY in scope else await job_of(scope)
            if job_id:
                url = await tunnels.holder_elsewhere(job_id)
        if url is not None:
            try:
                if scope["type"] == "websocket":
                    await forwarder.websocket(WebSocket(scope, receive, send), url=url)
                else:
                    await forwarder.request(scope, receive, send, url=url)
            except HolderGoneError:
                with suppress(DatabaseUnavailableError):
                    await tunnels.forget_holder(url)
            except UnavailableError as error:
                response = await on_vedette_error(Request(scope, receive), error)
                await response(scope, receive, send)
                return
            else:
                return
        await app(scope, receive, send)

    return routed
