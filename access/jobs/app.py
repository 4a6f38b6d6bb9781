"""The application for commands in running jobs and their files, for users."""

import re

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import Scope

from access.database import Database
from access.errors import HANDLERS
from access.jobs.exec import ExecEndpoint
from access.jobs.files import FilesEndpoint
from access.jobs.sessions import Identify, JobSessions
from access.jobs.tunnels import Tunnels
from core.clock import Clock
from core.settings import ServerSettings
from core.shared_limits import SharedLimits

_PATH = re.compile(r"/api/v1/jobs/([^/]+)/(exec|files)")


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
