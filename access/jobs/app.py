"""The application for commands in running jobs and their files, for users.

Requests for a job go to the process that holds the tunnel to its appliance.
"""

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from access.database import Database
from access.errors import HANDLERS, on_vedette_error
from access.jobs.exec import ExecEndpoint
from access.jobs.files import FilesEndpoint
from access.jobs.forwarding import SCOPE_KEY, Forwarder, HolderGoneError
from access.jobs.sessions import Identify, JobSessions
from access.jobs.tunnels import Tunnels
from core.clock import Clock
from core.errors import DatabaseUnavailableError, UnavailableError
from core.settings import ServerSettings
from core.shared_limits import SharedLimits

_PATH = re.compile(r"/api/v1/jobs/([^/]+)/(exec|files)")

JobOf = Callable[[Scope], Awaitable[str | None]]
"""Returns the ID of the job that a request is for."""


def create_job_access_app(
    database: Database,
    tunnels: Tunnels,
    *,
    identify: Identify,
    settings: ServerSettings,
    clock: Clock,
    limits: SharedLimits,
) -> Starlette:
    """Return the application."""
    sessions = JobSessions(
        database, tunnels, identify=identify, settings=settings, clock=clock, limits=limits
    )
    files = FilesEndpoint(sessions, max_bytes=settings.max_copy_bytes)
    routes = [
        WebSocketRoute("/api/v1/jobs/{job_id}/exec", ExecEndpoint(sessions).serve),
        Route("/api/v1/jobs/{job_id}/files", files.download, methods=["GET"]),
        Route("/api/v1/jobs/{job_id}/files", files.upload, methods=["PUT"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def is_job_access(path: str) -> bool:
    """Return whether a path belongs to this application."""
    return _PATH.fullmatch(path) is not None


async def job_of_path(scope: Scope) -> str | None:
    """Return the ID of the job in the path of a request."""
    match = _PATH.fullmatch(scope["path"])
    return match[1] if match else None


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
