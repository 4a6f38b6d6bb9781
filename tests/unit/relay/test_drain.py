"""Delivery of the spool: oldest first, in the order of each appliance, beside live writes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from protocol.relays import RelayedOutcome
from relay.drain import Drain
from relay.sender import Sender
from relay.spool import Spool
from relay.upstream import Upstream
from tests.fixtures.relay_center import Center
from tests.unit.collector.hand_clock import HandClock
from tests.unit.relay.conftest import number_of, reaching, salvage_of, write_of

T = TypeVar("T")
LATER = RelayedOutcome(status=429, retry_after_seconds=20)


def playing(center: Center, spool: Spool, play: Callable[[Drain, Upstream], Awaitable[T]]) -> T:
    async def run() -> T:
        async with reaching(center) as upstream:
            return await play(drain_of(upstream, spool), upstream)

    return asyncio.run(run())


def drain_of(upstream: Upstream, spool: Spool, clock: HandClock | None = None) -> Drain:
    sender = Sender(upstream, spool)
    options = {} if clock is None else {"monotonic": clock.seconds}
    salvage = salvage_of(upstream, spool)
    return Drain(upstream, spool, sender, salvage, max_bytes_per_second=1e9, **options)


async def emptied(drain: Drain, spool: Spool, *, steps: int = 200) -> None:
    for _ in range(steps):
        await drain.step()
        if not spool.waiting_bytes:
            return
    raise AssertionError(f"{spool.waiting_bytes} bytes are left")


def arrived(center: Center, appliance_id: str) -> list[int]:
    return [number_of(body) for body in center.bodies(appliance_id)]


def test_all_is_delivered_oldest_first(served: Center, spool: Spool) -> None:
    writes = [write_of("abc"[number % 3], number) for number in range(5_000)]
    spool.append(writes)
    playing(served, spool, lambda drain, _: emptied(drain, spool))
    assert served.writes == writes
    assert max(served.groups) <= 2_000


def test_requests_grow_while_the_portal_is_quick_and_shrink_when_it_is_slow(
    served: Center, spool: Spool
) -> None:
    spool.append([write_of("a", number, size=2_000) for number in range(3_000)])

    async def play(drain: Drain, _: Upstream) -> None:
        for _turn in range(3):
            await drain.step()
        served.delay_seconds = 0.45
        pauses = [await drain.step() for _turn in range(2)]
        assert min(pauses) >= 0.45

    playing(served, spool, play)
    first, second, third, slow, slower = served.groups
    assert first < second < third
    assert slower < slow


def test_an_appliance_that_is_refused_for_now_waits_alone_and_keeps_its_order(
    served: Center, spool: Spool
) -> None:
    spool.append([write_of("ab"[number % 2], number) for number in range(20)])
    served.outcomes = {"a": [LATER]}
    clock = HandClock()

    async def play() -> None:
        async with reaching(served) as upstream:
            drain = drain_of(upstream, spool, clock)
            for _ in range(3):
                await drain.step()
            assert arrived(served, "b") == list(range(1, 20, 2))
            clock.advance(19)
            await drain.step()
            # What followed the refused write was stored, and comes a second time in its place.
            assert arrived(served, "a") == list(range(2, 20, 2))
            clock.advance(2)
            spool.append([write_of("a", 20)])
            await emptied(drain, spool)

    asyncio.run(play())
    assert arrived(served, "a") == [*range(2, 20, 2), *range(0, 21, 2)]
    assert arrived(served, "b") == list(range(1, 20, 2))


def test_an_appliance_that_is_refused_repeatedly_waits_longer(served: Center, spool: Spool) -> None:
    spool.append([write_of("a", 1)])
    served.outcomes = {"a": [RelayedOutcome(status=503)] * 4}
    clock = HandClock()

    async def play() -> list[int]:
        async with reaching(served) as upstream:
            drain = drain_of(upstream, spool, clock)
            waited = []
            for _ in range(4):
                await drain.step()
                seconds = 0
                while drain._waits:  # noqa: SLF001 - how long it waits
                    clock.advance(1)
                    seconds += 1
                    drain._end_waits()  # noqa: SLF001
                waited.append(seconds)
            await emptied(drain, spool)
            return waited

    assert asyncio.run(play()) == [5, 10, 20, 40]


def test_what_the_portal_will_never_store_is_counted(served: Center, spool: Spool) -> None:
    spool.append([write_of(name, 1) for name in "abcd"])
    served.outcomes = {
        "a": [RelayedOutcome(status=400, body=b"line 1: bad")],
        "b": [RelayedOutcome(status=401)],
        "c": [RelayedOutcome(status=413)],
    }

    async def play(drain: Drain, _: Upstream) -> tuple[int, int, int]:
        await emptied(drain, spool)
        return drain.delivered, drain._salvage.rejected, drain.revoked  # noqa: SLF001

    assert playing(served, spool, play) == (1, 2, 1)


@pytest.mark.parametrize("status", [401, 503, 429])
def test_nothing_is_dropped_when_whole_requests_fail(
    served: Center, spool: Spool, status: int
) -> None:
    spool.append([write_of("a", number) for number in range(10)])
    served.status = status

    async def play(drain: Drain, upstream: Upstream) -> None:
        for _ in range(5):
            assert await drain.step() > 0
        assert drain.revoked == drain._salvage.rejected == 0  # noqa: SLF001
        served.status = 200
        upstream._retry_at = 0.0  # noqa: SLF001 - some seconds later
        await emptied(drain, spool)

    playing(served, spool, play)
    assert arrived(served, "a") == list(range(10))


def test_the_portal_is_tried_rarely_while_it_is_away(center: Center, spool: Spool) -> None:
    spool.append([write_of("a", 1)])

    async def play(drain: Drain, upstream: Upstream) -> list[int]:
        waits = []
        for _ in range(5):
            await drain.step()
            waits.append(round(upstream.wait_seconds))
            upstream._retry_at = 0.0  # noqa: SLF001 - some seconds later
        return waits

    assert playing(center, spool, play) == [1, 2, 4, 5, 5]


def test_live_writes_and_the_spool_share_the_two_requests_of_a_relay(
    served: Center, spool: Spool
) -> None:
    spool.append([write_of("old", number, size=500) for number in range(3_000)])
    served.delay_seconds = 0.005

    async def play() -> None:
        async with reaching(served) as upstream:
            sender = Sender(upstream, spool)
            salvage = salvage_of(upstream, spool)
            drain = Drain(upstream, spool, sender, salvage, max_bytes_per_second=1e9)
            delivering = asyncio.create_task(drain.run())
            number = 0
            while spool.waiting_bytes:
                outcomes = [sender.write(write_of("live", number + n)) for n in range(5)]
                assert {own.status for own in await asyncio.gather(*outcomes)} == {204}
                number += 5
            delivering.cancel()

    asyncio.run(play())
    assert served.most_running <= 2
    assert arrived(served, "old") == list(range(3_000))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay whose agents wait for half a second."""
    for module in ("upstream", "drain"):
        monkeypatch.setattr(f"relay.{module}.ANSWER_SECONDS", 0.5)


@pytest.mark.usefixtures("hasty")
def test_a_large_write_may_take_longer_than_agents_wait(served: Center, spool: Spool) -> None:
    served.bytes_per_second = 400_000
    spool.append([write_of("a", 0, size=400_000)])
    playing(served, spool, lambda drain, _: emptied(drain, spool, steps=1))


@pytest.mark.usefixtures("hasty")
def test_others_get_past_a_write_that_is_too_large_for_the_portal(
    served: Center, spool: Spool
) -> None:
    served.bytes_per_second = 100_000
    spool.append([write_of("a", 0, size=300_000), write_of("a", 1), write_of("b", 2)])

    async def play() -> None:
        async with reaching(served) as upstream:
            drain = drain_of(upstream, spool)
            await drain.step()
            assert not upstream.is_up
            await asyncio.sleep(upstream.wait_seconds)
            await drain.step()
            assert (arrived(served, "a"), arrived(served, "b")) == ([], [2])
            served.bytes_per_second = 1e9
            spool.rewind()
            await emptied(drain_of(upstream, spool), spool)
            # The slow portal may have stored the first in the end.
            assert list(dict.fromkeys(arrived(served, "a"))) == [0, 1]

    asyncio.run(play())
