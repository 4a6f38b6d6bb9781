"""Ingest of samples in any format: quotas, rate limit, time check, limits of names and series.

Most senders drop a whole body over one error, so the valid lines of a body are stored anyway.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from access.identity.agent_registry import Agent
from access.ingest.body import THREAD_ABOVE_BYTES, fair_worker
from access.ingest.job_tags import JobTags
from access.ingest.late_samples import LateCopy, LateNotes, Span
from access.ingest.metrics import (
    INGESTED_BYTES,
    LEFT_OUT_POINTS,
    REJECTED_POINTS,
    STORED_POINTS,
)
from access.ingest.name_limit import NameLimit
from access.ingest.quotas import QuotaCache
from access.ingest.rejection_notes import RejectionNotes
from access.ingest.rented_samples import Owner, Routed
from access.ingest.request_batcher import Post, RequestBatcher, join, kind_of
from access.ingest.series_limit import SeriesLimit
from access.ingest.series_writes import SeriesWrites, Stored, senders_of
from core.clock import NS_PER_SECOND, Clock, to_ns
from core.errors import OverloadedError
from core.rate_limits import RateLimit
from core.settings import ServerSettings
from tenants.lifecycle.usage import SampleCounts
from timeseries.identity import Identity, stamp
from timeseries.lineprotocol.parser import ParseResult, parse
from timeseries.points import Batch
from timeseries.series_batch import SeriesBatch
from timeseries.store import IDENTITY_TAGS, Store

MAX_AHEAD = timedelta(hours=1)
MAX_RETRY_AFTER_SECONDS = 300
# Of the copies for a customer: a job with eight GPUs has about a hundred.
MAX_SERIES_PER_CONTRACT = 20_000


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line (or a value of collectd) was not stored; lines count from 1."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The errors of a body by line, and how many lines had a sample or an error.

    `left_out` counts points that this kind of store can't store; they are no errors. `late` are
    samples that must be noted for the rules, `late_copies` those of customers.
    """

    errors: list[LineError]
    total: int
    left_out: int = 0
    late: Span | None = None
    late_copies: Sequence[LateCopy] = ()


