"""Small posts that come at one time are stored together, and each is answered for itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.identity.agent_registry import Agent
from access.ingest.gateway import Gateway, WriteResult
from access.ingest.request_batcher import (
    MANY_POSTS,
    MAX_CONCURRENT_BATCHES,
    Kind,
    Post,
    RequestBatcher,
    join,
    kind_of,
)
from core.clock import to_ns
from core.errors import OverloadedError, VedetteError
from core.settings import ServerSettings
from tests.cast import FrozenClock
from timeseries.duckdb.store import DuckDBStore
from timeseries.lineprotocol.parser import parse
from timeseries.points import Batch
from timeseries.store import Latest, LatestQuery, RejectedPoint, StoreUnavailableError

DGX = Agent("dgx-1", "acme", "dgx-1")
HGX = Agent("hgx-1", "globex", "hgx-1")
TIMED = Kind("ns", 2)


class _CountingStore(DuckDBStore):
    """A store that counts what is submitted to it."""

    submissions = 0

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        self.submissions += 1
        return super().submit(batch, identity=identity)


class _AbsentStore(DuckDBStore):
    """A store whose disk fails at the commit."""

    def submit(
        self,
        batch: Batch,  # noqa: ARG002
        *,
        identity: Mapping[str, str],  # noqa: ARG002
    ) -> Future[list[RejectedPoint]]:
        future: Future[list[RejectedPoint]] = Future()
        future.set_exception(StoreUnavailableError("The store does not answer."))
        return future


def outcomes(
    store: DuckDBStore, posts: Sequence[tuple[Agent, str]], clock: FrozenClock, **limits: int
) -> "list[WriteResult | BaseException]":
    """Post bodies at one time, and return what became of each."""
    named = ServerSettings(data_dir=Path("/nowhere"), **limits)  # type: ignore[arg-type]

    async def scenario() -> "list[WriteResult | BaseException]":
        gateway = Gateway(store, settings=named, clock=clock)
        takes = [gateway.write_lines(agent, body.encode(), precision="ns") for agent, body in posts]
        return await asyncio.gather(*takes, return_exceptions=True)

    return asyncio.run(scenario())


def cpu_of(store: DuckDBStore, tenant: str) -> list[Latest]:
    query = LatestQuery(
        measurement="cpu",
        fields=("used", "free"),
        tenants=(tenant,),
        group_by=("appliance", "core"),
        since_ns=0,
    )
    return store.latest(query)


def test_posts_of_one_moment_are_one_submission(tmp_path: Path, clock: FrozenClock) -> None:
    store = _CountingStore(tmp_path / "samples.duckdb")
    now = to_ns(clock())

    results = outcomes(store, [(DGX, f"cpu,core={n} used=1 {now}") for n in range(50)], clock)

    assert [result.errors for result in results if isinstance(result, WriteResult)] == [[]] * 50
    assert store.submissions == 1
    assert len(cpu_of(store, "acme")) == 50
    store.close()


def test_each_sample_is_its_senders(store: DuckDBStore, clock: FrozenClock) -> None:
    now = to_ns(clock())
    claims = f"cpu,appliance=dgx-1,tenant=acme,core=0 used=2 {now}"

    outcomes(store, [(DGX, f"cpu,core=0 used=1 {now}\n"), (HGX, claims)], clock)

    assert [(point.tags["appliance"], point.values) for point in cpu_of(store, "acme")] == [
        ("dgx-1", {"used": 1.0})
    ]
    assert [(point.tags["appliance"], point.values) for point in cpu_of(store, "globex")] == [
        ("hgx-1", {"used": 2.0})
    ]


def test_a_bad_line_is_reported_to_its_sender_with_its_number(
    store: DuckDBStore, clock: FrozenClock
) -> None:
    now = to_ns(clock())
    good = f"cpu,core=0 used=1 {now}\ncpu,core=1 used=1 {now}\n"
    cut = f"cpu,core=7 used=1 {now}\ncpu,core=8 us {now}"
    late = f"cpu,core=0 used=1 {now}\ncpu,core=1 used=1 1"

    results = outcomes(store, [(DGX, good), (HGX, cut), (DGX, good), (HGX, late)], clock)

    told = [
        [fault.line for fault in result.errors]
        for result in results
        if isinstance(result, WriteResult)
    ]
    assert told == [[], [2], [], [2]]
    assert [result.total for result in results if isinstance(result, WriteResult)] == [2, 2, 2, 2]


def test_a_point_that_the_store_rejects_is_reported_to_its_sender(
    store: DuckDBStore, clock: FrozenClock
) -> None:
    now = to_ns(clock())
    posts = [(DGX, f"cpu used=1 {now}"), (DGX, f"cpu used=t {now}"), (DGX, f"cpu used=2 {now}")]

    first, second, third = outcomes(store, posts, clock)

    assert isinstance(first, WriteResult)
    assert isinstance(second, WriteResult)
    assert isinstance(third, WriteResult)
    assert (first.errors, third.errors) == ([], [])
    assert [fault.line for fault in second.errors] == [1]
    assert "type float" in second.errors[0].reason


def test_series_are_limited_by_tenant(store: DuckDBStore, clock: FrozenClock) -> None:
    now = to_ns(clock())
    posts = [(agent, f"cpu,core={n} used=1 {now}") for n in range(3) for agent in (DGX, HGX)]

    results = outcomes(store, posts, clock, max_series_per_tenant=2)

    told = [len(result.errors) for result in results if isinstance(result, WriteResult)]
    assert told == [0, 0, 0, 0, 1, 1]


def test_a_series_counts_once_however_it_was_sent(store: DuckDBStore, clock: FrozenClock) -> None:
    now = to_ns(clock())

    async def scenario() -> list[WriteResult]:
        named = ServerSettings(data_dir=Path("/nowhere"), max_series_per_tenant=1)
        gateway = Gateway(store, settings=named, clock=clock)
        body = f"cpu,core=0 used=1 {now}".encode()
        alone = await gateway.write_lines(
            DGX, b'cpu,core=0 used=1,note="x" %d' % now, precision="ns"
        )
        joint = [gateway.write_lines(DGX, body, precision="ns") for _ in range(2)]
        return [alone, *await asyncio.gather(*joint)]

    assert [result.errors for result in asyncio.run(scenario())] == [[], [], []]


def test_points_count_for_the_tenant_that_sent_them(store: DuckDBStore, clock: FrozenClock) -> None:
    now = to_ns(clock())

    async def scenario() -> "tuple[WriteResult | BaseException, ...]":
        named = ServerSettings(data_dir=Path("/nowhere"), max_points_per_second_per_tenant=1)
        gateway = Gateway(store, settings=named, clock=clock)
        burst = "\n".join(f"cpu,core={n} used=1 {now}" for n in range(11)).encode()
        single = f"cpu used=1 {now}".encode()
        await asyncio.gather(
            gateway.write_lines(DGX, burst, precision="ns"),
            gateway.write_lines(HGX, single, precision="ns"),
        )
        return await asyncio.gather(
            gateway.write_lines(DGX, single, precision="ns"),
            gateway.write_lines(HGX, single, precision="ns"),
            return_exceptions=True,
        )

    refused, taken = asyncio.run(scenario())
    assert isinstance(refused, OverloadedError)
    assert isinstance(taken, WriteResult)


def test_what_the_store_raises_reaches_every_post(tmp_path: Path, clock: FrozenClock) -> None:
    store = _AbsentStore(tmp_path / "samples.duckdb")

    raised = outcomes(store, [(DGX, f"cpu used=1 {to_ns(clock())}")] * 3, clock)

    assert [type(error) for error in raised] == [StoreUnavailableError] * 3
    store.close()


def test_a_canceled_post_does_not_cancel_others(store: DuckDBStore, clock: FrozenClock) -> None:
    now = to_ns(clock())

    async def scenario() -> WriteResult:
        gateway = Gateway(store, settings=ServerSettings(data_dir=Path("/nowhere")), clock=clock)
        first, second = (
            asyncio.create_task(
                gateway.write_lines(agent, f"cpu used=1 {now}".encode(), precision="ns")
            )
            for agent in (DGX, HGX)
        )
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(scenario()).errors == []


def test_posts_gather_while_earlier_ones_are_on_their_way() -> None:
    async def scenario() -> list[int]:
        sizes: list[int] = []
        gate = asyncio.Event()

        async def work(posts: list[Post[WriteResult]], _precision: str) -> None:
            sizes.append(len(posts))
            await gate.wait()
            for post in posts:
                post.result.set_result(WriteResult([], 1))

        joint = RequestBatcher(work)
        takes = []
        for _ in range(MAX_CONCURRENT_BATCHES + 5):
            takes.append(asyncio.ensure_future(joint.submit(DGX, b"cpu used=1 1", TIMED)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*takes)
        return sizes

    assert asyncio.run(scenario()) == [*([1] * MAX_CONCURRENT_BATCHES), 5]


def failing(error: Exception) -> Callable[[list[Post[WriteResult]], str], Awaitable[None]]:
    async def work(_posts: list[Post[WriteResult]], _precision: str) -> None:
        raise error

    return work


def test_a_post_does_not_wait_for_ever_when_its_work_fails() -> None:
    async def scenario() -> None:
        joint = RequestBatcher(failing(VedetteError("It failed.")))
        with pytest.raises(VedetteError, match=r"It failed\."):
            await joint.submit(DGX, b"cpu used=1 1", TIMED)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'cpu note="a\nb" 1',
        b"# cpu\ncpu used=1 1",
        b"cpu used=1 1\r\n",
        b"cpu used=1 1\0",
        b"cpu\tused=1 1",
        b"cpu,model=a\x02b used=1 1",
        b"cpu,path=C:\\x used=1 1",
        b"cpu used=1 1\ncpu used=1",
        b"\n\n\n",
        b"cpu,host=\xff used=1 1",
        b"cpu used=1 1\n" * 10_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_an_uncommon_post_goes_alone(body: bytes) -> None:
    assert kind_of(body, precision="ns") is None


@pytest.mark.parametrize(
    ("body", "spaces"),
    [
        (b"cpu used=1 1", 2),
        (b"cpu used=1\n", 1),
        (b"gpu,model=NVIDIA\\ H100\\ 80GB\\,x\\= used=1 1\n", 2),
        ("cpu,host=Zürich used=1 1".encode(), 2),
    ],
)
def test_posts_are_joined_with_their_like(body: bytes, spaces: int) -> None:
    assert kind_of(body, precision="s") == Kind("s", spaces)


LINES = st.sampled_from(
    [
        "cpu,core=0 used=1,free=2i 5",
        "cpu,core=1 used=3,free=4i 6",
        "cpu,core=1 used=3.5,free=4i 6",
        "gpu,model=A\\ B used=1e3 7",
        "gpu used=t 7",
        "gpu used= 7",
        "gpu,= used=1 7",
        "mem used=1 x",
        "mem  used=1",
        ",a=b used=1 1",
        "mem used=99999999999999999999i 1",
        "größe used=1 1",
        "mem used=1,used=2 1",
    ]
)
BODIES = st.lists(
    st.tuples(st.lists(LINES, min_size=1, max_size=4), st.booleans()).map(
        lambda made: ("\n".join(made[0]) + "\n" * made[1]).encode()
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(bodies=BODIES)
def test_joined_posts_are_read_as_if_each_had_come_alone(bodies: list[bytes]) -> None:
    bodies = [body for body in bodies if kind_of(body, precision="ns") is not None]
    joined = join(bodies)

    together = parse(joined.text, default_time_ns=9)

    points = iter(together.points)
    faults = iter(together.errors)
    for start, body in zip(joined.starts, bodies, strict=True):
        alone = parse(body, default_time_ns=9)
        assert [next(points) for _ in alone.points] == alone.points
        told = [next(faults) for _ in alone.errors]
        assert [(error.line_number - start, error.reason) for error in told] == [
            (error.line_number, error.reason) for error in alone.errors
        ]
    assert (list(points), list(faults)) == ([], [])
    assert len(joined.post_of) == sum(body.count(b"\n") + (body[-1:] != b"\n") for body in bodies)


@pytest.mark.parametrize(("first", "batches"), [(MANY_POSTS, 2), (MANY_POSTS - 1, 3)])
def test_after_a_batch_of_many_posts_the_next_one_waits_for_more(first: int, batches: int) -> None:
    sizes: list[int] = []
    ready = asyncio.Event()

    async def process(posts: list[Post[int]], _precision: str) -> None:
        sizes.append(len(posts))
        await ready.wait()
        for post in posts:
            post.result.set_result(len(posts))

    async def scenario() -> None:
        batcher = RequestBatcher[int](process)

        def submit(count: int) -> list[asyncio.Future[int]]:
            return [batcher.submit(DGX, b"x", TIMED) for _ in range(count)]

        sent = submit(first)
        await asyncio.sleep(0.01)
        sent += submit(1)
        await asyncio.sleep(0.01)
        ready.set()
        await asyncio.gather(*sent[:first])
        sent += submit(1)
        await asyncio.gather(*sent)

    asyncio.run(scenario())
    assert (sizes[0], len(sizes), sum(sizes)) == (first, batches, first + 2)
