"""Reads pieces ahead, in order, with a bound on what all versions together have in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from typing import TypeVar

from collector.datasets.parts import PIECES_UNDER_WAY

T = TypeVar("T")

AHEAD = 4


class ReadAhead:
    """Threads that read, shared by all that is fetched. Thread-safe."""

    def __init__(self, under_way: int = PIECES_UNDER_WAY) -> None:
        self._threads = ThreadPoolExecutor(under_way, thread_name_prefix="data-read")
        self._permits = Semaphore(under_way)

    def in_order(
        self, read: Callable[[T], memoryview], pieces: Iterable[T], *, ahead: int = AHEAD
    ) -> Iterator[tuple[T, memoryview]]:
        """Yield each piece with its content, while the next ones are being read.

        Raises:
            DataError: what `read` raises.
        """
        pending: deque[tuple[T, Future[memoryview]]] = deque()
        left = iter(pieces)
        piece = next(left, None)
        try:
            while piece is not None or pending:
                # Whoever holds a permit never waits for another: all get on.
                while (
                    piece is not None
                    and len(pending) < ahead
                    and self._permits.acquire(blocking=not pending)
                ):
                    pending.append((piece, self._threads.submit(read, piece)))
                    piece = next(left, None)
                done, future = pending[0]
                content = future.result()
                yield done, content
                pending.popleft()
                self._permits.release()
        finally:
            for _, future in pending:
                future.cancel()
                future.add_done_callback(lambda _: self._permits.release())

    def close(self) -> None:
        """End the threads, without waiting for what they read."""
        self._threads.shutdown(wait=False, cancel_futures=True)
