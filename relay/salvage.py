"""What becomes of writes that the portal rejects, or fails on.

A failure (500) may be caused by the write, or the portal may be broken. A write counts as the cause
only after some failures, and if the portal stores a part of it or another write: these go on, and
the lines that are the cause are set aside in a file. A broken portal gets the write again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from anyio import to_thread

from collector.buffering.undeliverable import UndeliverableLines
from core.clock import Clock
from protocol.relays import RelayedOutcome
from relay.division import STORED, Division, divide, is_failure, outcome_of
from relay.spool import SpooledWrite
from relay.upstream import Upstream

log = logging.getLogger(__name__)

FAILURES_PER_DIVISION = 3


@dataclass(slots=True)
class _Failures:
    """The failures of the oldest write of an appliance.

    Attributes:
        stored_before: how many writes the portal had stored at the first of them.
        was_cause: whether the write before it was the cause; then it is divided at once.
    """

    stored_before: int = 0
    count: int = 0
    was_cause: bool = False


class Salvage:
    """Delivers what can be of refused writes. For the task of the drain.

    Args:
        upstream: the portal.
        undeliverable: gets the lines that the portal does not store.
        clock: the time.

    Attributes:
        rejected: writes with such lines; their other lines are stored.
        undeliverable_lines: of these writes.
    """

    def __init__(
        self, upstream: Upstream, undeliverable: UndeliverableLines, *, clock: Clock
    ) -> None:
        self.rejected = self.undeliverable_lines = 0
        self._upstream = upstream
        self._undeliverable = undeliverable
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    def is_failing(self, appliance_id: str) -> bool:
        """Return whether the portal failed on the last write of an appliance."""
        return appliance_id in self._failures

    def forget(self, appliance_id: str) -> None:
        """Note that the portal has stored or refused the last write of an appliance."""
        self._failures.pop(appliance_id, None)

    async def settled(
        self, entry: SpooledWrite, outcome: RelayedOutcome, later: Sequence[SpooledWrite]
    ) -> list[SpooledWrite]:
        """Return which writes are done now; the write itself waits if it is not among them.

        Args:
            entry: a write that was rejected, or failed.
            outcome: its outcome.
            later: writes of any appliances that wait behind it.

        Raises:
            UpstreamAwayError: the portal does not answer.
            UpstreamRefusedError: it does not accept the relay's token.
            OSError: the file of undeliverable lines can't be written.
        """
        appliance_id = entry.write.appliance_id
        if not is_failure(outcome):
            await self._set_aside(entry, await divide(self._upstream, entry.write, outcome))
            self.forget(appliance_id)
            return [entry]
        failures = self._failures.setdefault(appliance_id, _Failures())
        if not failures.count:
            failures.stored_before = self._upstream.stored
        failures.count += 1
        if not failures.was_cause and failures.count < FAILURES_PER_DIVISION:
            return []
        division = await divide(self._upstream, entry.write, outcome)
        if division.is_stored or self._upstream.stored > failures.stored_before:
            done = [entry]
        elif probed := await self._first_stored(later):
            done = [entry, *probed]
        else:
            return []
        await self._set_aside(entry, division)
        self._failures[appliance_id] = _Failures(was_cause=True)
        return done

    async def _first_stored(self, later: Sequence[SpooledWrite]) -> list[SpooledWrite]:
        """Return the first of some writes that the portal stores, if any."""
        for entry in later:
            if (await outcome_of(self._upstream, entry.write)).status == STORED:
                return [entry]
        return []

    async def _set_aside(self, entry: SpooledWrite, division: Division) -> None:
        write = entry.write
        for lines, reason in division.refused:
            text = f"appliance {write.appliance_id}, precision {write.precision}: {reason}"
            await to_thread.run_sync(self._add, lines, text)
            self.undeliverable_lines += len(lines)
            log.warning("%d lines can't be delivered: %s", len(lines), text)
        self.rejected += bool(division.refused)

    def _add(self, lines: Sequence[bytes], text: str) -> None:
        self._undeliverable.add(lines, reason=text, rejected_at=self._clock())
