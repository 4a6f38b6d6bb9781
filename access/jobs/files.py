"""`/api/v1/jobs/ID/files?path=...`: a file or folder of a running job, out and in, as tar.

The image's own `tar` reads and writes, as the user of the job: nobody gets at more files than the
job itself. Nothing is held in memory. What comes in is unpacked beside its place, and moved there
once all of it has arrived.
"""

import asyncio
import posixpath
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from access.jobs.sessions import JobSession, JobSessions, check_ended, errors_of
from core.errors import ConflictError, InvalidInputError, TooLargeError, VedetteError
from jobqueue.queue.shells import SessionKind

if TYPE_CHECKING:
    import asyncssh

CHUNK_BYTES = 64 * 1024
MAX_PATH_CHARACTERS = 4096
_CHANGED = 1
_OUT = """
[ -e "$1/$2" ] || [ -L "$1/$2" ] || { echo "There is no $1/$2 in the container." >&2; exit 66; }
LC_ALL=C exec tar -C "$1" -cf - -- "$2"
""".strip()
_IN = 'cd -- "$1" && mkdir -- "$2" && exec tar -C "$2" -xof -'
_COMMIT = """
cd -- "$1" || exit
for one in "$2"/* "$2"/.[!.]* "$2"/..?*; do
  [ -e "$one" ] || [ -L "$one" ] || continue
  to=${one#"$2"/}
  if [ -d "$one" ] && [ ! -L "$one" ] && [ -d "$to" ]; then
    cp -a -- "$one/." "$to/" || exit
  elif [ -d "$to" ]; then
    echo "$1/$to is a folder." >&2; exit 1
  else
    mv -f -- "$one" "$to" || exit
  fi
done
""".strip()
_REMOVE = 'cd -- "$1" && rm -rf -- "$2"'


class FilesEndpoint:
    """Copies files out of and into running jobs.

    Args:
        sessions: opens sessions in jobs.
        max_bytes: of one copy.
    """

    def __init__(self, sessions: JobSessions, *, max_bytes: int) -> None:
        self._sessions = sessions
        self._max_bytes = max_bytes

    async def download(self, request: Request) -> Response:
        """Return a file or folder as tar, under its own name.

        The response is cut off if the copy fails after its beginning.
        """
        folder, name = _split(request)
        stack = AsyncExitStack()
        try:
            opened = self._sessions.open(request, SessionKind.FILES_OUT, _path(request))
            session = await stack.enter_async_context(opened)
            command = ["sh", "-c", _OUT, "sh", folder, name]
            process = await stack.enter_async_context(session.run(command))
            errors = asyncio.create_task(errors_of(process))
            stack.callback(errors.cancel)
            first = await process.stdout.read(CHUNK_BYTES)
            if not first:
                await check_ended(process, await errors)
        except BaseException as error:
            await stack.__aexit__(type(error), error, error.__traceback__)
            raise
        parts = self._parts(session, process, first, errors)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return _ClosingResponse(stack, parts, media_type="application/x-tar", headers=headers)

    async def _parts(
        self,
        session: JobSession,
        process: "asyncssh.SSHClientProcess[bytes]",
        first: bytes,
        errors: "asyncio.Task[str]",
    ) -> AsyncIterator[bytes]:
        data, size = first, 0
        while data:
            size += len(data)
            self._check(size)
            yield data
            session.touch()
            data = await process.stdout.read(CHUNK_BYTES)
        try:
            await check_ended(process, await errors)
        except ConflictError:
            # A file that grew while tar read it, such as a log.
            if process.exit_status != _CHANGED or "as we read it" not in errors.result():
                raise
        session.reason = "completed"

    async def upload(self, request: Request) -> Response:
        """Unpack the tar archive of the body in a folder; folders that exist are merged."""
        folder, stage = _path(request), f".vedette-{secrets.token_hex(8)}"
        async with self._sessions.open(request, SessionKind.FILES_IN, folder) as session:
            try:
                await self._unpack(request, session, folder, stage)
                await session.call(_COMMIT, folder, stage)
                session.reason = "completed"
            finally:
                with suppress(VedetteError):  # what went wrong before matters more
                    await asyncio.shield(session.call(_REMOVE, folder, stage))
        return Response(status_code=204)

    async def _unpack(self, request: Request, session: JobSession, folder: str, stage: str) -> None:
        async with session.run(["sh", "-c", _IN, "sh", folder, stage]) as process:
            errors = asyncio.create_task(errors_of(process))
            unread = asyncio.create_task(process.stdout.read())
            try:
                size = 0
                async for data in request.stream():
                    size += len(data)
                    self._check(size)
                    session.touch()
                    if process.is_closing() or process.stdout.at_eof():
                        break  # it has failed, and says why
                    with suppress(BrokenPipeError):
                        process.stdin.write(data)
                        await process.stdin.drain()
                with suppress(BrokenPipeError):
                    process.stdin.write_eof()
                await check_ended(process, await errors)
            finally:
                errors.cancel()
                unread.cancel()

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLargeError(f"A copy may have {self._max_bytes} bytes at most. Copy parts.")


class _ClosingResponse(StreamingResponse):
    """A streamed response that closes what it reads from, even if its client never reads it."""

    def __init__(self, stack: AsyncExitStack, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


def _path(request: Request) -> str:
    """Return the path of the request; a relative one begins in the job's working directory."""
    path = request.query_params.get("path", "")
    if not path or "\0" in path or len(path) > MAX_PATH_CHARACTERS:
        problem = f"a path in the container, of at most {MAX_PATH_CHARACTERS} characters"
        raise InvalidInputError(f"path: enter {problem}.", errors={"path": [f"Enter {problem}."]})
    path = posixpath.normpath(path)
    return path if path.startswith("/") else f"./{path}"


def _split(request: Request) -> tuple[str, str]:
    folder, name = posixpath.split(_path(request))
    return folder or "/", name or "."
