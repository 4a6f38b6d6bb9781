"""Tunnels to appliances: SSH over a WebSocket that the agent opens when the portal asks for it.

The agent is the SSH server, and this the client, because it is the one that opens channels. An
appliance has at most one tunnel, which all users of its jobs share; it closes when nobody has used
it for a while. TLS and the agent API authenticate both sides, so SSH itself asks for no proof.

The database names the process that holds a tunnel. An agent may connect to any process, which
passes its WebSocket on to the holder; requests of users come to it by `access.jobs.app`.
"""

import asyncio
import importlib
import logging
import math
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect

from access.database import Database
from access.identity.auth import Authenticator
from access.jobs.forwarding import SCOPE_KEY, Forwarder, HolderGoneError
from access.jobs.proxying import TRY_AGAIN
from core.errors import UnavailableError, VedetteError
from core.rate_limits import ConcurrencyLimit
from jobqueue.services.tunnels import (
    claim_tunnel,
    holder_for_job,
    holder_of,
    release_tunnel,
    release_tunnels,
)
from protocol.tunnel import ALGORITHMS, PACKET_BYTES, TunnelTransport

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
# A page of a job has many requests.
HOLDER_SECONDS = 2.0
MAX_HOLDERS = 1_000
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

    def __init__(
        self, database: Database, authenticator: Authenticator, forwarder: Forwarder
    ) -> None:
        self._database = database
        self._authenticator = authenticator
        self._forwarder = forwarder
        self._tunnels: dict[str, Tunnel] = {}
        self._holders: dict[str, tuple[float, str | None]] = {}
        self._changed = asyncio.Condition()
        self._of_appliance = ConcurrencyLimit(MAX_PER_APPLIANCE)

    async def holder_elsewhere(self, job_id: str) -> str | None:
        """Return the URL of the other process with the tunnel to a job, None if there is none."""
        now = time.monotonic()
        read_at, url = self._holders.get(job_id, (-math.inf, None))
        if now - read_at > HOLDER_SECONDS:
            url = await self._database.run(lambda session: holder_for_job(session, job_id))
            if len(self._holders) >= MAX_HOLDERS:
                self._holders.clear()
            self._holders[job_id] = now, url
        return None if url == self._forwarder.url else url

    async def forget_holder(self, url: str) -> None:
        """Remove a process that does not answer, so that this one can open tunnels instead."""
        log.warning("the process at %s does not answer; its tunnels are released", url)
        self._holders.clear()
        await self._database.run(lambda session: release_tunnels(session, url))

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
        """Serve the tunnel of an agent until it closes, here or in the process that wants it."""
        try:
            appliance_id = await self._appliance_of(websocket)
        except VedetteError as error:
            await websocket.close(_REFUSED, error.message[:100])
            return
        url = await self._database.run(lambda session: holder_of(session, appliance_id))
        with self._of_appliance.running(appliance_id) as is_admitted:
            if url is None:
                await websocket.close(_REFUSED, "Nobody has asked for a tunnel.")
            elif not is_admitted:
                await websocket.close(_REFUSED, "There is a tunnel.")
            elif url == self._forwarder.url:
                await websocket.accept()
                await self._serve(websocket, appliance_id)
            else:
                await self._pass_on(websocket, appliance_id, url)

    async def _appliance_of(self, websocket: WebSocket) -> str:
        forwarded = websocket.scope.get(SCOPE_KEY)
        if forwarded is not None and forwarded.appliance_id:
            return str(forwarded.appliance_id)
        return (await self._authenticator.agent(websocket)).appliance_id

    async def _pass_on(self, websocket: WebSocket, appliance_id: str, url: str) -> None:
        if SCOPE_KEY in websocket.scope:
            await websocket.close(TRY_AGAIN)
            return
        try:
            await self._forwarder.websocket(websocket, url=url, appliance_id=appliance_id)
        except HolderGoneError:
            await self.forget_holder(url)
            await websocket.close(TRY_AGAIN)

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
                        await self._release(appliance_id)
                        break
            finally:
                if self._tunnels.get(appliance_id) is tunnel:
                    del self._tunnels[appliance_id]
                await tunnel.close()
                log.info("tunnel to appliance %s closed", appliance_id)

    async def _connected(self, appliance_id: str) -> Tunnel:
        own_url = self._forwarder.url
        if appliance_id not in self._tunnels:
            url = await self._database.run(
                lambda session: claim_tunnel(session, appliance_id, own_url)
            )
            self._holders.clear()
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS if url == own_url else 0):
                    async with self._changed:
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

    async def _release(self, appliance_id: str) -> None:
        own_url = self._forwarder.url
        await self._database.run(lambda session: release_tunnel(session, appliance_id, own_url))


async def _messages(websocket: WebSocket) -> AsyncIterator[bytes]:
    with suppress(WebSocketDisconnect):
        while True:
            message = await websocket.receive_bytes()
            if len(message) > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message has {len(message)} bytes")
            yield message
