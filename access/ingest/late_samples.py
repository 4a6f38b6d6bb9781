"""Notes in the database which appliances sent late samples, for the rules.

A note is stored before the sender gets its response, so that no sample is missed by the rules. What
arrives within a moment is noted in one transaction: a fleet that was offline sends its backlog at
once.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import insert
from sqlalchemy.orm import Session

from access.database import Database
from core.clock import Clock, from_ns, to_ns
from core.ids import new_id
from tenants.models import LateSamples
from timeseries.points import Batch

# Agents send every few seconds, and evaluations of short windows miss what is older.
LATE_AFTER = timedelta(seconds=30)
# Samples that arrive within it after a transaction are noted by the next one.
GATHER_SECONDS = 0.05
SenderOf = Sequence[int] | Mapping[int, int]
"""The index of the agent of each position."""


LateCopy = tuple[tuple[str, str], "Span"]
"""Late samples of a customer: its tenant and contract, and when they are of."""


@dataclass(slots=True)
class Span:
    """Late samples of one appliance."""

    first_ns: int
    last_ns: int
    measurements: set[str] = field(default_factory=set)

    def include(self, other: "Span") -> None:
        """Extend the span by another one."""
        self.first_ns = min(self.first_ns, other.first_ns)
        self.last_ns = max(self.last_ns, other.last_ns)
        self.measurements |= other.measurements


class LateNotes:
    """Stores the notes. For the tasks of one event loop."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._waiting: dict[tuple[str, str], Span] = {}
        self._storing: asyncio.Task[None] | None = None
        self._stored_at = 0.0

    def before_ns(self) -> int:
        """Return before when samples are late."""
        return to_ns(self._clock() - LATE_AFTER)

    def spans(self, batch: Batch, sender_of: SenderOf) -> dict[int, Span]:
        """Return the late samples of a batch by the index of their agent.

        Args:
            batch: points of one agent or several.
            sender_of: for each position the index of its agent; not needed for a single one.
        """
        spans: dict[int, Span] = {}
        for sender, span in _late_spans(batch, sender_of, before_ns=self.before_ns()):
            spans.setdefault(sender, span).include(span)
        return spans

    async def note(self, place: tuple[str, str], span: Span) -> None:
        """Note late samples of a tenant and appliance that were stored; returns when durable.

        Raises:
            DatabaseUnavailableError: the sender must send the samples again.
        """
        self._waiting.setdefault(place, span).include(span)
        if self._storing is None:
            self._storing = asyncio.create_task(self._store())
        await asyncio.shield(self._storing)

    async def _store(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._stored_at + GATHER_SECONDS - loop.time()))
        waiting, self._waiting, self._storing = self._waiting, {}, None
        now, self._stored_at = self._clock(), loop.time()
        rows = [
            {
                "id": new_id(),
                "tenant_id": tenant_id,
                "appliance_id": appliance_id,
                "measurements": sorted(span.measurements),
                "first_at": from_ns(span.first_ns),
                "last_at": from_ns(span.last_ns),
                "arrived_at": now,
            }
            for (tenant_id, appliance_id), span in waiting.items()
        ]
        await self._database.run(lambda session: _insert(session, rows))


def _insert(session: Session, rows: Sequence[dict[str, object]]) -> None:
    session.execute(insert(LateSamples), rows)


def _late_spans(batch: Batch, sender_of: SenderOf, *, before_ns: int) -> Iterable[tuple[int, Span]]:
    """Yield the spans of points older than an instant, with the indexes of their agents."""
    for block in batch.blocks:
        if min(block.times_ns) >= before_ns:
            continue
        if not sender_of:
            last_ns = max(at_ns for at_ns in block.times_ns if at_ns < before_ns)
            yield 0, Span(min(block.times_ns), last_ns, {block.measurement})
            continue
        for position, at_ns in zip(block.positions, block.times_ns, strict=True):
            if at_ns < before_ns:
                yield sender_of[position], Span(at_ns, at_ns, {block.measurement})
