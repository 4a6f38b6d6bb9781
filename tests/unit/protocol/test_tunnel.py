"""The transport of tunnels: what one end sends can't fill the memory of the other."""

import asyncio
from collections.abc import AsyncIterator

from protocol.tunnel import TunnelTransport

MESSAGE = bytes(256 * 1024)


class Echo(asyncio.Protocol):
    """Answers each byte, as SSH answers packets that want a reply."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.sizes.append(len(data))
        assert isinstance(self.transport, TunnelTransport)
        self.transport.write(data)


async def messages(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield MESSAGE


def test_a_peer_that_does_not_read_its_answers_is_not_read() -> None:
    async def run() -> None:
        may_send = asyncio.Event()
        sent: list[int] = []

        async def send(data: bytes) -> None:
            await may_send.wait()
            sent.append(len(data))

        transport = TunnelTransport(send, max_pending_bytes=1024 * 1024)
        echo = Echo()
        await transport.create_connection(lambda: echo, "", 0)
        sending = asyncio.create_task(transport.send())
        receiving = asyncio.create_task(transport.receive(messages(16)))
        await asyncio.wait({receiving}, timeout=0.2)
        # What is being sent does not wait any more.
        assert sum(echo.sizes) <= 1024 * 1024 + 3 * 64 * 1024
        may_send.set()
        await receiving
        assert sum(echo.sizes) == 16 * len(MESSAGE)
        # A large message is parsed in pieces, between which others are served.
        assert max(echo.sizes) == 32 * 1024
        sending.cancel()

    asyncio.run(run())
