"""A bounded queue between the many who write and the one writer thread.

What piled up while the writer was busy is handed over together, so that many small requests share
one commit; the queue counts points, and refuses more than it may hold.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from core.errors import OverloadedError
from timeseries.points import Point
from timeseries.store import RejectedPoint, StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Submission:
    """Points to write for one sender; the future resolves when they are durable."""

    points: Sequence[Point]
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Chore:
    """Something other than a write that the writer does alone and in turn, such as a deletion."""

    run: Callable[[], None]
    future: Future[None] = field(default_factory=Future)


class WriteQueue:
    """Hands groups of submissions, or a single chore, to one taker in the order of arrival.

    Args:
        max_points: how many points may wait; a larger body is taken only by an empty queue.
        max_group_points: about how many points one group has at most.
    """

    def __init__(self, *, max_points: int, max_group_points: int) -> None:
        self._max_points = max_points
        self._max_group_points = max_group_points
        self._items: deque[Submission | Chore] = deque()
        self._waiting_points = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, item: Submission | Chore) -> None:
        """Append a submission or chore.

        Raises:
            OverloadedError: too many points wait already.
            StoreUnavailableError: the queue is closed.
        """
        weight = len(item.points) if isinstance(item, Submission) else 0
        with self._changed:
            if self._is_closed:
                raise StoreUnavailableError("The time series store is closed.")
            if weight and self._waiting_points and self._waiting_points + weight > self._max_points:
                raise OverloadedError(
                    f"{self._waiting_points} points wait to be written, {self._max_points} may; "
                    "send the same points again later.",
                    retry_after_seconds=2,
                )
            self._waiting_points += weight
            self._items.append(item)
            self._changed.notify()

    def take(self) -> list[Submission] | Chore | None:
        """Wait for work and return it; None when the queue is closed and empty."""
        with self._changed:
            while not self._items and not self._is_closed:
                self._changed.wait()
            if not self._items:
                return None
            first = self._items.popleft()
            if isinstance(first, Chore):
                return first
            return self._group_of(first)

    def close(self) -> None:
        """Refuse what comes from now on; what waits is still handed out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _group_of(self, first: Submission) -> list[Submission]:
        group, points = [first], len(first.points)
        while self._items and points < self._max_group_points:
            following = self._items[0]
            if isinstance(following, Chore):
                break
            self._items.popleft()
            group.append(following)
            points += len(following.points)
        self._waiting_points -= points
        return group
