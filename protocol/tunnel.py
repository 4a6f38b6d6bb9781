"""The tunnel between portal and agent: SSH in binary messages of a WebSocket.

GET /agent/v1/tunnel, authenticated as every request of the agent API. The agent opens it while the
desired state `wants_tunnel`. In SSH the agent is the server: it accepts connections to the ports of
running attempts (`direct-tcpip`, with the attempt's id as the host), sessions of `protocol.exec`,
and nothing else.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

TUNNEL_PATH = "/agent/v1/tunnel"
# The fastest in Python; TLS protects the connection, too.
CIPHER = "aes128-gcm@openssh.com"
# A packet of another algorithm could cost the portal any time, and a compressed one any memory.
ALGORITHMS = {
    "kex_algs": ["curve25519-sha256"],
    "encryption_algs": [CIPHER],
    "compression_algs": ["none"],
}
# Packets of SSH that carry data; many small ones would cost both ends more than the bytes do.
PACKET_BYTES = 128 * 1024
# Small packets are sent together, up to this.
_MESSAGE_BYTES = 64 * 1024
# asyncssh copies what it has not parsed yet for each packet of it, and parses without a pause.
_PIECE_BYTES = 32 * 1024
_LOOPBACK = ("127.0.0.1", 0)


class TunnelTransport(asyncio.Transport):
    """What asyncssh uses in place of a socket: it writes and gets the messages of a WebSocket.

    Passed to asyncssh as the `tunnel` of a connection.

    Args:
        send: sends a message.
        max_pending_bytes: how much may wait to be sent before no more is received, because each
            packet can ask for an answer; for one end only, so that they don't wait for each other.
    """

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], *, max_pending_bytes: float = math.inf
    ) -> None:
        super().__init__()
        self._send = send
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._has_room = asyncio.Event()
        self._pending: deque[bytes] = deque()
        self._has_changed = asyncio.Event()
        self._is_over = False
        self._protocol: asyncio.Future[asyncio.Protocol] = asyncio.Future()

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], _host: str, _port: int
    ) -> tuple["TunnelTransport", asyncio.Protocol]:
        """Connect asyncssh, which calls this."""
        protocol = factory()
        protocol.connection_made(self)
        self._protocol.set_result(protocol)
        return self, protocol

    async def receive(self, messages: AsyncIterator[bytes]) -> None:
        """Pass on all messages that arrive."""
        protocol = await self._protocol
        async for message in messages:
            for start in range(0, len(message), _PIECE_BYTES):
                while self._pending_bytes > self._max_pending_bytes:
                    self._has_room.clear()
                    await self._has_room.wait()
                protocol.data_received(message[start : start + _PIECE_BYTES])
                await asyncio.sleep(0)

    async def send(self) -> None:
        """Send what is written until the connection is closed."""
        while not self._is_over:
            await self._has_changed.wait()
            self._has_changed.clear()
            while self._pending:
                await self._send(self._next_message())
                self._has_room.set()

    def lose(self) -> None:
        """Report that the WebSocket has closed."""
        if self._protocol.done():
            self._protocol.result().connection_lost(None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data as soon as possible; the windows of SSH bound what waits."""
        self._pending.append(bytes(data))
        self._pending_bytes += len(data)
        self._has_changed.set()

    def abort(self) -> None:
        """Close when what was written is sent."""
        self._is_over = True
        self._has_changed.set()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return an address of the loopback interface: asyncssh expects one of its peer."""
        return _LOOPBACK if name in {"peername", "sockname"} else default

    def _next_message(self) -> bytes:
        parts = [self._pending.popleft()]
        size = len(parts[0])
        while self._pending and (size := size + len(self._pending[0])) <= _MESSAGE_BYTES:
            parts.append(self._pending.popleft())
        message = b"".join(parts)
        self._pending_bytes -= len(message)
        return message
