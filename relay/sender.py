"""Sends the writes of agents in groups, and stores them on disk while the portal is away.

While requests are on their way, the writes that arrive meanwhile form the next group, so that
groups grow with the load and nobody waits for company. An agent gets 204 when the portal has
stored its samples, or the relay's disk has.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from anyio import CapacityLimiter, to_thread

from protocol.relays import MAX_WRITES, RelayedOutcome, RelayedWrite
from relay.errors import RelayBusyError, UpstreamAwayError, UpstreamRefusedError
from relay.spool import Spool
from relay.upstream import State, Upstream

# The portal answers two requests of a relay at once; the spool's delivery has one of them.
MAX_IN_FLIGHT = 2
# Of bodies that wait for their group.
MAX_WAITING_BYTES = 64 * 2**20
STORED = RelayedOutcome(status=204)


@dataclass(frozen=True, slots=True)
class _Waiting:
    write: RelayedWrite
    outcome: asyncio.Future[RelayedOutcome]


class Sender:
    """Groups writes. For the tasks of one event loop.

    Args:
        upstream: the portal.
        spool: where writes are stored while it is away.

    Attributes:
        forwarded: writes that the portal answered at once.
        spooled: writes that were stored on disk.
        refused: writes that agents have to send later: the spool is full, or too much waits.
    """

    def __init__(self, upstream: Upstream, spool: Spool) -> None:
        self.forwarded = self.spooled = self.refused = 0
        self._upstream = upstream
        self._spool = spool
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._is_due = False
        # One thread at a time: what arrives during an fsync is in the next.
        self._disk = CapacityLimiter(1)

    @property
    def is_behind(self) -> bool:
        """Whether writes wait because all requests are on their way."""
        return bool(self._waiting)

    async def write(self, write: RelayedWrite) -> RelayedOutcome:
        """Return the outcome of a write.

        Raises:
            UnavailableError: the agent has to send it later.
        """
        size = len(write.body)
        if self._waiting and self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.refused += 1
            raise RelayBusyError("Too many writes wait at this relay. Send again later.")
        waiting = _Waiting(write, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += size
        if not self._is_due:
            # After what else has arrived by now.
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._dispatch)
        return await waiting.outcome

    async def drained(self) -> None:
        """Wait until nothing is on its way."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _dispatch(self) -> None:
        self._is_due = False
        allowed = MAX_IN_FLIGHT - bool(self._spool.waiting_bytes)
        while self._waiting and len(self._sending) < allowed:
            group = self._next_group()
            task = asyncio.create_task(self._send(group))
            self._sending.add(task)
            task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._dispatch()

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < MAX_WRITES:
            size += len(self._waiting[0].write.body)
            if group and size > self._upstream.group_bytes:
                break
            group.append(self._waiting.popleft())
            self._waiting_bytes -= len(group[-1].write.body)
        return group

    async def _send(self, group: Sequence[_Waiting]) -> None:
        try:
            outcomes = await self._outcomes([waiting.write for waiting in group])
        except asyncio.CancelledError:
            for waiting in group:
                waiting.outcome.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - raised in the request of each
            self.refused += len(group)
            for waiting in group:
                if not waiting.outcome.done():
                    waiting.outcome.set_exception(error)
            return
        for waiting, outcome in zip(group, outcomes, strict=True):
            if not waiting.outcome.done():
                waiting.outcome.set_result(outcome)

    async def _outcomes(self, writes: list[RelayedWrite]) -> list[RelayedOutcome]:
        if self._upstream.state is State.REFUSED:
            # Agents may find another access point; what is on disk here may never be accepted.
            raise UpstreamRefusedError(self._upstream.reason)
        if self._may_send():
            try:
                outcomes = await self._upstream.samples(writes)
            except UpstreamAwayError:
                pass
            else:
                self.forwarded += len(writes)
                return outcomes
        await to_thread.run_sync(self._spool.append, writes, limiter=self._disk)
        self.spooled += len(writes)
        return [STORED] * len(writes)

    def _may_send(self) -> bool:
        """Return whether to ask the portal: while it is away, the spool's drain alone does."""
        upstream = self._upstream
        return upstream.is_up or (not self._spool.waiting_bytes and not upstream.wait_seconds)
