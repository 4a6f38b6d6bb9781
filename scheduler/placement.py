"""Placement of waiting jobs: it runs all the time, in a thread of its own."""

import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from core.changes import Topic
from core.db import changes_of, transaction
from core.periodic_tasks import SchedulerContext, Task
from jobqueue.dispatch.dispatcher import Dispatcher

# What is submitted meanwhile is placed together.
PAUSE_SECONDS = 0.05


class PlacementThread:
    """Places jobs when some were submitted, and regularly, in case that is told to nobody.

    Args:
        context: the scheduler.
        interval_seconds: the longest time between two cycles.
        run: runs a task if this process has the lease.
        stopping: is set when the scheduler stops.
    """

    def __init__(
        self,
        context: SchedulerContext,
        *,
        interval_seconds: float,
        run: Callable[[Task], None],
        stopping: threading.Event,
    ) -> None:
        self._context = context
        self._interval_seconds = interval_seconds
        self._run = run
        self._stopping = stopping
        self._dispatcher = Dispatcher(partial(transaction, context.sessions))
        self._is_wanted = threading.Event()
        self._thread = threading.Thread(target=self._place_forever, name="placement", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        changes_of(self._context.sessions).listen(Topic.PLACEMENT, self._place_soon)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, once the scheduler is stopping."""
        self._is_wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def place_jobs(self) -> None:
        """Place waiting jobs, in as many cycles as a long queue takes."""
        context = self._context
        while context.is_active() and not self._stopping.is_set():
            self._dispatcher.cycle(now=context.clock())
            if not self._dispatcher.is_behind:
                break

    def _place_soon(self, _idents: Collection[str]) -> None:
        self._is_wanted.set()

    def _place_forever(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._run(self.place_jobs)
            # As long again as it took, so that many small submissions leave time for the rest.
            if not self._stopping.wait(max(PAUSE_SECONDS, time.monotonic() - began)):
                self._is_wanted.wait(self._interval_seconds)
                self._is_wanted.clear()
