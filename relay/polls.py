"""Long polls of agents for their desired state: they wait here, one request at the portal.

That request names the generation of every appliance that waits. It is sent anew when the portal has
answered and when an appliance joins, a few times a second at most. Appliances that have left stay
in it for a while, because most come back with the same generation.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from protocol.relays import ChangesRequest
from relay.errors import UpstreamAwayError, UpstreamRefusedError
from relay.upstream import Upstream

log = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
# Of the request with up to so many appliances; of more, in proportion, because it names them all.
RENEW_SECONDS, _RENEWED_AT_ONCE = 0.3, 2_000
MAX_RENEW_SECONDS = 2.0
LEAVE_SECONDS = 60.0
# That a request names.
MAX_APPLIANCES = 10_000
RETRY_SECONDS = 2.0


@dataclass(slots=True)
class _Appliance:
    """An appliance that waits, or did until a moment ago."""

    generation: int
    left_at: float = 0.0
    waiters: set[asyncio.Future[None]] = field(default_factory=set)


class Polls:
    """Waits for changes of generations. For the tasks of one event loop.

    Args:
        upstream: the portal.
        monotonic: seconds of a clock.
    """

    def __init__(
        self, upstream: Upstream, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._upstream = upstream
        self._monotonic = monotonic
        self._appliances: dict[str, _Appliance] = {}
        self._has_joined = asyncio.Event()

    @property
    def waiting(self) -> int:
        """The number of polls that wait."""
        return sum(len(appliance.waiters) for appliance in list(self._appliances.values()))

    async def wait(
        self,
        appliance_id: str,
        generation: int,
        *,
        timeout_seconds: float,
        disconnected: Awaitable[object] | None = None,
    ) -> bool:
        """Wait until the generation of an appliance is another one; return whether it is.

        `disconnected` ends the wait when it is done.
        """
        appliance = self._join(appliance_id, generation)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        appliance.waiters.add(waiter)
        ends: set[asyncio.Future[Any]] = {waiter}
        if disconnected is not None:
            ends.add(asyncio.ensure_future(disconnected))
        try:
            await asyncio.wait(ends, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            return waiter.done()
        finally:
            for end in ends:
                end.cancel()
            appliance.waiters.discard(waiter)
            appliance.left_at = self._monotonic()

    async def run(self) -> None:
        """Ask the portal for changes, for as long as the relay runs."""
        while True:
            self._forget_left()
            if not self._appliances:
                await self._has_joined.wait()
            self._has_joined.clear()
            try:
                await self._ask()
            except (UpstreamAwayError, UpstreamRefusedError) as error:
                log.debug("can't ask for changes: %s", error.message)
                await asyncio.sleep(RETRY_SECONDS)
            share = max(1.0, len(self._appliances) / _RENEWED_AT_ONCE)
            await asyncio.sleep(min(RENEW_SECONDS * share, MAX_RENEW_SECONDS))

    def _join(self, appliance_id: str, generation: int) -> _Appliance:
        appliance = self._appliances.get(appliance_id)
        if appliance is None:
            appliance = self._appliances[appliance_id] = _Appliance(generation)
            self._has_joined.set()
        elif appliance.generation != generation:
            appliance.generation = generation
            self._has_joined.set()
        return appliance

    async def _ask(self) -> None:
        """Wait at the portal until a generation is another one, or an appliance has joined."""
        generations = {name: own.generation for name, own in self._appliances.items()}
        items = list(generations.items())
        asking = [
            asyncio.ensure_future(
                self._upstream.changes(
                    ChangesRequest(
                        generations=dict(items[start : start + MAX_APPLIANCES]),
                        wait_seconds=WAIT_SECONDS,
                    )
                )
            )
            for start in range(0, len(items), MAX_APPLIANCES)
        ]
        joining = asyncio.ensure_future(self._has_joined.wait())
        try:
            await asyncio.wait([*asking, joining], return_when=asyncio.FIRST_COMPLETED)
            for answer in asking:
                if answer.done():
                    self._wake(answer.result(), generations)
        finally:
            for task in (*asking, joining):
                task.cancel()
            await asyncio.gather(*asking, joining, return_exceptions=True)

    def _wake(self, changed: list[str], asked: dict[str, int]) -> None:
        for appliance_id in changed:
            appliance = self._appliances.get(appliance_id)
            # One that has joined meanwhile with a newer generation is asked for in the next round.
            if appliance is None or appliance.generation != asked.get(appliance_id):
                continue
            for waiter in appliance.waiters:
                if not waiter.done():
                    waiter.set_result(None)
            del self._appliances[appliance_id]

    def _forget_left(self) -> None:
        oldest = self._monotonic() - LEAVE_SECONDS
        for appliance_id, appliance in list(self._appliances.items()):
            if not appliance.waiters and appliance.left_at < oldest:
                del self._appliances[appliance_id]
