"""A bounded queue between the many who write and the one writer thread.

What piled up while the writer was busy is handed over together, so that many small requests share
one commit; the queue counts points, and refuses more than it may hold. While several senders write
at once the taker waits a moment for the rest of them, since a commit costs about as much for one
submission as for fifty; a lone sender never waits.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from core.errors import OverloadedError
from timeseries.batch import Batch
from timeseries.store import RejectedPoint, StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Submission:
    """Points to write for one sender; the future resolves when they are durable."""

    batch: Batch
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Chore:
    """Something other than a write that the writer does alone and in turn, such as a deletion."""

    run: Callable[[], None]
    future: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Linger:
    """How long to wait for more: until nothing came for a while, or until the end of patience.

    Attributes:
        gap_seconds: a group is complete when nothing arrived for so long.
        max_seconds: or when it was gathered for about so long.
    """

    gap_seconds: float
    max_seconds: float


class WriteQueue:
    """Hands groups of submissions, or a single chore, to one taker in the order of arrival.

    Args:
        max_points: how many points may wait; a larger body is taken only by an empty queue.
        max_group_points: about how many points one group has at most.
        linger: how long a group is gathered while several senders write at once.
    """

    def __init__(
        self, *, max_points: int, max_group_points: int, linger: Linger | None = None
    ) -> None:
        self._max_points = max_points
        self._max_group_points = max_group_points
        self._items: deque[Submission | Chore] = deque()
        self._waiting_points = 0
        self._is_closed = False
        self._linger = linger
        self._is_busy = False
        self._is_gathering = False
        self._changed = threading.Condition()

    def put(self, item: Submission | Chore) -> None:
        """Append a submission or chore.

        Raises:
            OverloadedError: too many points wait already.
            StoreUnavailableError: the queue is closed.
        """
        weight = len(item.batch) if isinstance(item, Submission) else 0
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
            # To wake the taker for each of many is dear; while it gathers it looks by itself.
            if not self._is_gathering or self._is_complete():
                self._changed.notify()

    def take(self, *, seconds: float | None = None) -> list[Submission] | Chore | None:
        """Wait for work and return it; None when the queue is closed and empty.

        Args:
            seconds: return an empty group when there was no work for about so long.
        """
        with self._changed:
            while not self._items and not self._is_closed:
                if not self._changed.wait(seconds):
                    return []
            if not self._items:
                return None
            self._gather()
            first = self._items.popleft()
            if isinstance(first, Chore):
                return first
            group = self._group_of(first)
            self._is_busy = len(group) > 1
            return group

    def close(self) -> None:
        """Refuse what comes from now on; what waits is still handed out."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _gather(self) -> None:
        """Wait for more submissions if the last group had several."""
        if self._linger is None or not self._is_busy or isinstance(self._items[0], Chore):
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
            or isinstance(self._items[-1], Chore)
        )

    def _group_of(self, first: Submission) -> list[Submission]:
        group, points = [first], len(first.batch)
        while self._items and points < self._max_group_points:
            following = self._items[0]
            if isinstance(following, Chore):
                break
            self._items.popleft()
            group.append(following)
            points += len(following.batch)
        self._waiting_points -= points
        return group
