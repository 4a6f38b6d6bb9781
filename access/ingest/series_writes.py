"""Writes of numbered series: checked together, and in full only where something is wrong or new.

Limits and the jobs of samples are checked once for a series every few minutes. Limits count a
series for an hour at least, so that one whose samples arrive is counted all the time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from access.identity.agent_registry import Agent
from access.ingest.late_samples import LateCopy, LateNotes, Span
from timeseries.points import Batch
from timeseries.series_batch import SeriesBatch, SeriesTable
from timeseries.store import RejectedPoint, SeriesStore, Store

CHECKED_FOR = timedelta(minutes=10)
Refused = Callable[[Batch, Sequence[Agent], datetime], Awaitable[dict[int, str]]]
"""Returns the positions of stamped points above a limit or with another's job, and why."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a batch.

    Attributes:
        rejected: the reasons, by position.
        left_out: how many points the store can't store.
        late: late samples, by the index of their agent.
        late_copies: those of copies for customers.
    """

    rejected: dict[int, str]
    left_out: int = 0
    late: Mapping[int, Span] = field(default_factory=dict)
    late_copies: Sequence[LateCopy] = ()


class SeriesWrites:
    """Stores samples of numbered series. For the tasks of one event loop.

    Args:
        store: where; one that doesn't know numbered series gets points.
        refused: checks new series.
        late_notes: finds late samples.
    """

    def __init__(self, store: Store, refused: Refused, late_notes: LateNotes | None) -> None:
        self._store = store
        self._takes_series = getattr(store, "takes_series", False)
        self._refused = refused
        self._late_notes = late_notes
        self._checked_at: WeakKeyDictionary[SeriesTable, NDArray[np.float64]] = WeakKeyDictionary()

    async def store(self, batch: SeriesBatch, agents: Sequence[Agent], *, now: datetime) -> Stored:
        """Store samples with a plausible time; returns when they are durable."""
        refused = await self._check(batch, agents, now=now)
        batch = batch.without(refused)
        if not len(batch):
            return Stored(refused)
        # Shielded: a sender that hangs up does not cancel the write.
        outcome = await asyncio.shield(asyncio.wrap_future(self._submit(batch)))
        rejected = {point.position: point.reason for point in outcome if not point.is_left_out}
        left_out = sum(point.is_left_out for point in outcome)
        return Stored(refused | rejected, left_out, self._late(batch, agents))

    async def _check(
        self, batch: SeriesBatch, agents: Sequence[Agent], *, now: datetime
    ) -> dict[int, str]:
        """Return the positions of samples whose series is refused, and the reason."""
        due = self._due(batch, now=now)
        if not len(due):
            return {}
        refused = await self._refused(due.as_batch(), agents, now)
        self._checked_at[batch.table][due.without(refused).numbers] = now.timestamp()
        if not refused:
            return {}
        reasons = {
            number: refused[position]
            for number, position in zip(due.numbers.tolist(), due.positions.tolist(), strict=True)
            if position in refused
        }
        bad = batch.select(np.isin(batch.numbers, list(reasons)))
        return {
            position: reasons[number]
            for number, position in zip(bad.numbers.tolist(), bad.positions.tolist(), strict=True)
        }

    def _due(self, batch: SeriesBatch, *, now: datetime) -> SeriesBatch:
        """Return a sample of each series that is to be checked."""
        checked_at = self._checked_at.get(batch.table)
        if checked_at is None or len(checked_at) < len(batch.table):
            former = np.zeros(0) if checked_at is None else checked_at
            added = np.full(2 * len(batch.table) - len(former), -np.inf)
            checked_at = self._checked_at[batch.table] = np.concatenate([former, added])
        ages = now.timestamp() - checked_at[batch.numbers]
        rows = np.flatnonzero((ages < 0) | (ages >= CHECKED_FOR.total_seconds()))
        _, first = np.unique(batch.numbers[rows], return_index=True)
        return batch.select(rows[np.sort(first)])

    def _submit(self, batch: SeriesBatch) -> "Future[list[RejectedPoint]]":
        if self._takes_series:
            return cast("SeriesStore", self._store).submit_series(batch)
        return self._store.submit(batch.as_batch(), identity={})

    def _late(self, batch: SeriesBatch, agents: Sequence[Agent]) -> Mapping[int, Span]:
        """Return late samples by the index of their agent."""
        if self._late_notes is None:
            return {}
        late = batch.select(batch.times_ns < self._late_notes.before_ns())
        if not len(late):
            return {}
        return self._late_notes.spans(late.as_batch(), senders_of(late, agents))


def senders_of(batch: SeriesBatch, agents: Sequence[Agent]) -> dict[int, int]:
    """Return the index of the agent of each position."""
    index = {agent.appliance_id: at for at, agent in enumerate(agents)}
    return {
        position: index[batch.table.series[number].appliance]
        for position, number in zip(batch.positions.tolist(), batch.numbers.tolist(), strict=True)
    }
