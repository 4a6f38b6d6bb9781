"""The agent's side of a tunnel: users reach ports of this appliance's attempts, and run commands.

See `protocol.tunnel`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import cast

import asyncssh
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from jobqueue.executors.base import ExecSession, ExecutorError
from protocol.exec import REFUSED, ExecRequest, TerminalSize
from protocol.tunnel import ALGORITHMS, PACKET_BYTES, TUNNEL_PATH, TunnelTransport

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
CONNECT_SECONDS = 10.0
CHECK_SECONDS = 0.5

FindEndpoint = Callable[[str, int], str | None]
"""Returns where a port of a running attempt listens, such as `127.0.0.1:49153`."""
Execute = Callable[[str, ExecSession], Awaitable[int]]
"""Runs a command in a running attempt and returns its exit code; see `Executor.execute`."""


_Use = asyncssh.SSHTCPChannel[bytes] | asyncssh.SSHServerProcess[bytes]
# A peer that has vanished does not answer when the tunnel is closed.
CLOSE_SECONDS = 1.0


class _Server(asyncssh.SSHServer):
    """Accepts connections to ports of running attempts."""

    def __init__(self, find_endpoint: FindEndpoint, uses: list[_Use]) -> None:
        self._find_endpoint = find_endpoint
        self._connection: asyncssh.SSHServerConnection | None = None
        self._uses = uses

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Remember the connection."""
        self._connection = conn

    def begin_auth(self, username: str) -> bool:  # noqa: ARG002 - asyncssh's
        """Ask for no proof: the portal was authenticated by TLS."""
        return False

    def connection_requested(
        self,
        dest_host: str,
        dest_port: int,
        orig_host: str,  # noqa: ARG002 - asyncssh's
        orig_port: int,  # noqa: ARG002 - asyncssh's
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Awaitable[asyncssh.SSHTCPSession[bytes]]]:
        """Connect to the port of an attempt; refuse everything else."""
        endpoint = self._find_endpoint(dest_host, dest_port)
        if endpoint is None or self._connection is None:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_CONNECT_FAILED, "The attempt does not run, or has no such port."
            )
        host, _, port = endpoint.rpartition(":")
        forwarder = self._connection.forward_connection(host.strip("[]"), int(port))
        channel = self._connection.create_tcp_channel(max_pktsize=PACKET_BYTES)
        self._uses.append(channel)
        return channel, cast("Awaitable[asyncssh.SSHTCPSession[bytes]]", forwarder)


class _UserSession:
    """An `ExecSession` at the end of the tunnel."""

    def __init__(self, process: asyncssh.SSHServerProcess[bytes], command: list[str]) -> None:
        self._process = process
        self.command: Sequence[str] = command
        columns, rows, *_ = process.term_size
        self.term = process.term_type or ""
        self.size = TerminalSize(columns, rows) if process.term_type else None

    async def inputs(self) -> AsyncIterator[bytes | TerminalSize]:
        """Yield until the user sends no more."""
        while True:
            try:
                data = await self._process.stdin.read(CHUNK_BYTES)
            except asyncssh.TerminalSizeChanged as change:
                yield TerminalSize(change.width, change.height)
                continue
            if not data:
                return
            yield data

    async def output(self, data: bytes, *, is_error: bool) -> None:
        """Write, and wait until the channel has room."""
        stream = self._process.stderr if is_error else self._process.stdout
        stream.write(data)
        await stream.drain()


async def _run_command(
    process: asyncssh.SSHServerProcess[bytes], execute: Execute, uses: list[_Use]
) -> None:
    """Run the command of a session until it ends, or the user leaves."""
    uses.append(process)
    try:
        request = msgspec.json.decode(process.command or "", type=ExecRequest)
        session = _UserSession(process, request.command)
        running = asyncio.ensure_future(execute(request.attempt_id, session))
        closed = asyncio.create_task(process.wait_closed())
        try:
            await asyncio.wait([running, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            running.cancel()
            await asyncio.gather(running, closed, return_exceptions=True)
        if not running.cancelled():
            process.exit(running.result())
    except (ExecutorError, msgspec.MsgspecError) as error:
        process.exit_with_signal(REFUSED, msg=str(error))
    except OSError as error:
        log.debug("the user of a command has left: %s", error)
    finally:
        process.close()


def serve_tunnel(
    url: str,
    *,
    headers: Mapping[str, str],
    context: SSLContext | None,
    find_endpoint: FindEndpoint,
    execute: Execute,
    should_go_on: Callable[[], bool],
    should_move: Callable[[bool], bool] = lambda _is_idle: False,
) -> None:
    """Open a tunnel to the portal and serve it until it closes or should not go on.

    Args:
        url: the access point.
        headers: authenticate the agent.
        context: for https.
        find_endpoint: finds ports of attempts.
        execute: runs commands.
        should_go_on: asked every half second.
        should_move: as well, with whether no user has a connection or a command.

    Raises:
        OSError: the portal can't be reached, or refuses the tunnel.
    """

    async def run() -> None:
        async with connect(
            f"ws{url.removeprefix('http')}{TUNNEL_PATH}",
            additional_headers=headers,
            ssl=context,
            compression=None,
            proxy=None,
            open_timeout=CONNECT_SECONDS,
            close_timeout=CLOSE_SECONDS,
        ) as websocket:
            uses: list[_Use] = []
            await _serve(
                websocket,
                lambda: _Server(find_endpoint, uses),
                lambda process: _run_command(process, execute, uses),
                lambda: should_go_on() and not should_move(_is_idle(uses)),
            )

    try:
        asyncio.run(run())
    except WebSocketException as error:
        raise OSError(f"{url} refuses the tunnel: {error}") from error


async def _serve(
    websocket: ClientConnection,
    make_server: Callable[[], _Server],
    run_command: Callable[[asyncssh.SSHServerProcess[bytes]], Awaitable[None]],
    should_go_on: Callable[[], bool],
) -> None:
    transport = TunnelTransport(websocket.send)
    key = asyncssh.generate_private_key("ssh-ed25519")
    tasks = [
        asyncio.create_task(transport.send()),
        asyncio.create_task(transport.receive(_messages(websocket))),
        asyncio.create_task(_wait_while(should_go_on)),
    ]

    async def run_ssh() -> None:
        await asyncssh.connect_reverse(
            "portal",
            tunnel=transport,
            config=None,
            server_factory=make_server,
            server_host_keys=[key],
            **ALGORITHMS,
            process_factory=run_command,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
        )

    ssh = asyncio.create_task(run_ssh())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, ssh):
            task.cancel()
        await asyncio.gather(*tasks, ssh, return_exceptions=True)
        transport.lose()


async def _messages(websocket: ClientConnection) -> AsyncIterator[bytes]:
    with suppress(WebSocketException):
        while True:
            yield await websocket.recv(decode=False)


def _is_idle(uses: list[_Use]) -> bool:
    """Return whether nobody uses the tunnel; forget those who have."""
    uses[:] = [use for use in uses if not use.is_closing()]
    return not uses


async def _wait_while(should_go_on: Callable[[], bool]) -> None:
    while should_go_on():  # noqa: ASYNC110 - threads decide
        await asyncio.sleep(CHECK_SECONDS)
