"""From the store's thread to the event loop: many results, one wake-up.

A commit answers hundreds of requests at once. Waking the loop for each would cost more than the
requests themselves, so results queue up and the loop is woken for the first of them.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Handover:
    """Lets the tasks of one event loop await what other threads finish."""

    def __init__(self) -> None:
        self._finished: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._is_waking = False

    async def result(self, future: Future[T]) -> T:
        """Wait for the result; who stops waiting does not cancel the work."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(partial(self._finish, loop, waiter))
        return await waiter

    def _finish(
        self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[T], future: Future[T]
    ) -> None:
        # Appended before the flag is read, and the loop clears the flag before it takes anything:
        # whoever finds the flag set is therefore taken along.
        self._finished.append((future, waiter))
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop has ended, and with it all who waited
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        while self._finished:
            future, waiter = self._finished.popleft()
            if waiter.done():  # its task was cancelled
                continue
            error = future.exception()
            if error is None:
                waiter.set_result(future.result())
            else:
                waiter.set_exception(error)
