"""uvicorn's server, which stops without failing a request that a load balancer sends it.

After SIGTERM it goes on for a while: `/readyz` is 503, so that load balancers choose other servers,
and each response ends its connection. Then it accepts no more connections, and those that proxies
hold open end with their next request. Only then it stops as uvicorn does.
"""

import asyncio
import select
import socket
import threading
from collections.abc import Iterator

import uvicorn

WAITING_CONNECTIONS = 2_048
# For proxies to notice by a refused connection that their idle ones are no use either.
LINGER_SECONDS = 0.5
_POLL_SECONDS = 0.05


class DrainingServer(uvicorn.Server):
    """Accepts few connections at a time, so that those of one client don't delay all others.

    asyncio takes the backlog for both: how many it accepts before anything else is served, and how
    many wait in the kernel.

    Args:
        config: of uvicorn.
        draining: set when SIGTERM came, unless `drain_seconds` is 0.
        drain_seconds: from then on, how long connections are accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        draining: threading.Event | None = None,
        drain_seconds: float = 0.0,
    ) -> None:
        super().__init__(config)
        self._draining = draining or threading.Event()
        self._drain_seconds = drain_seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for listener in self._listeners():
            with socket.fromfd(listener.fileno(), listener.family, listener.type) as same:
                same.listen(WAITING_CONNECTIONS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then stop; a second Ctrl-C ends the draining."""
        if self._drain_seconds:
            self._draining.set()
            await self._pause(self._drain_seconds)
            while self._has_waiting_connections():  # noqa: ASYNC110 - the kernel has no event
                await asyncio.sleep(0)
            for server in self.servers:
                server.close()
            await self._pause(LINGER_SECONDS)
        await super().shutdown(sockets)

    async def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and not self.force_exit:  # noqa: ASYNC110 - set by a signal
            await asyncio.sleep(_POLL_SECONDS)

    def _listeners(self) -> Iterator[socket.socket]:
        for server in self.servers:
            yield from server.sockets

    def _has_waiting_connections(self) -> bool:
        """Return whether the kernel has connections that closing the listeners would reset."""
        poll = select.poll()
        for listener in self._listeners():
            poll.register(listener.fileno(), select.POLLIN)
        return bool(poll.poll(0))
