"""The way of samples into the store, whatever they came as: limits, times, commit, faults.

A *fault* is a line (or a value of collectd's) that was not stored, and why; the others of its body
are stored all the same, because most senders drop a whole body over one fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from anyio import to_thread

from access.auth import Agent
from access.body import THREAD_ABOVE_BYTES
from access.handover import Handover
from access.limits import RateLimit, SeriesLimit
from core.clock import NS_PER_SECOND, Clock, to_ns
from core.settings import ServerSettings
from timeseries.batch import Batch
from timeseries.lineprotocol import ParseResult, parse
from timeseries.store import Store

MAX_AHEAD = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Fault:
    """What was not stored: the number of its line, counted from 1, and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a body: its faults by line, and how many lines held a sample or a fault."""

    faults: list[Fault]
    total: int


class Gateway:
    """Takes samples of agents whose identity is proved. For the tasks of one event loop."""

    def __init__(self, store: Store, *, settings: ServerSettings, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._max_age = timedelta(days=settings.sample_retention_days)
        self._rate = RateLimit(settings.max_points_per_second_per_tenant)
        self._series = SeriesLimit(settings.max_series_per_tenant)
        self._handover = Handover()

    async def take_lines(self, agent: Agent, body: bytes, *, precision: str) -> Outcome:
        """Store a body of line protocol; returns when it is durable.

        Raises:
            OverloadedError: the tenant's rate is reached, or too much waits for the store.
            StoreUnavailableError: the store does not answer.
        """
        self._rate.check(agent.tenant_id, now=self._clock())
        parsed = await _parse(body, precision=precision, now_ns=to_ns(self._clock()))
        faults = {error.line_number - 1: error.reason for error in parsed.errors}
        return await self.take(agent, parsed.batch, faults=faults, precision=precision)

    async def take(
        self, agent: Agent, batch: Batch, *, faults: Mapping[int, str], precision: str = "ns"
    ) -> Outcome:
        """Store a batch; returns when it is durable.

        Args:
            agent: whose identity its points are stamped with.
            batch: the points that could be read.
            faults: position to reason of what could not.
            precision: what the sender's times were taken as, for the reasons.

        Raises:
            OverloadedError: the tenant's rate is reached, or too much waits for the store.
            StoreUnavailableError: the store does not answer.
        """
        now = self._clock()
        self._rate.check(agent.tenant_id, now=now)
        total = len(batch) + len(faults)
        refused = untimely(batch, now_ns=to_ns(now), max_age=self._max_age, precision=precision)
        timely = batch.without(refused)
        too_many = self._series.refused(
            timely, tenant_id=agent.tenant_id, appliance_id=agent.appliance_id, now=now
        )
        good = timely.without(too_many)
        reasons = {**faults, **refused, **too_many}
        if good.blocks:
            stored = self._store.submit(good, identity=agent.tags)
            self._rate.spend(agent.tenant_id, len(good), now=now)
            for rejected in await self._handover.result(stored):
                reasons[rejected.position] = rejected.reason
        return Outcome([Fault(at + 1, reasons[at]) for at in sorted(reasons)], total)


def untimely(batch: Batch, *, now_ns: int, max_age: timedelta, precision: str) -> dict[int, str]:
    """Return the positions of points too far from the portal's clock, each with the reason."""
    earliest_ns = now_ns - int(max_age.total_seconds()) * NS_PER_SECOND
    latest_ns = now_ns + int(MAX_AHEAD.total_seconds()) * NS_PER_SECOND
    refused: dict[int, str] = {}
    for block in batch.blocks:
        if earliest_ns <= min(block.times_ns) and max(block.times_ns) <= latest_ns:
            continue
        for position, time_ns in zip(block.positions, block.times_ns, strict=True):
            if time_ns > latest_ns:
                refused[position] = _ahead(time_ns - now_ns, precision)
            elif time_ns < earliest_ns:
                refused[position] = _behind(now_ns - time_ns, max_age, precision)
    return refused


def _ahead(ahead_ns: int, precision: str) -> str:
    return (
        f"its time is {timedelta(seconds=ahead_ns // NS_PER_SECOND)} ahead of the portal's clock; "
        f"check the sender's clock and the precision, which was taken as {precision}"
    )


def _behind(behind_ns: int, max_age: timedelta, precision: str) -> str:
    return (
        f"its time is {timedelta(seconds=behind_ns // NS_PER_SECOND)} ago, and samples older than "
        f"{max_age.days} days are not kept; check the sender's clock and the precision, which "
        f"was taken as {precision}"
    )


async def _parse(body: bytes, *, precision: str, now_ns: int) -> ParseResult:
    if len(body) <= THREAD_ABOVE_BYTES:
        return parse(body, precision=precision, default_time_ns=now_ns)
    return await to_thread.run_sync(
        lambda: parse(body, precision=precision, default_time_ns=now_ns)
    )
