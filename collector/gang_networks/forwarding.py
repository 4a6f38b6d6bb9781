"""Ports of members on this host's loopback: the engine publishes none of a private network.

A connection is opened by a socket of the member's namespace, so it needs no route there.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from threading import Thread

from collector.gang_networks.namespaces import entered

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 256
"""Concurrent ones to one port."""
CHUNK_BYTES = 64 * 1024
CONNECT_SECONDS = 10.0


class Forwarder:
    """Forwards ports of members, in a thread of its own. Thread-safe."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="gang-ports", daemon=True)
        self._members: dict[str, _Member] = {}
        self._thread.start()

    def forward(
        self, attempt_id: str, namespace: int, address: str, ports: Sequence[int]
    ) -> dict[int, str]:
        """Forward the ports of a member, unless they are; return where each listens.

        Raises:
            OSError: no port is free.
        """
        member = self._members.get(attempt_id)
        if member is None:
            opening = _Member.open(os.dup(namespace), address, ports)
            member = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
            self._members[attempt_id] = member
        return dict(member.endpoints)

    def forget(self, attempt_id: str) -> None:
        """Stop forwarding the ports of a member, whose namespace may then end."""
        member = self._members.pop(attempt_id, None)
        if member is not None:
            asyncio.run_coroutine_threadsafe(member.close(), self._loop).result()

    @property
    def attempt_ids(self) -> set[str]:
        """The members with ports."""
        return set(self._members)

    def close(self) -> None:
        """End the thread."""
        for attempt_id in self.attempt_ids:
            self.forget(attempt_id)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Member:
    def __init__(self, namespace: int, address: str) -> None:
        self._namespace = namespace
        self._address = address
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self.endpoints: dict[int, str] = {}

    @classmethod
    async def open(cls, namespace: int, address: str, ports: Sequence[int]) -> "_Member":
        member = cls(namespace, address)
        try:
            for port in ports:
                await member._listen(port)
        except OSError:
            await member.close()
            raise
        return member

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        os.close(self._namespace)

    async def _listen(self, port: int) -> None:
        own: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is None or len(own) >= MAX_CONNECTIONS:
                writer.close()
                return
            for tasks in (own, self._connections):
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._connect(reader, writer, port)
            writer.close()

        server = await asyncio.start_server(accept, LOOPBACK, 0, limit=CHUNK_BYTES)
        self._servers.append(server)
        self.endpoints[port] = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        with entered(self._namespace):
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)  # noqa: FBT003 - its signature
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(connection, (self._address, port))
            inner_reader, inner_writer = await asyncio.open_connection(
                sock=connection, limit=CHUNK_BYTES
            )
        except BaseException:
            connection.close()
            raise
        try:
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
