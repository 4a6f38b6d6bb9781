"""Moving samples from one store to another, piece by piece, so that it can stop and go on.

A *chunk* is an hour or a day of one measurement. It counts as done, and is recorded, when all of
it is durable in the destination. Where the destination already holds samples of a chunk (that in
which the last run was killed, or of an earlier migration), the two are compared by series and
instant and only what is missing is written: nothing ends up there twice, even in a store that
keeps duplicates.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from core.errors import OverloadedError
from timeseries.batch import Batch
from timeseries.extent import chunks, extent_of
from timeseries.moving.compare import is_empty, present, without_present
from timeseries.moving.split import by_identity
from timeseries.moving.state import MigrationState, StateFile
from timeseries.store import RejectedPoint, ScanQuery, Store

MAX_POINTS_UNDER_WAY = 200_000
_MAX_REASONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which samples; no measurements are all of them, tenants None are all of them."""

    measurements: tuple[str, ...] = ()
    tenants: tuple[str, ...] | None = None
    start_ns: int
    end_ns: int

    def query(self, measurement: str) -> ScanQuery:
        """Return the scan of one measurement."""
        return ScanQuery(
            measurement=measurement,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            tenants=self.tenants,
        )

    def names(self, store: Store) -> list[str]:
        """Return the measurements that a store has of those selected, sorted."""
        found = store.measurements(tenants=self.tenants)
        return [name for name in found if not self.measurements or name in self.measurements]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a migration is: after each batch, and after each chunk.

    Attributes:
        chunk: what is being moved.
        points: how many points are moved, those of earlier runs included.
        total_points: about how many there are in all.
    """

    chunk: ScanQuery
    points: int
    total_points: int


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


class Migration:
    """Moves a selection from a source to a destination.

    Args:
        source: where the samples are; only read.
        destination: where they go.
        selection: which of them.
        state: remembers what is done.
        pause: waits a number of seconds when the destination has too much to do.
    """

    def __init__(
        self,
        source: Store,
        destination: Store,
        selection: Selection,
        *,
        state: StateFile,
        pause: Callable[[float], object],
    ) -> None:
        self._source = source
        self._destination = destination
        self._selection = selection
        self._state_file = state
        self._pause = pause

    def run(
        self, *, should_stop: Callable[[], bool], on_progress: Callable[[Progress], object]
    ) -> Outcome:
        """Move what is not moved yet.

        A request to stop leaves the chunk under way unrecorded; the next run completes it.

        Raises:
            StoreUnavailableError: one of the stores went away; the same call goes on later.
        """
        state = self._state_file.load()
        left, total = self._plan(state)
        outcome = Outcome(points=state.points, refused=state.refused)
        for chunk in left:
            writer = _ChunkWriter(self._destination, outcome, self._pause)
            refused, points = outcome.refused, outcome.points
            for batch in self._missing(chunk, outcome):
                if should_stop():
                    writer.finish()
                    return outcome
                writer.write(batch)
                on_progress(Progress(chunk, outcome.points, total))
            writer.finish()
            state = state.after(
                chunk.measurement,
                chunk.end_ns,
                points=outcome.points - points,
                refused=outcome.refused - refused,
            )
            self._state_file.save(state)
            on_progress(Progress(chunk, outcome.points, total))
            if should_stop():
                return outcome
        outcome.is_complete = True
        return outcome

    def _plan(self, state: MigrationState) -> tuple[Iterator[ScanQuery], int]:
        """Return the chunks that are left, and the number of points with those already moved."""
        left, total = [], state.points
        for name in self._selection.names(self._source):
            query = self._selection.query(name)
            start_ns = max(query.start_ns, state.done_until_ns.get(name, query.start_ns))
            query = replace(query, start_ns=start_ns)
            extent = extent_of(self._source, query) if start_ns < query.end_ns else None
            if extent is not None:
                left.append((query, extent))
                total += extent.points
        return (chunk for query, extent in left for chunk in chunks(query, extent)), total

    def _missing(self, chunk: ScanQuery, outcome: Outcome) -> Iterator[Batch]:
        """Yield the batches of a chunk without the points that the destination has."""
        is_fresh: bool | None = None
        for batch in self._source.scan(chunk):
            outcome.points += len(batch)
            if is_fresh is None:
                is_fresh = is_empty(self._destination, chunk)
            left = batch if is_fresh else self._without_present(batch, chunk)
            outcome.present += len(batch) - len(left)
            yield left

    def _without_present(self, batch: Batch, chunk: ScanQuery) -> Batch:
        times = [time_ns for block in batch.blocks for time_ns in block.times_ns]
        if not times:
            return batch
        query = replace(chunk, start_ns=min(times), end_ns=max(times) + 1)
        return without_present(batch, present(self._destination, query))


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Points of one appliance on their way to the destination."""

    batch: Batch
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]]


class _ChunkWriter:
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
