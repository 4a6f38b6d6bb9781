"""`/api/v1/jobs/ID/exec`: a WebSocket to a command, or a terminal, in a running job.

?command=ls&command=-l              program and arguments; a shell without them
?terminal=true&columns=80&rows=24   in a terminal

Messages are those of `protocol.exec`. A user who can't open it gets a status that says why.
"""

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from access.errors import on_vedette_error
from access.jobs.sessions import JobSession, JobSessions, exit_code_of
from core.errors import InvalidInputError, VedetteError
from jobqueue.queue.shells import SessionKind
from protocol.exec import SHELL, Channel, ExecStatus, TerminalSize, message

if TYPE_CHECKING:
    import asyncssh

CHUNK_BYTES = 32 * 1024
_MAX_SIZE = 1000
_MAX_COMMAND_CHARACTERS = 16 * 1024


class ExecEndpoint:
    """Serves the WebSockets."""

    def __init__(self, sessions: JobSessions) -> None:
        self._sessions = sessions

    async def serve(self, websocket: WebSocket) -> None:
        """Run a command until it ends, its user leaves, or may not go on."""
        try:
            await self._sessions.principal(websocket)
        except VedetteError as error:
            refused = {**websocket.scope, "type": "http", "method": "GET"}
            await websocket.send_denial_response(await on_vedette_error(Request(refused), error))
            return
        await websocket.accept()
        try:
            status = await self._status(websocket)
            await websocket.send_bytes(message(Channel.STATUS, msgspec.json.encode(status)))
            await websocket.close()
        except (WebSocketDisconnect, RuntimeError):
            return  # the user has left

    async def _status(self, websocket: WebSocket) -> ExecStatus:
        try:
            command, size = _command(websocket), _size(websocket)
            kind = SessionKind.COMMAND if size is None else SessionKind.TERMINAL
            async with (
                self._sessions.open(websocket, kind, " ".join(command)) as session,
                session.run(command or SHELL, size=size) as process,
            ):
                await _splice(websocket, session, process, is_terminal=size is not None)
                code = await exit_code_of(process)
                session.reason = f"exit code {code}"
                return ExecStatus(exit_code=code)
        except VedetteError as error:
            return ExecStatus(code=error.code, message=error.message)


async def _splice(
    websocket: WebSocket,
    session: JobSession,
    process: "asyncssh.SSHClientProcess[bytes]",
    *,
    is_terminal: bool,
) -> None:
    """Pass data on both ways until the output ends; raises `WebSocketDisconnect`.

    A terminal is in use when the user types, a command also when it writes.
    """

    async def up() -> None:
        while True:
            data = (await websocket.receive()).get("bytes")
            if data is None:
                raise WebSocketDisconnect
            session.touch()
            await _take(data, process)

    async def down(channel: Channel) -> None:
        stream = process.stderr if channel is Channel.STDERR else process.stdout
        while data := await stream.read(CHUNK_BYTES):
            await websocket.send_bytes(message(channel, data))
            if not is_terminal:
                session.touch()

    async def down_all() -> None:
        await asyncio.gather(down(Channel.STDOUT), down(Channel.STDERR))

    typing, output = asyncio.create_task(up()), asyncio.create_task(down_all())
    try:
        await asyncio.wait([typing, output], return_when=asyncio.FIRST_COMPLETED)
        if not output.done():
            await typing
        await output
    finally:
        typing.cancel()
        output.cancel()
        await asyncio.gather(typing, output, return_exceptions=True)


async def _take(data: bytes, process: "asyncssh.SSHClientProcess[bytes]") -> None:
    """Pass a message of the user on; unknown channels are ignored."""
    body = data[1:]
    match data[:1]:
        case b"\x00":
            with suppress(BrokenPipeError):  # it has ended, or closed its input
                process.stdin.write(body)
                await process.stdin.drain()
        case b"\x04":
            with suppress(msgspec.MsgspecError, OSError):
                size = msgspec.json.decode(body, type=TerminalSize)
                process.change_terminal_size(_bounded(size.columns), _bounded(size.rows))
        case b"\xff":
            with suppress(BrokenPipeError):
                process.stdin.write_eof()


def _command(websocket: WebSocket) -> list[str]:
    words = websocket.query_params.getlist("command")
    if sum(map(len, words)) > _MAX_COMMAND_CHARACTERS:
        raise InvalidInputError(
            f"command: longer than {_MAX_COMMAND_CHARACTERS} characters. Copy a script into the "
            "job, and run that."
        )
    return words


def _size(websocket: WebSocket) -> TerminalSize | None:
    query = websocket.query_params
    if query.get("terminal") != "true":
        return None
    texts = (query.get("columns", "80"), query.get("rows", "24"))
    columns, rows = (int(text) if re.fullmatch("[0-9]{1,4}", text) else 0 for text in texts)
    return TerminalSize(_bounded(columns), _bounded(rows))


def _bounded(size: int) -> int:
    return min(max(size, 1), _MAX_SIZE)
