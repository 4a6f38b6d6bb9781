"""Waiting for changes: those that are told wake at once, the others are polled."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping

import pytest

from access import longpoll
from access.longpoll import ChangeWatch
from core.changes import ANY, ChangeBus, Topic
from core.errors import DatabaseUnavailableError

# Of the tests' watches: waiting for them would take this long.
INTERVAL_SECONDS = 1.0
SOON_SECONDS = 0.8
NEW_SECONDS = INTERVAL_SECONDS / 2


class Versions:
    """The versions of objects as a database has them, and how they were read."""

    def __init__(self, count: int = 3) -> None:
        self.now = {f"object {number}": 1 for number in range(count)}
        self.reads: list[set[str]] = []
        self.failures = 0

    async def read(self, idents: Collection[str]) -> Mapping[str, int]:
        self.reads.append(set(idents))
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            raise DatabaseUnavailableError("It is away.")
        return dict(self.now)


class World:
    """A watch of some objects, with the bus that tells it of changes."""

    def __init__(self, *, is_complete: bool, count: int = 3) -> None:
        self.bus = ChangeBus()
        self.bus.set_complete(is_complete)
        self.versions = Versions(count)
        self.watch = ChangeWatch(
            self.versions.read, self.bus, Topic.JOB, interval_seconds=INTERVAL_SECONDS
        )

    def wait(self, number: int, *, seconds: float = 20.0) -> "asyncio.Task[bool]":
        ident = f"object {number}"
        waiting = self.watch.wait(ident, self.versions.now[ident], timeout_seconds=seconds)
        return asyncio.ensure_future(waiting)

    def change(self, *numbers: int) -> list[str]:
        idents = [f"object {number}" for number in numbers]
        for ident in idents:
            self.versions.now[ident] += 1
        return idents

    async def settled(self) -> None:
        """Wait until what waiters began to wait for is read."""
        await asyncio.sleep(NEW_SECONDS + 0.1)
        self.versions.reads.clear()


async def within(seconds: float, waiting: Awaitable[bool]) -> bool:
    return await asyncio.wait_for(waiting, seconds)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 50))


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_told_change_wakes_at_once_those_who_wait_for_it(*, is_complete: bool) -> None:
    async def test() -> None:
        world = World(is_complete=is_complete)
        first, second, other = world.wait(0), world.wait(0), world.wait(1)
        await world.settled()
        threading.Thread(target=world.bus.publish, args=(Topic.JOB, world.change(0))).start()
        assert await within(SOON_SECONDS, first)
        assert await within(SOON_SECONDS, second)
        assert not other.done()
        assert world.versions.reads == [{"object 0"}]

    run(test)


def test_a_change_of_another_topic_or_object_reads_nothing() -> None:
    async def test() -> None:
        world = World(is_complete=True)
        waiting = world.wait(0)
        await world.settled()
        world.bus.publish(Topic.DESIRED, world.change(0))
        world.bus.publish(Topic.JOB, world.change(1))
        await asyncio.sleep(0.2)
        assert world.versions.reads == []
        assert not waiting.done()

    run(test)


def test_a_thousand_changes_take_few_queries() -> None:
    async def test() -> None:
        world = World(is_complete=True, count=1_000)
        waiting = [world.wait(number) for number in range(1_000)]
        await world.settled()
        began = time.monotonic()
        for number in range(1_000):
            world.bus.publish(Topic.JOB, world.change(number))
            if number % 50 == 0:
                await asyncio.sleep(0.002)
        assert all(await asyncio.gather(*waiting))
        took = time.monotonic() - began
        assert len(world.versions.reads) <= took / longpoll.PAUSE_SECONDS + 2
        counted = Counter(ident for read in world.versions.reads for ident in read)
        assert max(counted.values()) <= 2

    run(test)


def test_any_reads_everything_once() -> None:
    async def test() -> None:
        world = World(is_complete=True)
        waiting = [world.wait(number) for number in range(3)]
        await world.settled()
        world.change(1)
        world.bus.publish(Topic.JOB, [ANY])
        assert await within(SOON_SECONDS, waiting[1])
        assert world.versions.reads == [{"object 0", "object 1", "object 2"}]

    run(test)


def test_a_change_before_the_wait_is_found() -> None:
    async def test() -> None:
        world = World(is_complete=True)
        await asyncio.wait({world.wait(1)}, timeout=NEW_SECONDS + 0.1)
        world.versions.now["object 0"] = 2
        waiting = world.watch.wait("object 0", 1, timeout_seconds=20)
        assert await within(SOON_SECONDS, waiting)

    run(test)


def test_a_version_that_somebody_waited_for_is_not_read_again() -> None:
    async def test() -> None:
        world = World(is_complete=True)
        others = world.wait(1)
        assert not await world.wait(0, seconds=NEW_SECONDS + 0.1)
        world.versions.reads.clear()
        assert not await world.wait(0, seconds=NEW_SECONDS + 0.1)
        assert world.versions.reads == []
        # A change that is told while nobody waits is read by the next one.
        version = world.versions.now["object 0"]
        world.bus.publish(Topic.JOB, world.change(0))
        waiting = world.watch.wait("object 0", version, timeout_seconds=20)
        assert await within(SOON_SECONDS, waiting)
        others.cancel()

    run(test)


@pytest.mark.parametrize("told", [["object 0"], [ANY]])
def test_a_change_that_is_told_as_a_waiter_leaves_is_found(told: list[str]) -> None:
    async def test() -> None:
        world = World(is_complete=True)
        others = world.wait(1)
        version = world.versions.now["object 0"]
        first = world.wait(0)
        await world.settled()
        world.change(0)
        # Another thread tells it, and the waiter is gone before the event loop hears of it.
        world.bus.publish(Topic.JOB, told)
        first.cancel()
        waiting = world.watch.wait("object 0", version, timeout_seconds=20)
        assert await within(SOON_SECONDS, waiting)
        others.cancel()

    run(test)


def test_versions_are_read_again_after_changes_may_have_been_missed() -> None:
    async def test() -> None:
        world = World(is_complete=True)
        others = world.wait(1)
        assert not await world.wait(0, seconds=NEW_SECONDS + 0.1)
        world.bus.set_complete(False)
        world.versions.now["object 0"] = 2
        world.bus.set_complete(True)
        await world.settled()
        waiting = world.watch.wait("object 0", 1, timeout_seconds=20)
        assert await within(SOON_SECONDS, waiting)
        others.cancel()

    run(test)


def test_what_is_told_to_nobody_is_polled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "SWEEP_SECONDS", 1.0)
    monkeypatch.setattr(longpoll, "_MAX_NAMED", 2)

    async def test() -> None:
        world = World(is_complete=True, count=5)
        waiting = [world.wait(number) for number in range(5)]
        await world.settled()
        world.change(3)
        assert await within(2.0, waiting[3])
        assert all(len(read) <= 2 for read in world.versions.reads)

    run(test)


def test_polling_is_frequent_while_changes_may_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "SWEEP_SECONDS", 1_000.0)

    async def test() -> None:
        world = World(is_complete=True)
        waiting = world.wait(0, seconds=20)
        await world.settled()
        world.bus.set_complete(False)
        await asyncio.sleep(0.2)
        assert world.versions.reads == [{"object 0"}]
        world.change(0)
        assert await within(INTERVAL_SECONDS + SOON_SECONDS, waiting)

    run(test)


def test_what_was_missed_is_found_when_all_changes_arrive_again() -> None:
    async def test() -> None:
        world = World(is_complete=False)
        waiting = world.wait(0)
        await asyncio.sleep(0.1)
        world.change(0)
        world.bus.set_complete(True)
        assert await within(SOON_SECONDS, waiting)

    run(test)


def test_a_change_that_the_database_could_not_answer_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(longpoll, "SWEEP_SECONDS", 1_000.0)

    async def test() -> None:
        world = World(is_complete=True)
        waiting = world.wait(0)
        await world.settled()
        world.versions.failures = 1
        world.bus.publish(Topic.JOB, world.change(0))
        assert await within(INTERVAL_SECONDS + SOON_SECONDS, waiting)

    run(test)


def test_nothing_is_read_once_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "SWEEP_SECONDS", 0.1)

    async def test() -> None:
        world = World(is_complete=True)
        assert not await world.wait(0, seconds=0.3)
        await world.settled()
        await asyncio.sleep(0.3)
        assert world.versions.reads == []
        assert world.watch.waiting == 0
        second = world.wait(0)
        await world.settled()
        world.bus.publish(Topic.JOB, world.change(0))
        assert await within(SOON_SECONDS, second)

    run(test)


def test_a_change_after_the_end_of_the_event_loop_does_no_harm() -> None:
    world = World(is_complete=True)

    async def test() -> None:
        waiting = world.wait(0)
        await world.settled()
        waiting.cancel()

    run(test)
    world.bus.publish(Topic.JOB, world.change(0))
    world.bus.publish(Topic.JOB, [ANY])