class Gateway:
    """Stores samples of authenticated agents. For the tasks of one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        settings: ServerSettings,
        clock: Clock,
        quotas: QuotaCache | None = None,
        late_notes: LateNotes | None = None,
        job_tags: JobTags | None = None,
        rejections: RejectionNotes | None = None,
        points: RateLimit | None = None,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._late_notes = late_notes
        self._job_tags = job_tags
        self._rejections = rejections
        self._takes_many_senders = getattr(store, "takes_many_senders", False)
        self._clock = clock
        self._max_age = timedelta(days=settings.sample_retention_days)
        self._points = points or RateLimit(settings.max_points_per_second_per_tenant)
        self._series = SeriesLimit(
            settings.max_series_per_tenant,
            quota=None if quotas is None else lambda tenant_id: quotas.limit(tenant_id, "series"),
        )
        # By contract: a provider's samples must not use up what its customer may have.
        self._of_contracts = SeriesLimit(MAX_SERIES_PER_CONTRACT)
        self._names = NameLimit(
            settings.max_measurements_per_tenant,
            settings.max_fields_per_tenant,
            quota=None if quotas is None else quotas.limit,
        )
        if quotas is not None:
            quotas.store_counts_of(self._counts)
        self._series_writes = SeriesWrites(store, self._refused, late_notes)
        self._batcher: RequestBatcher[WriteResult] = RequestBatcher(self._write_posts)

    async def write_lines(
        self, agent: Agent, body: bytes, *, precision: str, received_at_ns: int | None = None
    ) -> WriteResult:
        """Store a body of line protocol; returns when it is durable.

        Args:
            agent: the sender.
            body: the lines.
            precision: of their times.
            received_at_ns: the time of lines without one, if a relay has received them before.

        Raises:
            OverloadedError: the tenant's rate or storage quota is exceeded, or the store's queue
                is full.
            StoreUnavailableError: the store does not answer.
        """
        INGESTED_BYTES.inc(len(body))
        await self.check(agent.tenant_id)
        kind = kind_of(body, precision=precision) if self._takes_many_senders else None
        if kind is not None and (received_at_ns is None or kind.is_timed):
            return await self.noted(agent, await self._batcher.submit(agent, body, kind))
        parsed = await self.parse_lines(
            agent.tenant_id, body, precision=precision, received_at_ns=received_at_ns
        )
        return await self.write(
            [agent], parsed.batch, errors=parse_errors(parsed), precision=precision
        )

    def begin_lines(
        self, agent: Agent, body: bytes, *, precision: str
    ) -> "asyncio.Future[WriteResult] | None":
        """Begin to store a body of line protocol together with others.

        None if nothing was begun: it must wait for something, or is none of those that are joined.
        The result is for `noted`.
        """
        quotas, tenant_id = self._quotas, agent.tenant_id
        may_write = not self._points.wait_seconds(tenant_id) and (
            quotas is None or quotas.allows_at_once(tenant_id)
        )
        if not (may_write and self._takes_many_senders):
            return None
        kind = kind_of(body, precision=precision)
        if kind is None:
            return None
        INGESTED_BYTES.inc(len(body))
        return self._batcher.submit(agent, body, kind)

    async def parse_lines(
        self, tenant_id: str, body: bytes, *, precision: str, received_at_ns: int | None = None
    ) -> ParseResult:
        """Parse a body of line protocol, a large one in the tenant's turn; see `write_lines`."""
        time_ns = to_ns(self._clock()) if received_at_ns is None else received_at_ns
        work = partial(parse, body, precision=precision, default_time_ns=time_ns)
        is_small = len(body) <= THREAD_ABOVE_BYTES
        return work() if is_small else await fair_worker().run(tenant_id, work)

    async def write(
        self,
        agents: Sequence[Agent],
        batch: Batch,
        *,
        errors: Mapping[int, str],
        precision: str = "ns",
        sender_of: Sequence[int] = (),
    ) -> WriteResult:
        """Store a batch of one tenant; returns when it is durable.

        Args:
            agents: the senders, whose identity the points get; none of a batch without points.
            batch: the valid points.
            errors: position to reason of the invalid ones.
            precision: how the sender's times were read, for the error messages.
            sender_of: for each position the index of its agent; not needed for a single one.
        """
        stored = Stored({})
        if agents:
            await self.check(agents[0].tenant_id)
            stored = await self._store_valid(
                batch, agents, sender_of if len(agents) > 1 else (), precision=precision
            )
        reasons = {**errors, **stored.rejected}
        line_errors = [LineError(at + 1, reasons[at]) for at in sorted(reasons)]
        result = WriteResult(line_errors, len(batch) + len(errors), stored.left_out)
        for index, span in stored.late.items():
            await self._note_late(agents[index].place, span)
        for owner, span in stored.late_copies:
            await self._note_late(owner, span)
        return self._counted(result, agents, sender_of)

    async def write_series(
        self,
        agents: Sequence[Agent],
        batch: SeriesBatch,
        *,
        errors: Mapping[int, str],
        precision: str = "ns",
    ) -> WriteResult:
        """Store samples of numbered series of one tenant; returns when they are durable.

        Args:
            agents: those whose identity the series have.
            batch: the samples.
            errors: position to reason of invalid ones.
            precision: how the sender's times were read, for the error messages.
        """
        total = len(batch) + len(errors)
        stored, sender_of = Stored({}), dict[int, int]()
        if len(batch):
            await self.check(agents[0].tenant_id)
            now = self._clock()
            reasons = self._time_errors(batch, now=now, precision=precision)
            valid = batch.without(reasons)
            stored = await self._series_writes.store(valid, agents, now=now)
            self._points.hit(agents[0].tenant_id, cost=len(valid))
            reasons |= stored.rejected
            sender_of = senders_of(batch.only(reasons), agents)
            errors = {**errors, **reasons}
        line_errors = [LineError(at + 1, errors[at]) for at in sorted(errors)]
        for at, span in stored.late.items():
            await self._note_late(agents[at].place, span)
        return self._counted(WriteResult(line_errors, total, stored.left_out), agents, sender_of)

    def counted(self, result: WriteResult) -> bool:
        """Count a result of `begin_lines`; False, and not counted, if it must be `noted`."""
        is_plain = not (result.errors or result.left_out or result.late or result.late_copies)
        if is_plain:
            STORED_POINTS.inc(result.total)
        return is_plain

    async def noted(self, agent: Agent, result: WriteResult) -> WriteResult:
        """Return a result once its late samples are noted: other senders don't wait for that."""
        if result.late is not None:
            await self._note_late(agent.place, result.late)
        for owner, span in result.late_copies:
            await self._note_late(owner, span)
        return self._counted(result, [agent], ())

    async def _note_late(self, place: Owner, span: Span) -> None:
        if self._late_notes is not None:
            await self._late_notes.note(place, span)

    def _counted(
        self,
        result: WriteResult,
        agents: Sequence[Agent],
        sender_of: Sequence[int] | Mapping[int, int],
    ) -> WriteResult:
        stored = result.total - len(result.errors) - result.left_out
        STORED_POINTS.inc(stored)
        if stored < result.total:
            REJECTED_POINTS.inc(len(result.errors))
            if agents and self._rejections is not None:
                of_agent: dict[int, list[LineError]] = {}
                for error in result.errors:
                    at = sender_of[error.line - 1] if len(agents) > 1 else 0
                    of_agent.setdefault(at, []).append(error)
                for at, errors in of_agent.items():
                    self._rejections.note(agents[at], len(errors), errors[-1].reason)
            LEFT_OUT_POINTS.inc(result.left_out)
        return result

    async def check(self, tenant_id: str) -> None:
        """Check that a tenant may write.

        Raises:
            OverloadedError: its rate or its storage quota is exceeded.
        """
        self._check_rate(tenant_id)
        if self._quotas is not None:
            await self._quotas.check(tenant_id)

    def _counts(self, now: datetime) -> dict[str, SampleCounts]:
        series, names = self._series.counts(now), self._names.counts(now)
        return {
            key: SampleCounts(series.get(key, 0), *names.get(key, (0, 0)))
            for key in {**series, **names}
        }

    def _check_rate(self, tenant_id: str) -> None:
        """Check that the limit is not reached; a body of any size passes and is counted later."""
        seconds = self._points.wait_seconds(tenant_id)
        if seconds:
            retry_after = min(math.ceil(seconds), MAX_RETRY_AFTER_SECONDS)
            raise OverloadedError(
                f"The tenant sends more than {self._points.per_second:g} points per second. "
                f"Retry in {retry_after} s, or ask the portal's operator for a higher rate.",
                retry_after_seconds=retry_after,
            )

    async def _write_posts(self, posts: list[Post[WriteResult]], precision: str) -> None:
        """Store posts together, and set each one's result."""
        posts = [post for post in posts if self._has_rate(post)]
        joined = join([post.body for post in posts])
        parsed = parse(joined.text, precision=precision, default_time_ns=to_ns(self._clock()))
        agents = [post.agent for post in posts]
        errors = parse_errors(parsed)
        stored = await self._store_valid(parsed.batch, agents, joined.post_of, precision=precision)
        totals = _points_by_sender(parsed.batch, joined.post_of)
        totals.update(map(joined.post_of.__getitem__, errors))
        errors_of_posts: list[list[LineError]] = [[] for _ in posts]
        for at, reason in sorted({**errors, **stored.rejected}.items()):
            post = joined.post_of[at]
            errors_of_posts[post].append(LineError(at - joined.starts[post] + 1, reason))
        for index, sender_post in enumerate(posts):
            if not sender_post.result.done():
                late = stored.late.get(index)
                # One sender waits for the notes of all copies, which are few.
                copies = stored.late_copies if index == 0 else ()
                sender_post.result.set_result(
                    WriteResult(errors_of_posts[index], totals[index], 0, late, copies)
                )

    def _has_rate(self, post: Post[WriteResult]) -> bool:
        try:
            self._check_rate(post.agent.tenant_id)
        except OverloadedError as error:
            post.result.set_exception(error)
        return not post.result.done()

    async def _store_valid(
        self, batch: Batch, agents: Sequence[Agent], sender_of: Sequence[int], *, precision: str
    ) -> Stored:
        """Store the valid points of a batch.

        Args:
            batch: points of one agent or several.
            agents: the senders.
            sender_of: for each position the index of its agent; not needed for a single one.
            precision: how the senders' times were read.
        """
        now = self._clock()
        reasons = time_errors(batch, now_ns=to_ns(now), max_age=self._max_age, precision=precision)
        valid = batch.without(reasons)
        identities = [(agent.tenant_id, agent.appliance_id) for agent in agents]
        identity = identities[0] if len(agents) == 1 else None
        if identity is None:
            valid = stamp(valid, identities, sender_of)
        refused = await self._refused(valid, agents, now, identity)
        valid = valid.without(refused)
        reasons |= refused
        if not valid.blocks:
            return Stored(reasons)
        routed = None if self._job_tags is None else self._job_tags.routed(valid, agents)
        if routed is not None:
            return await self._store_routed(routed, agents, sender_of, reasons, now=now)
        return await self._submit(valid, agents, sender_of, reasons)

    async def _store_routed(
        self,
        routed: Routed,
        agents: Sequence[Agent],
        sender_of: Sequence[int],
        reasons: dict[int, str],
        *,
        now: datetime,
    ) -> Stored:
        """Store a batch with samples of rented jobs: first the copies, within their limits."""
        copies = {
            owner: copy.without(self._above_limits(copy, owner, now))
            for owner, whole in routed.copies.items()
            for copy in [
                whole.without(
                    self._of_contracts.rejected(whole, identity=(owner[1], owner[1]), now=now)
                )
            ]
        }
        written = [
            self._store.submit(copy, identity=dict(zip(IDENTITY_TAGS, owner, strict=True)))
            for owner, copy in copies.items()
            if copy.blocks
        ]
        for write in written:
            await asyncio.shield(asyncio.wrap_future(write))
        notes = self._late_notes
        late_copies = [
            (owner, span)
            for owner, copy in copies.items()
            for span in (() if notes is None else notes.spans(copy, ()).values())
        ]
        if not routed.own.blocks:
            return Stored(reasons, late_copies=late_copies)
        stored = await self._submit(routed.own, agents, sender_of, reasons)
        return replace(stored, late_copies=late_copies)

    async def _submit(
        self,
        valid: Batch,
        agents: Sequence[Agent],
        sender_of: Sequence[int],
        reasons: dict[int, str],
    ) -> Stored:
        stored = self._store.submit(valid, identity={} if valid.is_stamped else agents[0].tags)
        if self._points.per_second:
            for index, points in _points_by_sender(valid, sender_of).items():
                self._points.hit(agents[index].tenant_id, cost=points)
        # Shielded: a sender that hangs up does not cancel the write.
        outcome = await asyncio.shield(asyncio.wrap_future(stored))
        reasons |= {point.position: point.reason for point in outcome if not point.is_left_out}
        late = {} if self._late_notes is None else self._late_notes.spans(valid, sender_of)
        return Stored(reasons, sum(point.is_left_out for point in outcome), late)

    async def _refused(
        self, batch: Batch, agents: Sequence[Agent], now: datetime, identity: Identity | None = None
    ) -> dict[int, str]:
        """Return the positions of points above a limit, or with another's job, and why."""
        reasons = self._above_limits(batch, identity, now)
        if self._job_tags is not None:
            reasons |= await self._job_tags.rejected(batch.without(reasons), agents)
        return reasons

    def _above_limits(
        self, batch: Batch, identity: Identity | None, now: datetime
    ) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for limit in (self._names, self._series):
            reasons |= limit.rejected(batch.without(reasons), identity=identity, now=now)
        return reasons

    def _time_errors(self, batch: SeriesBatch, *, now: datetime, precision: str) -> dict[int, str]:
        oldest, newest = to_ns(now - self._max_age), to_ns(now + MAX_AHEAD)
        bad = batch.select((batch.times_ns < oldest) | (batch.times_ns > newest))
        return time_errors(
            bad.as_batch(), now_ns=to_ns(now), max_age=self._max_age, precision=precision
        )


