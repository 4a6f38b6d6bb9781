"""One thread for large bodies, which tenants use in turns.

More threads would compete for the interpreter lock and take longer. With one queue for all, a
tenant that sends many large bodies would delay those of every other tenant.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


class FairWorker:
    """Runs one piece of work after another. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_busy = False
        self._limiter: CapacityLimiter | None = None

    async def run(self, tenant_id: str, work: Callable[[], T]) -> T:
        """Run `work` in the thread at the tenant's turn, and return its result."""
        await self._turn(tenant_id)
        try:
            # Its own limiter: the default one is shared with work that waits.
            self._limiter = self._limiter or CapacityLimiter(1)
            return await to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._pass_on()

    async def _turn(self, tenant_id: str) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the next tenant its turn; each tenant with more work goes to the end."""
        while self._waiting:
            tenant_id, turns = next(iter(self._waiting.items()))
            del self._waiting[tenant_id]
            turn = turns.popleft()
            if turns:
                self._waiting[tenant_id] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False
