"""The bounded queue between the threads that submit points and the one writer thread.

Submissions that arrive while the writer is busy are handed over as one group, so that many small
requests share a commit. The queue counts points and refuses more than its limit. While several
senders write many points the writer lingers a moment for the rest of them, because a commit costs
about as much for one submission as for fifty; a single sender never waits, and nobody does where
there is time for a commit for each.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.errors import OverloadedError, VedetteError
from timeseries.points import Batch
from timeseries.store import RejectedPoint, StoreUnavailableError

if TYPE_CHECKING:  # NumPy is only on servers
    from timeseries.series_batch import SeriesBatch


@dataclass(frozen=True, slots=True)
class Submission:
    """Points to write for one sender; the future resolves when they are durable.

    `numbered` has samples of numbered series, which only the embedded store takes.
    """

    batch: Batch
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]] = field(default_factory=Future)
    numbered: "SeriesBatch | None" = None

    def __len__(self) -> int:
        return len(self.batch) if self.numbered is None else len(self.numbered)


@dataclass(frozen=True, slots=True)
class Task:
    """Work other than a write, such as a deletion, that the writer runs alone and in order."""

    run: Callable[[], None]
    future: Future[None] = field(default_factory=Future)

    def execute(self) -> None:
        """Run and resolve the future; never raises."""
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - handed to the caller; the thread must go on
            self.future.set_exception(as_store_error(error))
        else:
            self.future.set_result(None)


@dataclass(frozen=True, slots=True)
class Linger:
    """The time to wait for more submissions.

    Attributes:
        gap_seconds: a group is complete when nothing has arrived for this long.
        max_seconds: or when it has been collected for about this long.
        from_points_per_second: only while at least so many are written.
    """

    gap_seconds: float
    max_seconds: float
    from_points_per_second: float = 0.0


class WriteQueue:
    """Hands groups of submissions, or single tasks, to one consumer in order of arrival.

    Args:
        max_points: how many points may wait; only an empty queue accepts a larger body.
        max_group_points: about how many points a group has at most.
        linger: how long a group is collected while several senders write many points.
    """

    def __init__(
        self, *, max_points: int, max_group_points: int, linger: Linger | None = None
    ) -> None:
        self._max_points = max_points
        self._max_group_points = max_group_points
        self._items: deque[Submission | Task] = deque()
        self._waiting_points = 0
        self._is_closed = False
        self._linger = linger
        self._points_per_second, self._taken_at = 0.0, time.monotonic()
        self._is_busy = False
        self._is_gathering = False
        self._changed = threading.Condition()

    def submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue points for the next write.

        Raises:
            OverloadedError: too many points are waiting already.
            StoreUnavailableError: the queue is closed.
        """
        submission = Submission(batch, dict(identity))
        self.put(submission)
        return submission.future

    def run(self, work: Callable[[], None]) -> None:
        """Run something on the writer's thread, after everything queued so far, and wait for it."""
        task = Task(work)
        self.put(task)
        task.future.result()

    def put(self, item: Submission | Task) -> None:
        """Append a submission or task; raises as `submit` does."""
        weight = len(item) if isinstance(item, Submission) else 0
        with self._changed:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            if weight and self._waiting_points and self._waiting_points + weight > self._max_points:
                raise OverloadedError(
                    f"The write queue is full: {self._waiting_points} points are waiting, the "
                    f"limit is {self._max_points}. Send the same points again later.",
                    retry_after_seconds=2,
                )
            self._waiting_points += weight
            self._items.append(item)
            # Waking the consumer for each of many items is expensive; while gathering it polls.
            if not self._is_gathering or self._is_complete():
                self._changed.notify()

    def take(self, *, seconds: float | None = None) -> list[Submission] | Task | None:
        """Wait for work and return it; None when the queue is closed and empty.

        Args:
            seconds: return an empty group after about this long without work.
        """
        with self._changed:
            while not self._items and not self._is_closed:
                if not self._changed.wait(seconds):
                    return []
            if not self._items:
                return None
            self._gather()
            first = self._items.popleft()
            if isinstance(first, Task):
                return first
            group = self._group_of(first)
            rate = self._rate(sum(map(len, group)))
            self._is_busy = (
                self._linger is not None
                and len(group) > 1
                and rate >= self._linger.from_points_per_second
            )
            return group

    def close(self) -> None:
        """Refuse new items; those already waiting are still handed out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _rate(self, points: int) -> float:
        """Return the points per second of about the last second, these included."""
        seconds = time.monotonic() - self._taken_at
        self._taken_at += seconds
        self._points_per_second = self._points_per_second * math.exp(-seconds) + points
        return self._points_per_second

    def _gather(self) -> None:
        """Wait for more submissions if the last group had several."""
        if self._linger is None or not self._is_busy or isinstance(self._items[0], Task):
            return
        self._is_gathering = True
        for _ in range(round(self._linger.max_seconds / self._linger.gap_seconds)):
            before = len(self._items)
            if self._is_complete():
                break
            self._changed.wait(self._linger.gap_seconds)
            if len(self._items) == before:
                break
        self._is_gathering = False

    def _is_complete(self) -> bool:
        return (
            self._is_closed
            or self._waiting_points >= self._max_group_points
            or isinstance(self._items[-1], Task)
        )

    def _group_of(self, first: Submission) -> list[Submission]:
        group, points = [first], len(first)
        while self._items and points < self._max_group_points:
            following = self._items[0]
            if isinstance(following, Task):
                break
            self._items.popleft()
            group.append(following)
            points += len(following)
        self._waiting_points -= points
        return group


def as_store_error(error: Exception) -> Exception:
    """Return the error as one that the store interface allows."""
    if isinstance(error, VedetteError):
        return error
    return StoreUnavailableError(f"The time series store can't write: {error}")
