"""Polls of desired states wait at the relay, and one request at the portal."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from relay import polls as polls_module
from relay.polls import Polls
from tests.fixtures.relay_center import Center
from tests.unit.collector.hand_clock import HandClock
from tests.unit.relay.conftest import reaching

T = TypeVar("T")


def playing(
    center: Center, play: Callable[[Polls], Awaitable[T]], *, clock: HandClock | None = None
) -> T:
    async def run() -> T:
        async with reaching(center) as upstream:
            polls = Polls(upstream, **({} if clock is None else {"monotonic": clock.seconds}))
            asking = asyncio.create_task(polls.run())
            try:
                return await play(polls)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

    return asyncio.run(run())


async def asked(center: Center, count: int) -> None:
    for _ in range(500):
        if len(center.asked) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"the portal was asked {len(center.asked)} times")


def test_only_the_appliance_that_changed_is_woken(served: Center) -> None:
    served.generations = {f"dgx-{n}": n for n in range(100)}

    async def play(polls: Polls) -> list[bool]:
        waits = [
            asyncio.create_task(polls.wait(f"dgx-{n}", n, timeout_seconds=1.5)) for n in range(100)
        ]
        await asked(served, 1)
        assert polls.waiting == 100
        served.generations["dgx-7"] += 1
        return await asyncio.gather(*waits)

    changed = playing(served, play)
    assert [number for number, is_changed in enumerate(changed) if is_changed] == [7]
    assert len(served.asked[0].generations) == 100


def test_a_change_before_the_poll_is_seen_at_once(served: Center) -> None:
    served.generations = {"dgx-1": 5}

    async def play(polls: Polls) -> bool:
        return await asyncio.wait_for(polls.wait("dgx-1", 4, timeout_seconds=20), 5)

    assert playing(served, play)


def test_an_appliance_that_comes_back_with_its_generation_needs_no_new_request(
    served: Center,
) -> None:
    served.generations = {"dgx-1": 5}

    async def play(polls: Polls) -> list[bool]:
        changes = [await polls.wait("dgx-1", 5, timeout_seconds=0.05) for _ in range(20)]
        await asyncio.sleep(0.1)
        return changes

    assert not any(playing(served, play))
    assert len(served.asked) == 1


def test_requests_are_renewed_a_few_times_a_second_at_most(served: Center) -> None:
    served.generations = {f"dgx-{n}": 1 for n in range(60)}

    async def play(polls: Polls) -> None:
        waits = []
        for number in range(60):
            waits.append(asyncio.create_task(polls.wait(f"dgx-{number}", 1, timeout_seconds=1.0)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*waits)

    playing(served, play)
    assert 1 <= len(served.asked) <= 20
    assert len(served.asked[-1].generations) == 60


def test_an_appliance_with_a_newer_generation_is_asked_for_with_it(served: Center) -> None:
    served.generations = {"dgx-1": 6}

    async def play(polls: Polls) -> list[bool]:
        assert await polls.wait("dgx-1", 5, timeout_seconds=5)
        newer = asyncio.create_task(polls.wait("dgx-1", 6, timeout_seconds=5))
        await asked(served, 2)
        served.generations["dgx-1"] = 7
        return [await asyncio.wait_for(newer, 5)]

    assert playing(served, play) == [True]
    assert served.asked[-1].generations == {"dgx-1": 6}


def test_polls_wait_while_the_portal_is_away_and_see_changes_afterwards(
    center: Center, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls_module, "RETRY_SECONDS", 0.1)
    center.generations = {"dgx-1": 2}

    async def play(polls: Polls) -> tuple[bool, bool]:
        alone = await polls.wait("dgx-1", 1, timeout_seconds=0.3)
        waiting = asyncio.create_task(polls.wait("dgx-1", 1, timeout_seconds=10))
        with center.serving():
            return alone, await waiting

    assert playing(center, play) == (False, True)


def test_appliances_that_left_are_forgotten_after_a_while(served: Center) -> None:
    served.generations = {"dgx-1": 1, "dgx-2": 1}
    clock = HandClock()

    async def play(polls: Polls) -> None:
        await polls.wait("dgx-1", 1, timeout_seconds=0.05)
        clock.advance(61)
        await polls.wait("dgx-2", 1, timeout_seconds=1.0)

    playing(served, play, clock=clock)
    assert list(served.asked[-1].generations) == ["dgx-2"]


def test_many_appliances_are_asked_for_in_several_requests(
    served: Center, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls_module, "MAX_APPLIANCES", 4)
    served.generations = {f"dgx-{n}": 1 for n in range(10)}

    async def play(polls: Polls) -> list[bool]:
        waits = [
            asyncio.create_task(polls.wait(f"dgx-{n}", 1, timeout_seconds=2)) for n in range(10)
        ]
        await asked(served, 3)
        served.generations["dgx-9"] = 2
        return await asyncio.gather(*waits)

    assert playing(served, play) == [False] * 9 + [True]
    assert sorted(len(request.generations) for request in served.asked[:3]) == [2, 4, 4]
