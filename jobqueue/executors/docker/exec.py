"""Commands in running containers of a Docker engine.

The SDK creates and inspects them. Their streams are read here: the SDK loses output that arrives
together with the engine's answer, and blocks a thread for each of them.
"""

import asyncio
import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docker.errors import DockerException
from requests import RequestException

from jobqueue.executors.base import ExecSession, ExecutorError
from protocol.exec import TerminalSize

log = logging.getLogger(__name__)

CHUNK_BYTES = 32 * 1024
_SWITCHING, _OK = 101, 200
_STDERR = 2
_START_CHECKS, _RESIZES, _CHECK_SECONDS = 50, 10, 0.1
# Runs as the user of the command. A shell that was left passes SIGHUP on to what it runs.
_HANG_UP = 'kill -HUP "$0" && sleep 5 && kill -KILL "$0"'


async def run_in_container(
    api: Any,  # noqa: ANN401 - the SDK has no types
    url: str,
    container_id: str,
    session: ExecSession,
) -> int:
    """Run a command until it ends and return its exit code; it is ended if this is cancelled.

    Raises:
        ExecutorError: the engine does not run it.
    """
    size = session.size
    try:
        created = await asyncio.to_thread(
            api.exec_create,
            container_id,
            list(session.command),
            stdin=True,
            tty=size is not None,
            environment={"TERM": session.term} if size else None,
        )
        exec_id = str(created["Id"])
        reader, writer = await _start(url, exec_id, is_terminal=size is not None)
    except (DockerException, RequestException, OSError, asyncio.IncompleteReadError) as error:
        problem = getattr(error, "explanation", None) or error
        raise ExecutorError(f"The command can't be started: {problem}") from error
    typing = asyncio.create_task(_pass_input(api, exec_id, session, writer))
    has_ended = False
    try:
        await _pass_output(reader, session)
        has_ended = True
        inspected = await asyncio.to_thread(api.exec_inspect, exec_id)
        return int(inspected["ExitCode"] or 0)
    finally:
        # Nothing is awaited: at the end of the tunnel, the task is cancelled twice.
        typing.cancel()
        writer.transport.abort()
        if not has_ended:
            asyncio.get_running_loop().run_in_executor(None, _hang_up, api, container_id, exec_id)


async def _start(
    url: str, exec_id: str, *, is_terminal: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(parts.path)
    else:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    body = json.dumps({"Detach": False, "Tty": is_terminal}).encode()
    head = (
        f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\n"
        f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    problem = ""
    try:
        writer.write(head.encode() + body)
        status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
        if status not in {_SWITCHING, _OK}:
            problem = (await reader.read(CHUNK_BYTES)).decode(errors="replace").strip()
    except BaseException:
        writer.close()
        raise
    if problem:
        writer.close()
        raise OSError(problem)
    return reader, writer


async def _pass_input(
    api: Any,  # noqa: ANN401
    exec_id: str,
    session: ExecSession,
    writer: asyncio.StreamWriter,
) -> None:
    if session.size is not None:
        await _resize(api, exec_id, session.size)
    with contextlib.suppress(ConnectionError):
        async for item in session.inputs():
            if isinstance(item, TerminalSize):
                await _resize(api, exec_id, item)
            else:
                writer.write(item)
                await writer.drain()
        writer.write_eof()


async def _resize(api: Any, exec_id: str, size: TerminalSize) -> None:  # noqa: ANN401
    """Set the size of a terminal; what is being started has none yet, and what ended none more."""
    for _ in range(_RESIZES):
        try:
            await asyncio.to_thread(api.exec_resize, exec_id, height=size.rows, width=size.columns)
        except (DockerException, RequestException):
            await asyncio.sleep(_CHECK_SECONDS)
        else:
            return


async def _pass_output(reader: asyncio.StreamReader, session: ExecSession) -> None:
    """Pass output on until the end: as it is from a terminal, else in frames of two streams.

    Source: Docker Engine API, "Attach to a container", stream format.
    """
    if session.size is not None:
        while data := await reader.read(CHUNK_BYTES):
            await session.output(data, is_error=False)
        return
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(8)
            remaining_bytes = int.from_bytes(head[4:], "big")
            while remaining_bytes and (
                data := await reader.read(min(remaining_bytes, CHUNK_BYTES))
            ):
                remaining_bytes -= len(data)
                await session.output(data, is_error=head[0] == _STDERR)


def _hang_up(api: Any, container_id: str, exec_id: str) -> None:  # noqa: ANN401
    """End what runs as a closed terminal would: the engine lets it run on."""
    try:
        inspected = api.exec_inspect(exec_id)
        for _ in range(_START_CHECKS):
            if inspected["Pid"] or not inspected["Running"]:
                break
            time.sleep(_CHECK_SECONDS)  # it is being started
            inspected = api.exec_inspect(exec_id)
        if not inspected["Running"]:
            return
        status = Path(f"/proc/{inspected['Pid']}/status").read_text(
            encoding="ascii", errors="replace"
        )
        pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        command = ["sh", "-c", _HANG_UP, pids.split()[-1]]
        ending = api.exec_create(container_id, command, stdout=False, stderr=False)
        api.exec_start(ending["Id"], detach=True)
    except (DockerException, RequestException, OSError, StopIteration) as error:
        log.warning("can't end a command in container %s: %s", container_id[:12], error)
