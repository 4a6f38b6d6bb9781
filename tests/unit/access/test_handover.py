"""Results of other threads reach the event loop, many with one wake-up."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from access.handover import Handover


class _CountingLoop(asyncio.SelectorEventLoop):
    """A loop that counts how often other threads wake it."""

    wakings = 0

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: object = None
    ) -> asyncio.Handle:
        self.wakings += 1
        return super().call_soon_threadsafe(callback, *args, context=context)  # type: ignore[arg-type]


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def finish(futures: list[Future[int]]) -> None:
    for number, future in enumerate(futures):
        future.set_result(number)


async def waiting(handover: Handover, futures: list[Future[int]]) -> "list[asyncio.Task[int]]":
    tasks = [asyncio.create_task(handover.result(future)) for future in futures]
    await asyncio.sleep(0)
    return tasks


def test_many_results_wake_the_loop_once() -> None:
    async def scenario() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _CountingLoop)
        futures: list[Future[int]] = [Future() for _ in range(500)]
        tasks = await waiting(Handover(), futures)
        before = loop.wakings
        in_thread(lambda: finish(futures))
        return await asyncio.gather(*tasks), loop.wakings - before

    with asyncio.Runner(loop_factory=_CountingLoop) as runner:
        results, wakings = runner.run(scenario())
    assert results == list(range(500))
    assert wakings == 1


def test_a_result_that_is_there_already_is_handed_over() -> None:
    async def scenario() -> int:
        future: Future[int] = Future()
        future.set_result(7)
        return await Handover().result(future)

    assert asyncio.run(scenario()) == 7


def test_an_error_is_raised_where_it_is_awaited() -> None:
    async def scenario() -> None:
        future: Future[int] = Future()
        [task] = await waiting(Handover(), [future])
        in_thread(lambda: future.set_exception(ValueError("the disk is full")))
        await task

    with pytest.raises(ValueError, match="the disk is full"):
        asyncio.run(scenario())


def test_who_stops_waiting_does_not_cancel_the_work() -> None:
    async def scenario() -> Future[int]:
        handover = Handover()
        future: Future[int] = Future()
        later: Future[int] = Future()
        first, second = await waiting(handover, [future, later])
        first.cancel()
        in_thread(lambda: future.set_result(1))
        in_thread(lambda: later.set_result(2))
        assert await second == 2
        return future

    assert not asyncio.run(scenario()).cancelled()


def test_a_result_after_the_loops_end_harms_nobody() -> None:
    async def scenario() -> Future[int]:
        future: Future[int] = Future()
        [task] = await waiting(Handover(), [future])
        task.cancel()
        return future

    future = asyncio.run(scenario())
    future.set_result(1)
    assert future.result() == 1
