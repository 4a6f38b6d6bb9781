"""Tunnels to appliances: SSH over a WebSocket that the agent opens when the portal asks for it.

The agent is the SSH server, and this the client, because it is the one that opens channels. An
appliance has at most one tunnel, which all users of its jobs share; it closes when nobody has used
it for a while. TLS and the agent API authenticate both sides, so SSH itself asks for no proof.
"""

import asyncio
import importlib
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect

from access.database import Database
from access.identity.auth import Authenticator
from core.errors import UnavailableError, VedetteError
from core.rate_limits import ConcurrencyLimit
from protocol.tunnel import ALGORITHMS, PACKET_BYTES, TunnelTransport
from tenants.fleet.appliances import bump_generation

if TYPE_CHECKING:
    import asyncssh
    import httpx

log = logging.getLogger(__name__)

# The agent learns within a moment that it is wanted, and connects.
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 300.0
# One that connects again may not have noticed that its tunnel is lost.
MAX_PER_APPLIANCE = 2
MAX_MESSAGE_BYTES = 1024 * 1024
MAX_PENDING_BYTES = 4 * 1024 * 1024
# Shorter than servers do, so that none closes a connection at the moment of a request.
KEEP_ALIVE_SECONDS = 1.5
_REFUSED = 1008  # policy violation, RFC 6455


@dataclass(eq=False)
class Tunnel:
    """A connected tunnel."""

    ssh: "asyncssh.SSHClientConnection"
    folder: Path
    users: int = 0
    sockets: dict[tuple[str, int], Path] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)
    transports: dict[Path, "httpx.AsyncHTTPTransport"] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def socket_to(self, attempt_id: str, port: int) -> Path:
        """Return a Unix socket of this process that leads to a port of an attempt."""
        async with self.lock:
            path = self.sockets.get((attempt_id, port))
            if path is None:
                path = self.folder / str(len(self.sockets))
                self.servers.append(await self._listen(path, attempt_id, port))
                self.sockets[attempt_id, port] = path
            return path

    async def _listen(self, path: Path, attempt_id: str, port: int) -> asyncio.Server:
        """Lead connections to a path to a port, as `forward_local_path_to_port` of asyncssh does.

        That one has no parameter for the size of packets.
        """
        from asyncssh.forward import SSHLocalPathForwarder  # noqa: PLC0415 - loaded already

        connect = partial(
            self.ssh.create_connection,
            remote_host=attempt_id,
            remote_port=port,
            max_pktsize=PACKET_BYTES,
        )
        loop = asyncio.get_running_loop()
        return await loop.create_unix_server(
            lambda: SSHLocalPathForwarder(self.ssh, connect), str(path)
        )

    async def transport_to(self, path: Path) -> "httpx.AsyncHTTPTransport":
        """Return what sends requests to a socket; connections to the job's server stay open.

        No client of httpx: it would remember the cookies of one user for the next.
        """
        if path not in self.transports:
            # Loaded when a page of a job is first opened: 6 MiB that most servers save.
            await asyncio.to_thread(importlib.import_module, "httpx")
            import httpx  # noqa: PLC0415

            limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS)
            # Without TLS: making its context takes tens of milliseconds.
            made = httpx.AsyncHTTPTransport(uds=str(path), limits=limits, verify=False)
            return self.transports.setdefault(path, made)
        return self.transports[path]

    async def close(self) -> None:
        """Close all connections."""
        for transport in self.transports.values():
            await transport.aclose()
        for server in self.servers:
            server.close()
        self.ssh.abort()


