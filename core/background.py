"""Work that a thread repeats beside a block."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(work: Callable[[], None], *, every_seconds: float, name: str) -> Iterator[None]:
    """Call `work`, which raises nothing, every so many seconds in a thread during the block."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_seconds):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
