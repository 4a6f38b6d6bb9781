"""Delivers the spool when the portal is back: oldest first, beside the writes that arrive now.

Requests take turns with pauses of their own length, and grow while the portal answers quickly, so
that live writes find it idle half of the time. The writes of an appliance are delivered in their
order: when the portal refuses one for now, the later ones of this appliance wait as well, and those
of others go on.

A write on which the portal fails (500) is sent alone from then on, and `relay.salvage` decides what
becomes of it.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence

from anyio import to_thread

from protocol.relays import MAX_WRITES, RelayedOutcome
from relay.division import FAILED, REJECTED, STORED, is_failure, outcome_of, reason_of
from relay.errors import UpstreamAwayError, UpstreamFailedError, UpstreamRefusedError
from relay.salvage import Salvage
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
LAST_FAILURE_WAIT_SECONDS = 60.0
# Between failures of whole requests.
FAILURE_PAUSE_SECONDS = 0.2
# Later writes that are sent before one that fails, to see whether the portal stores anything.
MAX_PROBES = 8
# The appliance is revoked or retired.
_REVOKED = frozenset({401, 403})
_LOG_EVERY_SECONDS = 60.0


class Drain:
    """Delivers spooled writes. For the tasks of one event loop.

    Args:
        upstream: the portal.
        spool: of the relay.
        sender: of live writes, before which this gives way.
        salvage: of writes that the portal rejects or fails on.
        max_bytes_per_second: of bodies.
        monotonic: seconds of a clock.

    Attributes:
        delivered: writes that the portal has stored.
        revoked: writes of appliances that were revoked meanwhile, which the portal refuses.
    """

    def __init__(
        self,
        upstream: Upstream,
        spool: Spool,
        sender: Sender,
        salvage: Salvage,
        *,
        max_bytes_per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.delivered = self.revoked = 0
        self._upstream = upstream
        self._spool = spool
        self._sender = sender
        self._max_bytes_per_second = max_bytes_per_second
        self._monotonic = monotonic
        self._batch_bytes, self._batch_writes = FIRST_BYTES, MAX_WRITES
        self._salvage = salvage
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
                log.warning("the disk of the spool fails, trying again: %s", error)
                self._spool.rewind()
                pause_seconds = DISK_RETRY_SECONDS
            await asyncio.sleep(pause_seconds)

    async def step(self) -> float:
        """Deliver the next writes, if any; return how long to pause, in seconds.

        Raises:
            OSError: the spool can't be read, or undeliverable lines can't be written.
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
        batch = self._batch(entries)
        try:
            outcomes = await self._outcomes(batch)
        except (UpstreamAwayError, UpstreamRefusedError) as error:
            self._spool.rewind()
            return self._after_failure(batch, error, self._monotonic() - began)
        refused = self.revoked + self._salvage.rejected
        done = await self._settled(batch, outcomes, later=entries[1 : 1 + MAX_PROBES])
        self.delivered += len(done) - (self.revoked + self._salvage.rejected - refused)
        await to_thread.run_sync(self._remove, done)
        if len(batch) == 1 and not done:
            return FAILURE_PAUSE_SECONDS
        self._batch_writes = min(2 * self._batch_writes, MAX_WRITES)
        size = sum(len(entry.write.body) for entry in batch)
        return self._pause(size, self._monotonic() - began)

    def _after_failure(
        self,
        batch: Sequence[SpooledWrite],
        error: UpstreamAwayError | UpstreamRefusedError,
        taken_seconds: float,
    ) -> float:
        """Adapt the next request to one without outcomes; return the pause before it."""
        if isinstance(error, UpstreamFailedError):
            # One of the writes may be the cause: it is found by halving.
            self._batch_writes = max(1, len(batch) // 2)
            return FAILURE_PAUSE_SECONDS
        if taken_seconds >= ANSWER_SECONDS and len(batch[0].write.body) > FIRST_BYTES:
            # Perhaps too much for the portal: others have to get past it.
            self._wait(batch[0].write.appliance_id, RelayedOutcome(status=FAILED))
        self._batch_bytes = FIRST_BYTES
        return self._upstream.wait_seconds or error.retry_after_seconds

    def _batch(self, entries: Sequence[SpooledWrite]) -> Sequence[SpooledWrite]:
        """Return what to send of the next writes: one that the portal failed on goes alone."""
        batch = entries[: self._batch_writes]
        for index, entry in enumerate(batch):
            if self._salvage.is_failing(entry.write.appliance_id):
                batch = batch[: max(1, index)]
                break
        if len(batch) < len(entries):
            self._spool.rewind()
        return batch

    async def _outcomes(self, batch: Sequence[SpooledWrite]) -> list[RelayedOutcome]:
        if len(batch) == 1:
            return [await outcome_of(self._upstream, batch[0].write)]
        return await self._upstream.samples([entry.write for entry in batch], is_patient=True)

    def _read(self, max_bytes: int) -> tuple[list[SpooledWrite], bool]:
        return self._spool.read(
            max_writes=max(self._batch_writes, 1 + MAX_PROBES),
            max_bytes=max_bytes,
            passed_over=self._waits.keys(),
        )

    def _end_waits(self) -> None:
        """Begin with the oldest write when an appliance has waited long enough."""
        now = self._monotonic()
        due = [appliance_id for appliance_id, until in self._waits.items() if until <= now]
        if due:
            self._spool.rewind()
        for appliance_id in due:
            del self._waits[appliance_id]

    async def _settled(
        self,
        entries: Sequence[SpooledWrite],
        outcomes: Sequence[RelayedOutcome],
        *,
        later: Sequence[SpooledWrite],
    ) -> list[SpooledWrite]:
        """Return the writes that are done; the appliances of the others wait.

        Args:
            entries: writes that were sent.
            outcomes: their outcomes.
            later: writes after the first, one of which shows whether the portal stores anything.
        """
        done: list[SpooledWrite] = []
        for entry, outcome in zip(entries, outcomes, strict=True):
            appliance_id = entry.write.appliance_id
            if appliance_id in self._waits:
                continue  # sent a second time, after an earlier write
            settled: list[SpooledWrite] = []
            if outcome.status == STORED or outcome.status in _REVOKED:
                self._salvage.forget(appliance_id)
                settled = [entry]
                if outcome.status != STORED:
                    self.revoked += 1
                    self._log("did not store", entry, outcome)
            elif outcome.status in REJECTED or is_failure(outcome):
                settled = await self._salvaged(entry, outcome, later)
            if entry in settled:
                self._wait_seconds.pop(appliance_id, None)
            else:
                self._wait(appliance_id, outcome)
                if outcome.status >= FAILED:
                    self._log("can't store now", entry, outcome)
            done += settled
        return done

    async def _salvaged(
        self, entry: SpooledWrite, outcome: RelayedOutcome, later: Sequence[SpooledWrite]
    ) -> list[SpooledWrite]:
        try:
            return await self._salvage.settled(entry, outcome, later)
        except (UpstreamAwayError, UpstreamRefusedError):
            return []
        except OSError as error:
            log.warning("can't write undeliverable lines, trying again: %s", error)
            return []

    def _wait(self, appliance_id: str, outcome: RelayedOutcome) -> None:
        doubled = 2 * self._wait_seconds.get(appliance_id, FIRST_WAIT_SECONDS / 2)
        longest = LAST_FAILURE_WAIT_SECONDS if is_failure(outcome) else LAST_WAIT_SECONDS
        seconds = min(max(doubled, outcome.retry_after_seconds), longest)
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
                "the portal %s a write of the appliance %s: %s",
                what,
                entry.write.appliance_id,
                reason_of(outcome),
            )