class Tunnels:
    """The tunnels of this process. For the tasks of one event loop."""

    def __init__(self, database: Database, authenticator: Authenticator) -> None:
        self._database = database
        self._authenticator = authenticator
        self._wanted: set[str] = set()
        self._tunnels: dict[str, Tunnel] = {}
        self._changed = asyncio.Condition()
        self._of_appliance = ConcurrencyLimit(MAX_PER_APPLIANCE)

    def wants(self, appliance_id: str) -> bool:
        """Return whether the appliance should open a tunnel."""
        return appliance_id in self._wanted

    @asynccontextmanager
    async def use(self, appliance_id: str) -> AsyncIterator[Tunnel]:
        """Give the tunnel to an appliance, which stays open for the length of the block.

        Raises:
            UnavailableError: the appliance does not connect; code `appliance_not_connected`.
        """
        tunnel = await self._connected(appliance_id)
        tunnel.users += 1
        try:
            yield tunnel
        finally:
            tunnel.users -= 1

    async def serve(self, websocket: WebSocket) -> None:
        """Serve the tunnel of an agent until it closes."""
        try:
            agent = await self._authenticator.agent(websocket)
        except VedetteError as error:
            await websocket.close(_REFUSED, error.message[:100])
            return
        with self._of_appliance.running(agent.appliance_id) as is_admitted:
            if not self.wants(agent.appliance_id):
                await websocket.close(_REFUSED, "Nobody has asked for a tunnel.")
            elif not is_admitted:
                await websocket.close(_REFUSED, "There is a tunnel.")
            else:
                await websocket.accept()
                await self._serve(websocket, agent.appliance_id)

    async def _serve(self, websocket: WebSocket, appliance_id: str) -> None:
        transport = TunnelTransport(websocket.send_bytes, max_pending_bytes=MAX_PENDING_BYTES)
        tasks = [
            asyncio.create_task(transport.send()),
            asyncio.create_task(transport.receive(_messages(websocket))),
            asyncio.create_task(self._hold(appliance_id, transport)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                # The first two are how a WebSocket says that it has closed.
                if isinstance(result, Exception) and not isinstance(
                    result, WebSocketDisconnect | RuntimeError
                ):
                    log.warning("tunnel to appliance %s failed: %s", appliance_id, result)
            transport.lose()
            with suppress(RuntimeError, WebSocketDisconnect):  # it may be closed already
                await websocket.close()

    async def _hold(self, appliance_id: str, transport: TunnelTransport) -> None:
        """Connect SSH, and offer the tunnel until it closes or is idle for long."""
        # 27 MiB that servers without tunnels save; in a thread, because it takes a moment.
        await asyncio.to_thread(importlib.import_module, "asyncssh")
        import asyncssh  # noqa: PLC0415

        async with asyncio.timeout(CONNECT_SECONDS):
            ssh = await asyncssh.connect(
                "agent",
                tunnel=transport,
                config=None,
                known_hosts=None,
                username="portal",
                client_keys=None,
                agent_path=None,
                server_host_key_algs=["ssh-ed25519"],
                **ALGORITHMS,
            )
        with tempfile.TemporaryDirectory(prefix="vedette-") as folder:
            tunnel = Tunnel(ssh, Path(folder))
            log.info("tunnel to appliance %s opened", appliance_id)
            await self._set(appliance_id, tunnel)
            try:
                while not ssh.is_closed() and self._tunnels.get(appliance_id) is tunnel:
                    used = tunnel.users
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(ssh.wait_closed(), IDLE_SECONDS)
                    if not used and not tunnel.users:
                        await self._unwant(appliance_id)
                        break
            finally:
                if self._tunnels.get(appliance_id) is tunnel:
                    del self._tunnels[appliance_id]
                await tunnel.close()
                log.info("tunnel to appliance %s closed", appliance_id)

    async def _connected(self, appliance_id: str) -> Tunnel:
        if appliance_id not in self._tunnels:
            self._wanted.add(appliance_id)
            await self._database.run(lambda session: bump_generation(session, appliance_id))
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS), self._changed:
                    await self._changed.wait_for(lambda: appliance_id in self._tunnels)
        tunnel = self._tunnels.get(appliance_id)
        if tunnel is None:
            raise UnavailableError(
                "The appliance is not connected now. Try again in a moment.",
                code="appliance_not_connected",
            )
        return tunnel

    async def _set(self, appliance_id: str, tunnel: Tunnel) -> None:
        async with self._changed:
            before = self._tunnels.get(appliance_id)
            if before is not None:
                before.ssh.abort()
            self._tunnels[appliance_id] = tunnel
            self._changed.notify_all()

    async def _unwant(self, appliance_id: str) -> None:
        self._wanted.discard(appliance_id)
        await self._database.run(lambda session: bump_generation(session, appliance_id))


async def _messages(websocket: WebSocket) -> AsyncIterator[bytes]:
    with suppress(WebSocketDisconnect):
        while True:
            message = await websocket.receive_bytes()
            if len(message) > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message has {len(message)} bytes")
            yield message