def time_errors(batch: Batch, *, now_ns: int, max_age: timedelta, precision: str) -> dict[int, str]:
    """Return the positions of points with a time too far from the portal's clock, and why."""
    earliest_ns = now_ns - int(max_age.total_seconds()) * NS_PER_SECOND
    latest_ns = now_ns + int(MAX_AHEAD.total_seconds()) * NS_PER_SECOND
    advice = f"check the sender's clock and the precision, which was read as {precision}"
    errors: dict[int, str] = {}
    for block in batch.blocks:
        if earliest_ns <= min(block.times_ns) and max(block.times_ns) <= latest_ns:
            continue
        for position, time_ns in zip(block.positions, block.times_ns, strict=True):
            offset = timedelta(seconds=abs(time_ns - now_ns) // NS_PER_SECOND)
            if time_ns > latest_ns:
                errors[position] = f"its time is {offset} ahead of the portal's clock; {advice}"
            elif time_ns < earliest_ns:
                errors[position] = (
                    f"its time is {offset} ago, beyond the retention of {max_age.days} days; "
                    f"{advice}"
                )
    return errors


def parse_errors(parsed: ParseResult) -> dict[int, str]:
    """Return the errors of a body of line protocol by position."""
    return {error.line_number - 1: error.reason for error in parsed.errors}


def _points_by_sender(batch: Batch, sender_of: Sequence[int]) -> Counter[int]:
    if not sender_of:
        return Counter({0: len(batch)})
    counts: Counter[int] = Counter()
    for block in batch.blocks:
        counts.update(map(sender_of.__getitem__, block.positions))
    return counts
