"""Points on their way into the destination, a bounded number of them at a time."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from core.errors import OverloadedError
from timeseries.batch import Batch
from timeseries.moving.split import by_identity
from timeseries.store import RejectedPoint, Store

MAX_POINTS_UNDER_WAY = 200_000
_MAX_REASONS = 20


@dataclass(slots=True)
class Outcome:
    """What a run did.

    Attributes:
        is_complete: False where it was asked to stop.
        points: points read from the source, those of earlier runs included.
        present: of those read in this run, how many the destination had already.
        refused: points that the destination refused, those of earlier runs included.
        reasons: reason to the number of points refused for it in this run.
    """

    is_complete: bool = False
    points: int = 0
    present: int = 0
    refused: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Points of one appliance on their way to the destination."""

    batch: Batch
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]]


class ChunkWriter:
    """Writes the batches of a chunk, a bounded number of points under way at a time."""

    def __init__(self, store: Store, outcome: Outcome, pause: Callable[[float], object]) -> None:
        self._store = store
        self._outcome = outcome
        self._pause = pause
        self._under_way: deque[_Delivery] = deque()
        self._points_under_way = 0

    def write(self, batch: Batch) -> None:
        """Hand a batch to the store; wait for earlier ones where much is under way."""
        for identity, part in by_identity(batch):
            delivery = _Delivery(part, identity, self._submit(part, identity))
            self._under_way.append(delivery)
            self._points_under_way += len(part)
        while self._points_under_way > MAX_POINTS_UNDER_WAY:
            self._finish_oldest()

    def finish(self) -> None:
        """Wait until everything is durable."""
        while self._under_way:
            self._finish_oldest()

    def _submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        while True:
            try:
                return self._store.submit(batch, identity=identity)
            except OverloadedError as error:
                self._give_way(error)

    def _finish_oldest(self) -> None:
        delivery = self._under_way.popleft()
        self._points_under_way -= len(delivery.batch)
        future = delivery.future
        while True:
            try:
                rejected = future.result()
            except OverloadedError as error:
                self._give_way(error)
                future = self._submit(delivery.batch, delivery.identity)
            else:
                break
        self._outcome.refused += len(rejected)
        for point in rejected:
            if point.reason in self._outcome.reasons or len(self._outcome.reasons) < _MAX_REASONS:
                self._outcome.reasons[point.reason] += 1

    def _give_way(self, error: OverloadedError) -> None:
        if self._under_way:
            self._finish_oldest()
        else:
            self._pause(error.retry_after_seconds)
