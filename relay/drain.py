"""Delivers the spool when the portal is back: oldest first, beside the writes that arrive now.

Requests take turns with pauses of their own length, and grow while the portal answers quickly, so
that live writes find it idle half of the time. The writes of an appliance are delivered in their
order: when the portal refuses one for now, the later ones of this appliance wait as well, and those
of others go on.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from anyio import to_thread

from protocol.relays import MAX_WRITES, RelayedOutcome
from relay.errors import UpstreamAwayError, UpstreamRefusedError
from relay.sender import Sender
from relay.spool import Spool, SpooledWrite
from relay.upstream import ANSWER_SECONDS, Upstream

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.2
FIRST_BYTES, MIN_BYTES = 256 * 1024, 32 * 1024
QUICK_SECONDS, SLOW_SECONDS = 0.15, 0.4
# The pause after a request, as a multiple of the time that it took.
PAUSE_RATIO = 1.0
FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS = 5.0, 300.0
SAVE_SECONDS = 1.0
DISK_RETRY_SECONDS = 10.0
_DELIVERED, _FAILED = 204, 500
# The appliance is revoked or retired; what was wrong with the lines, or the body is too large.
_REVOKED = frozenset({401, 403})
_REJECTED = frozenset({400, 413, 415, 422})
_LOG_EVERY_SECONDS = 60.0
_MAX_LOGGED_CHARACTERS = 500


class Drain:
    """Delivers spooled writes. For the tasks of one event loop.

    Args:
        upstream: the portal.
        spool: of the relay.
        sender: of live writes, before which this gives way.
        max_bytes_per_second: of bodies.
        monotonic: seconds of a clock.

    Attributes:
        delivered: writes that the portal has stored.
        rejected: writes with lines that the portal can't store; their other lines are stored.
        revoked: writes of appliances that were revoked meanwhile, which the portal refuses.
        delivered_bytes: of their bodies.
    """

    def __init__(
        self,
        upstream: Upstream,
        spool: Spool,
        sender: Sender,
        *,
        max_bytes_per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.delivered = self.rejected = self.revoked = 0
        self.delivered_bytes = 0
        self._upstream = upstream
        self._spool = spool
        self._sender = sender
        self._max_bytes_per_second = max_bytes_per_second
        self._monotonic = monotonic
        self._batch_bytes = FIRST_BYTES
        # By appliance: until when it waits, and for how long it had to the last time.
        self._waits: dict[str, float] = {}
        self._wait_seconds: dict[str, float] = {}
        self._logged_at = self._saved_at = -math.inf

    async def run(self) -> None:
        """Deliver what is in the spool, for as long as the relay runs."""
        while True:
            try:
                pause_seconds = await self.step()
            except OSError as error:
                log.warning("can't read the spool, trying again: %s", error)
                pause_seconds = DISK_RETRY_SECONDS
            await asyncio.sleep(pause_seconds)

    async def step(self) -> float:
        """Deliver the next writes, if any; return how long to pause, in seconds.

        Raises:
            OSError: the spool can't be read.
        """
        if not self._spool.waiting_bytes:
            self._waits.clear()
            self._wait_seconds.clear()
            return IDLE_SECONDS
        if self._upstream.wait_seconds:
            return min(self._upstream.wait_seconds, IDLE_SECONDS)
        self._end_waits()
        limit = min(self._batch_bytes, self._upstream.group_bytes)
        entries, is_end = await to_thread.run_sync(self._read, limit)
        if not entries:
            if is_end and not self._waits:
                self._spool.rewind()
            return IDLE_SECONDS if is_end else 0.0
        began = self._monotonic()
        try:
            outcomes = await self._upstream.samples(
                [entry.write for entry in entries], is_patient=True
            )
        except (UpstreamAwayError, UpstreamRefusedError) as error:
            took_long = self._monotonic() - began >= ANSWER_SECONDS
            if took_long and len(entries[0].write.body) > FIRST_BYTES:
                # Perhaps too much for the portal: others have to get past it.
                self._wait(entries[0].write.appliance_id, RelayedOutcome(status=_FAILED))
            self._spool.rewind()
            self._batch_bytes = FIRST_BYTES
            return self._upstream.wait_seconds or error.retry_after_seconds
        done = self._settled(entries, outcomes)
        await to_thread.run_sync(self._remove, done)
        size = sum(len(entry.write.body) for entry in entries)
        return self._pause(size, self._monotonic() - began)

    def _read(self, max_bytes: int) -> tuple[list[SpooledWrite], bool]:
        return self._spool.read(
            max_writes=MAX_WRITES, max_bytes=max_bytes, passed_over=self._waits.keys()
        )

    def _end_waits(self) -> None:
        """Begin with the oldest write when an appliance has waited long enough."""
        now = self._monotonic()
        due = [appliance_id for appliance_id, until in self._waits.items() if until <= now]
        if due:
            self._spool.rewind()
        for appliance_id in due:
            del self._waits[appliance_id]

    def _settled(
        self, entries: Sequence[SpooledWrite], outcomes: Sequence[RelayedOutcome]
    ) -> list[SpooledWrite]:
        """Return the writes that are done; the appliances of the others wait."""
        done = []
        for entry, outcome in zip(entries, outcomes, strict=True):
            appliance_id = entry.write.appliance_id
            if appliance_id in self._waits:
                continue  # sent a second time, after an earlier write
            if outcome.status == _DELIVERED:
                self.delivered += 1
                self.delivered_bytes += len(entry.write.body)
            elif outcome.status in _REVOKED:
                self.revoked += 1
                self._log("did not store", entry, outcome)
            elif outcome.status in _REJECTED:
                self.rejected += 1
                self._log("did not store", entry, outcome)
            else:
                self._wait(appliance_id, outcome)
                if outcome.status >= _FAILED:
                    self._log("can't store now", entry, outcome)
                continue
            self._wait_seconds.pop(appliance_id, None)
            done.append(entry)
        return done

    def _wait(self, appliance_id: str, outcome: RelayedOutcome) -> None:
        doubled = 2 * self._wait_seconds.get(appliance_id, FIRST_WAIT_SECONDS / 2)
        seconds = min(max(doubled, outcome.retry_after_seconds), LAST_WAIT_SECONDS)
        self._wait_seconds[appliance_id] = seconds
        self._waits[appliance_id] = self._monotonic() + seconds

    def _remove(self, done: Sequence[SpooledWrite]) -> None:
        self._spool.acknowledge(done)
        if self._monotonic() - self._saved_at >= SAVE_SECONDS:
            self._spool.save()
            self._saved_at = self._monotonic()

    def _pause(self, size: int, taken_seconds: float) -> float:
        """Adapt the size of requests; return the pause after one."""
        if taken_seconds > SLOW_SECONDS or self._sender.is_behind:
            self._batch_bytes = max(MIN_BYTES, self._batch_bytes // 2)
        elif taken_seconds < QUICK_SECONDS and size * 2 > self._batch_bytes:
            self._batch_bytes = min(2 * self._batch_bytes, self._upstream.group_bytes)
        by_rate = size / self._max_bytes_per_second - taken_seconds
        return max(PAUSE_RATIO * taken_seconds, by_rate)

    def _log(self, what: str, entry: SpooledWrite, outcome: RelayedOutcome) -> None:
        """Log what the portal did with a write, once a minute at most; metrics count all."""
        now = self._monotonic()
        if now - self._logged_at >= _LOG_EVERY_SECONDS:
            self._logged_at = now
            log.warning(
                "the portal %s a write of the appliance %s (status %d): %s",
                what,
                entry.write.appliance_id,
                outcome.status,
                outcome.body[:_MAX_LOGGED_CHARACTERS].decode(errors="replace"),
            )
