"""The way of samples into the store, whatever they came as: limits, times, commit, faults."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from anyio import to_thread

from access.auth import Agent
from access.body import THREAD_ABOVE_BYTES, one_at_a_time
from access.faults import Fault, Outcome
from access.handover import Handover
from access.joint import JointPosts, Post, join, kind_of
from access.limits import RateLimit, SeriesLimit
from access.quotas import QuotaKeeper
from core.clock import NS_PER_SECOND, Clock, to_ns
from core.errors import OverloadedError
from core.settings import ServerSettings
from timeseries.batch import Batch
from timeseries.lineprotocol import ParseResult, parse
from timeseries.stamping import stamp
from timeseries.store import Store

MAX_AHEAD = timedelta(hours=1)


class Gateway:
    """Takes samples of agents whose identity is proved. For the tasks of one event loop."""

    def __init__(
        self,
        store: Store,
        *,
        settings: ServerSettings,
        clock: Clock,
        quotas: QuotaKeeper | None = None,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._takes_many_senders = getattr(store, "takes_many_senders", False)
        self._clock = clock
        self._max_age = timedelta(days=settings.sample_retention_days)
        self._rate = RateLimit(settings.max_points_per_second_per_tenant)
        self._series = SeriesLimit(
            settings.max_series_per_tenant, own=None if quotas is None else quotas.max_series
        )
        if quotas is not None:
            quotas.keep_counts_of(self._series.counts)
        self._handover = Handover()
        self._joint = JointPosts(self._take_posts)

    async def take_lines(self, agent: Agent, body: bytes, *, precision: str) -> Outcome:
        """Store a body of line protocol; returns when it is durable.

        Raises:
            OverloadedError: the tenant's rate is reached, its storage is full, or too much waits
                for the store.
            StoreUnavailableError: the store does not answer.
        """
        await self._check(agent)
        kind = kind_of(body, precision=precision) if self._takes_many_senders else None
        if kind is not None:
            return await self._joint.take(agent, body, kind)
        parsed = await _parse(body, precision=precision, now_ns=to_ns(self._clock()))
        return await self.take(agent, parsed.batch, faults=_faults_of(parsed), precision=precision)

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
            OverloadedError: the tenant's rate is reached, its storage is full, or too much waits
                for the store.
            StoreUnavailableError: the store does not answer.
        """
        await self._check(agent)
        refused = await self._keep(batch, [agent], (), precision=precision)
        reasons = {**faults, **refused}
        found = [Fault(at + 1, reasons[at]) for at in sorted(reasons)]
        return Outcome(found, len(batch) + len(faults))

    async def _check(self, agent: Agent) -> None:
        self._rate.check(agent.tenant_id, now=self._clock())
        if self._quotas is not None:
            await self._quotas.check(agent.tenant_id)

    async def _take_posts(self, posts: list[Post], precision: str) -> None:
        """Store posts together, and give each its outcome."""
        posts = [post for post in posts if self._may_send(post)]
        joined = join([post.body for post in posts])
        parsed = parse(joined.text, precision=precision, default_time_ns=to_ns(self._clock()))
        agents = [post.agent for post in posts]
        refused = await self._keep(parsed.batch, agents, joined.post_of, precision=precision)
        faults = _faults_of(parsed)
        totals = _counts(parsed.batch, joined.post_of)
        totals.update(map(joined.post_of.__getitem__, faults))
        found: list[list[Fault]] = [[] for _ in posts]
        for at, reason in sorted({**faults, **refused}.items()):
            post = joined.post_of[at]
            found[post].append(Fault(at - joined.starts[post] + 1, reason))
        for index, one in enumerate(posts):
            if not one.outcome.done():
                one.outcome.set_result(Outcome(found[index], totals[index]))

    def _may_send(self, post: Post) -> bool:
        try:
            self._rate.check(post.agent.tenant_id, now=self._clock())
        except OverloadedError as error:
            post.outcome.set_exception(error)
        return not post.outcome.done()

    async def _keep(
        self, batch: Batch, agents: Sequence[Agent], sender_of: Sequence[int], *, precision: str
    ) -> dict[int, str]:
        """Store the good points of a batch; return the others' positions and reasons.

        Args:
            batch: points of one agent or several.
            agents: who sent them.
            sender_of: for each position the index of its agent; not needed for a single one.
            precision: what the senders' times were taken as.
        """
        now = self._clock()
        reasons = untimely(batch, now_ns=to_ns(now), max_age=self._max_age, precision=precision)
        timely = batch.without(reasons)
        identities = [(agent.tenant_id, agent.appliance_id) for agent in agents]
        identity = identities[0] if len(agents) == 1 else None
        if identity is None:
            timely = stamp(timely, identities, sender_of)
        too_many = self._series.refused(timely, identity=identity, now=now)
        good = timely.without(too_many)
        reasons |= too_many
        if not good.blocks:
            return reasons
        stored = self._store.submit(good, identity={} if good.is_stamped else agents[0].tags)
        if self._rate.is_limited:
            for index, points in _counts(good, sender_of).items():
                self._rate.spend(agents[index].tenant_id, points, now=now)
        for rejected in await self._handover.result(stored):
            reasons[rejected.position] = rejected.reason
        return reasons


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


def _faults_of(parsed: ParseResult) -> dict[int, str]:
    return {error.line_number - 1: error.reason for error in parsed.errors}


def _counts(batch: Batch, sender_of: Sequence[int]) -> Counter[int]:
    """Return how many points each sender has; all are the first's where it is the only one."""
    if not sender_of:
        return Counter({0: len(batch)})
    counts: Counter[int] = Counter()
    for block in batch.blocks:
        counts.update(map(sender_of.__getitem__, block.positions))
    return counts


async def _parse(body: bytes, *, precision: str, now_ns: int) -> ParseResult:
    work = partial(parse, body, precision=precision, default_time_ns=now_ns)
    if len(body) <= THREAD_ABOVE_BYTES:
        return work()
    return await to_thread.run_sync(work, limiter=one_at_a_time())
