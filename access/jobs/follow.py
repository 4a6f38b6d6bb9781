"""`GET /api/v1/jobs/ID/follow`: the state and the log of a job as server-sent events, for users.

    event: state   the job's state, at first and whenever it changes
    event: log     lines of an attempt's log; its id is the position behind them
    event: end     the job has ended, and all of its log was sent
    event: problem why the stream ends early, as in the API's errors

A client that reconnects with `Last-Event-ID` (browsers do) continues behind the last line that it
received. A stream is a coroutine: it takes no thread of the portal while it waits.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Scope as ASGIScope

from access.database import Database
from access.errors import HANDLERS
from access.longpoll import ChangeWatch
from core.changes import Topic
from core.db import chunked
from core.errors import (
    InvalidInputError,
    OverloadedError,
    UnauthenticatedError,
    VedetteError,
)
from core.rate_limits import ConcurrencyLimit
from jobqueue.logs.following import (
    PIECE_BYTES,
    Position,
    Progress,
    Tail,
    read_on,
    read_progress,
    read_tails,
)
from jobqueue.logs.log_files import LogFiles
from jobqueue.states import AttemptState
from protocol.logs import log_lines, whole_records
from tenants.principals import Principal

# How long a line waits in the database; the average is half of it.
INTERVAL_SECONDS = 0.2
KEEPALIVE_SECONDS = 15.0
# How often the user's credentials are checked again.
CHECK_SECONDS = 60.0
MAX_STREAMS_PER_USER = 512
_MAX_DIGITS = 12
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx passes events on at once
    "X-Content-Type-Options": "nosniff",
}

Identify = Callable[[ASGIScope], Principal | None]
"""Returns the user of a request by session cookie or API token; called in a thread."""


def create_follow_app(database: Database, files: LogFiles, *, identify: Identify) -> Starlette:
    """Return the application; `state.watch` counts the followers that wait."""
    follow = FollowEndpoint(database, files, identify=identify)
    routes = [Route("/api/v1/jobs/{job_id}/follow", follow.stream, methods=["GET"])]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.state.watch = follow.watch
    return app


def is_followed(path: str) -> bool:
    """Return whether a path belongs to this application."""
    return path.startswith("/api/v1/jobs/") and path.endswith("/follow")


class FollowEndpoint:
    """Streams jobs to users."""

    def __init__(self, database: Database, files: LogFiles, *, identify: Identify) -> None:
        self._database = database
        self._files = files
        self._identify = identify
        self._streams = ConcurrencyLimit(MAX_STREAMS_PER_USER)
        self._followers = Counter[str]()
        self._tails: Mapping[str, Tail] = {}
        self.watch = ChangeWatch(
            self._versions, database.changes, Topic.JOB, interval_seconds=INTERVAL_SECONDS
        )

    async def stream(self, request: Request) -> Response:
        """Stream a job's state and log; see `read_progress` for where it begins.

        Raises:
            UnauthenticatedError: no valid session or API token.
            NotFoundError: there is no such job.
            InvalidInputError: the position is not one.
        """
        principal = await self._principal(request)
        position, tail_bytes = _start(request)
        progress = await self._read(principal, request, position, tail_bytes=tail_bytes)
        return StreamingResponse(
            self._events(request, principal, progress),
            media_type="text/event-stream",
            headers=_HEADERS,
        )

    async def _events(
        self, request: Request, principal: Principal, progress: Progress
    ) -> AsyncIterator[bytes]:
        """Yield the events; what goes wrong after the headers becomes an event, too."""
        job_id = request.path_params["job_id"]
        try:
            with self._streams.running(principal.user.id) as is_admitted:
                if not is_admitted:
                    raise OverloadedError("You follow too many jobs at once. Close some.")
                with self._counted(job_id):
                    async for event in self._followed(request, principal, progress):
                        yield event
        except VedetteError as error:
            yield _event("problem", {"code": error.code, "message": error.message})

    @contextmanager
    def _counted(self, job_id: str) -> Iterator[None]:
        self._followers[job_id] += 1
        try:
            yield
        finally:
            self._followers[job_id] -= 1
            if not self._followers[job_id]:
                del self._followers[job_id]

    async def _followed(
        self, request: Request, principal: Principal, progress: Progress
    ) -> AsyncIterator[bytes]:
        job_id, state = request.path_params["job_id"], None
        now = asyncio.get_running_loop().time
        checked_at = now()
        while True:
            if progress.state != state:
                state = progress.state
                yield _event("state", state, ident=str(progress.position))
            data, position = _lines(progress)
            if data is not None:
                yield _event("log", data, ident=str(position))
            elif progress.has_ended:
                yield _event("end", state, ident=str(position))
                return
            if (data is None or _has_all(progress)) and not await self.watch.wait(
                job_id, progress.version, timeout_seconds=KEEPALIVE_SECONDS
            ):
                yield b": still here\n\n"
            if now() - checked_at > CHECK_SECONDS:
                checked_at, principal = now(), await self._principal(request)
            progress = await self._read_on(job_id, position) or await self._read(
                principal, request, position
            )

    async def _read_on(self, job_id: str, position: Position) -> Progress | None:
        """Read at the version that the watch has read for all jobs, if that is enough."""
        tail = self._tails.get(job_id)
        if tail is None or not tail.goes_on_at(position):
            return None
        if tail.has(position):
            return tail.progress(position, tail.data[position.offset - tail.offset :])
        return await self._database.run(lambda session: read_on(session, tail, position))

    async def _principal(self, request: Request) -> Principal:
        principal = await to_thread.run_sync(self._identify, request.scope)
        if principal is None:
            raise UnauthenticatedError(
                "Sign in, or send an API token as 'Authorization: Bearer vdt_...'."
            )
        return principal

    async def _read(
        self,
        principal: Principal,
        request: Request,
        position: Position | None,
        *,
        tail_bytes: int | None = None,
    ) -> Progress:
        job_id = request.path_params["job_id"]
        progress = await self._database.run(
            lambda session: read_progress(
                session, principal.scope, job_id, position, tail_bytes=tail_bytes
            )
        )
        if progress.page is None or not progress.page.file:
            return progress
        page = await to_thread.run_sync(self._files.filled, progress.page)
        return replace(progress, page=page)

    async def _versions(self, job_ids: Collection[str]) -> Mapping[str, Hashable]:
        tails: dict[str, Tail] = {}
        for chunk in chunked(job_ids):
            read = partial(read_tails, job_ids=chunk, before=self._tails)
            tails |= await self._database.run(read)
        others = self._followers.keys() - job_ids  # busy with what they have read
        self._tails = tails | {
            job_id: self._tails[job_id] for job_id in others & self._tails.keys()
        }
        return {job_id: tail.version for job_id, tail in tails.items()}


def _start(request: Request) -> tuple[Position | None, int | None]:
    """Return where the client continues, or how much of the log's end it begins with."""
    text = request.headers.get("Last-Event-ID") or request.query_params.get("after")
    tail = request.query_params.get("tail_bytes")
    if tail and not (tail.isascii() and tail.isdecimal() and len(tail) <= _MAX_DIGITS):
        problem = f"{tail[:50]!r} is not a number of bytes"
        raise InvalidInputError(f"tail_bytes: {problem}.", errors={"tail_bytes": [problem]})
    return Position.parse(text) if text else None, int(tail) if tail else None


def _lines(progress: Progress) -> tuple[dict[str, Any] | None, Position]:
    """Return the complete lines at the position, if there are any, and the position behind them."""
    page = progress.page
    if page is None or not page.data:
        return None, progress.position
    size = len(page.data) if page.is_complete else whole_records(page.data)
    if not size:
        return None, progress.position
    lines = list(log_lines(page.data[:size]))
    position = replace(progress.position, offset=page.offset + size)
    data = {"attempt_number": page.attempt_number, "offset": page.offset, "lines": lines}
    return data, position


def _has_all(progress: Progress) -> bool:
    """Return whether nothing is left to read at a version of a job that goes on."""
    page = progress.page
    # A piece that begins behind a part of a line is shorter than others, by a record at most.
    return page is not None and (
        progress.state["attempt_state"] == AttemptState.RUNNING
        and progress.state["attempt_number"] == page.attempt_number
        and len(page.data) < PIECE_BYTES // 2
    )


def _event(name: str, data: object, *, ident: str = "") -> bytes:
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
