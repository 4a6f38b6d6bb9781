"""Migrating samples from one store to another in chunks, so that it can stop and resume.

A *chunk* is an hour or a day of one measurement. It is recorded as done when all of it is durable
in the destination. If the destination already has samples of a chunk, from a killed run or an
earlier migration, the two are compared by series and instant and only missing points are written:
nothing is duplicated, even in a store that keeps duplicates.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain

from core.errors import OverloadedError
from timeseries.identity import split_by_identity
from timeseries.migration.compare import (
    Selection,
    changed_chunks,
    count_values,
    drop_existing,
    existing_points,
    is_empty,
)
from timeseries.migration.state import MigratedChunk, MigrationState, StateFile
from timeseries.points import Batch
from timeseries.store import Extent, RejectedPoint, ScanQuery, Store, chunks

# The first pass migrates everything, the others what arrived in the source meanwhile.
_MAX_PASSES = 4
MAX_POINTS_IN_FLIGHT = 200_000
_MAX_REASONS = 20


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a migration, after each batch and each chunk.

    Attributes:
        chunk: the current chunk.
        points: how many points are migrated, including earlier runs.
        total_points: about how many points there are in total.
    """

    chunk: ScanQuery
    points: int
    total_points: int


@dataclass(slots=True)
class MigrationResult:
    """The result of a run.

    Attributes:
        is_complete: False if it was stopped.
        points: points read from the source, including earlier runs.
        present: points read in this run that the destination already had.
        rejected: points that the destination rejected, including earlier runs.
        reasons: reason to the number of points rejected in this run.
    """

    is_complete: bool = False
    points: int = 0
    present: int = 0
    rejected: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Migration:
    """Copies a selection from a source to a destination.

    Args:
        source: read only.
        destination: the store to write to.
        selection: the samples to copy.
        state: records finished chunks.
        pause: waits for a number of seconds while the destination is overloaded.
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
    ) -> MigrationResult:
        """Migrate what is left, and what arrived in migrated hours since.

        A stop leaves the current chunk unrecorded; the next run completes it.

        Raises:
            StoreUnavailableError: a store is not available; call it again later to resume.
        """
        state = self._state_file.load()
        result = MigrationResult(points=state.points, rejected=state.rejected)
        for _ in range(_MAX_PASSES):
            left, total = self._plan(state)
            is_done = True
            for chunk in left:
                is_done = False
                if not self._move(chunk, state, result, _Watch(should_stop, on_progress, total)):
                    return result
            if is_done:
                break
        result.is_complete = True
        return result

    def _move(
        self, chunk: ScanQuery, state: MigrationState, result: MigrationResult, watch: "_Watch"
    ) -> bool:
        """Migrate a chunk and record it; return whether to continue."""
        former = state.record_of(chunk)
        if former is not None:
            result.points -= former.points
            result.rejected -= former.rejected
        points, rejected = result.points, result.rejected
        values = count_values(self._source, chunk)
        writer = ChunkWriter(self._destination, result, self._pause)
        for batch in self._missing(chunk, result):
            if watch.should_stop():
                writer.finish()
                return False
            writer.write(batch)
            watch.on_progress(Progress(chunk, result.points, watch.total_points))
        writer.finish()
        done = MigratedChunk(
            measurement=chunk.measurement,
            start_ns=chunk.start_ns,
            end_ns=chunk.end_ns,
            values=values,
            points=result.points - points,
            rejected=result.rejected - rejected,
        )
        self._state_file.append(done)
        state.add(done)
        watch.on_progress(Progress(chunk, result.points, watch.total_points))
        return not watch.should_stop()

    def _plan(self, state: MigrationState) -> tuple[Iterator[ScanQuery], int]:
        """Return the chunks that are left, and the total number of points."""
        changed: list[ScanQuery] = []
        left: list[tuple[ScanQuery, Extent]] = []
        for name in self._selection.names(self._source):
            query, recorded = self._selection.query(name), state.of(name)
            changed += changed_chunks(self._source, query, recorded)
            if recorded:
                query = replace(query, start_ns=max(query.start_ns, recorded[-1].end_ns))
            extent = self._source.extent(query) if query.start_ns < query.end_ns else None
            if extent is not None:
                left.append((query, extent))
        total = state.points + sum(extent.points for _, extent in left)
        new = (chunk for query, extent in left for chunk in chunks(query, extent))
        return chain(changed, new), total

    def _missing(self, chunk: ScanQuery, result: MigrationResult) -> Iterator[Batch]:
        """Yield the batches of a chunk without points that the destination already has."""
        is_fresh: bool | None = None
        for batch in self._source.scan(chunk):
            result.points += len(batch)
            if is_fresh is None:
                is_fresh = is_empty(self._destination, chunk)
            left = batch if is_fresh else self._without_present(batch, chunk)
            result.present += len(batch) - len(left)
            yield left

    def _without_present(self, batch: Batch, chunk: ScanQuery) -> Batch:
        times = [time_ns for block in batch.blocks for time_ns in block.times_ns]
        if not times:
            return batch
        query = replace(chunk, start_ns=min(times), end_ns=max(times) + 1)
        return drop_existing(batch, existing_points(self._destination, query))


@dataclass(frozen=True, slots=True)
class _Watch:
    """The callbacks of a run, and about how many points there are in total."""

    should_stop: Callable[[], bool]
    on_progress: Callable[[Progress], object]
    total_points: int


@dataclass(frozen=True, slots=True)
class _Delivery:
    """Points of one appliance in flight to the destination."""

    batch: Batch
    identity: Mapping[str, str]
    future: Future[list[RejectedPoint]]


class ChunkWriter:
    """Writes the batches of a chunk, with a limit of points in flight."""

    def __init__(
        self, store: Store, result: MigrationResult, pause: Callable[[float], object]
    ) -> None:
        self._store = store
        self._result = result
        self._pause = pause
        self._in_flight: deque[_Delivery] = deque()
        self._points_in_flight = 0

    def write(self, batch: Batch) -> None:
        """Submit a batch; wait for earlier ones while too many points are in flight."""
        for identity, part in split_by_identity(batch):
            delivery = _Delivery(part, identity, self._submit(part, identity))
            self._in_flight.append(delivery)
            self._points_in_flight += len(part)
        while self._points_in_flight > MAX_POINTS_IN_FLIGHT:
            self._finish_oldest()

    def finish(self) -> None:
        """Wait until everything is durable."""
        while self._in_flight:
            self._finish_oldest()

    def _submit(self, batch: Batch, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        while True:
            try:
                return self._store.submit(batch, identity=identity)
            except OverloadedError as error:
                self._back_off(error)

    def _finish_oldest(self) -> None:
        delivery = self._in_flight.popleft()
        self._points_in_flight -= len(delivery.batch)
        future = delivery.future
        while True:
            try:
                rejected = future.result()
            except OverloadedError as error:
                self._back_off(error)
                future = self._submit(delivery.batch, delivery.identity)
            else:
                break
        self._result.rejected += len(rejected)
        for point in rejected:
            if point.reason in self._result.reasons or len(self._result.reasons) < _MAX_REASONS:
                self._result.reasons[point.reason] += 1

    def _back_off(self, error: OverloadedError) -> None:
        if self._in_flight:
            self._finish_oldest()
        else:
            self._pause(error.retry_after_seconds)
