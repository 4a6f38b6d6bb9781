"""Moving samples from one store to another, piece by piece, so that it can stop and go on.

A *chunk* is an hour or a day of one measurement. It counts as done, and is recorded, when all of
it is durable in the destination. Where the destination already holds samples of a chunk (that in
which the last run was killed, or of an earlier migration), the two are compared by series and
instant and only what is missing is written: nothing ends up there twice, even in a store that
keeps duplicates.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from timeseries.batch import Batch
from timeseries.extent import chunks
from timeseries.moving.compare import is_empty, present, without_present
from timeseries.moving.delivery import ChunkWriter, Outcome
from timeseries.moving.recheck import changed, values_in
from timeseries.moving.state import MigrationState, Moved, StateFile
from timeseries.store import Extent, ScanQuery, Store

# The first moves everything; the others what came into the source meanwhile.
_MAX_TURNS = 4


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
        """Move what is not moved yet, and what has come into moved hours since.

        A request to stop leaves the chunk under way unrecorded; the next run completes it.

        Raises:
            StoreUnavailableError: one of the stores went away; the same call goes on later.
        """
        state = self._state_file.load()
        outcome = Outcome(points=state.points, refused=state.refused)
        for _ in range(_MAX_TURNS):
            left, total = self._plan(state)
            is_done = True
            for chunk in left:
                is_done = False
                if not self._move(chunk, state, outcome, _Watch(should_stop, on_progress, total)):
                    return outcome
            if is_done:
                break
        outcome.is_complete = True
        return outcome

    def _move(
        self, chunk: ScanQuery, state: MigrationState, outcome: Outcome, watch: "_Watch"
    ) -> bool:
        """Move a chunk and record it; return whether to go on."""
        known = state.known(chunk)
        if known is not None:
            outcome.points -= known.points
            outcome.refused -= known.refused
        points, refused = outcome.points, outcome.refused
        values = values_in(self._source, chunk)
        writer = ChunkWriter(self._destination, outcome, self._pause)
        for batch in self._missing(chunk, outcome):
            if watch.should_stop():
                writer.finish()
                return False
            writer.write(batch)
            watch.on_progress(Progress(chunk, outcome.points, watch.total_points))
        writer.finish()
        moved = Moved(
            measurement=chunk.measurement,
            start_ns=chunk.start_ns,
            end_ns=chunk.end_ns,
            values=values,
            points=outcome.points - points,
            refused=outcome.refused - refused,
        )
        self._state_file.append(moved)
        state.add(moved)
        watch.on_progress(Progress(chunk, outcome.points, watch.total_points))
        return not watch.should_stop()

    def _plan(self, state: MigrationState) -> tuple[Iterator[ScanQuery], int]:
        """Return the chunks that are left, and the number of points with those already moved."""
        again: list[ScanQuery] = []
        left: list[tuple[ScanQuery, Extent]] = []
        for name in self._selection.names(self._source):
            query, recorded = self._selection.query(name), state.of(name)
            again += changed(self._source, query, recorded)
            if recorded:
                query = replace(query, start_ns=max(query.start_ns, recorded[-1].end_ns))
            extent = self._source.extent(query) if query.start_ns < query.end_ns else None
            if extent is not None:
                left.append((query, extent))
        total = state.points + sum(extent.points for _, extent in left)
        new = (chunk for query, extent in left for chunk in chunks(query, extent))
        return chain(again, new), total

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
class _Watch:
    """Who looks on while chunks are moved, and about how many points there are in all."""

    should_stop: Callable[[], bool]
    on_progress: Callable[[Progress], object]
    total_points: int
