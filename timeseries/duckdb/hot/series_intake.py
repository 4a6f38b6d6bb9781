"""What a commit does with samples of numbered series: which are staged by the ID of their series.

All others are written as any batch is, which checks and compares them: those of new series, which
are added afterwards, and those that may overwrite others.
"""

from collections.abc import Sequence

import duckdb
import numpy as np

from timeseries.duckdb.hot.ingest import Checked, is_declared
from timeseries.duckdb.hot.insert import Inserter
from timeseries.duckdb.hot.staged_series import MAX_SERIES, Chunk, StagedSeries
from timeseries.duckdb.hot.suspects import NewestTimes
from timeseries.duckdb.schema import Key, Schema
from timeseries.points import Batch
from timeseries.series_batch import VALUE_FIELD, LabeledSeries, SeriesBatch
from timeseries.store import RejectedPoint
from timeseries.validation import FieldType
from timeseries.write_queue import Submission

MAX_STAGED_SAMPLES = 2_000_000
"""From this many on, all are moved into their tables, one after another; they take 40 MB."""


class SeriesIntake:
    """Decides what is staged; used by the writer's thread only.

    Args:
        staged: where samples are staged.
        newest: the newest times of all other samples.
    """

    def __init__(self, staged: StagedSeries, newest: NewestTimes) -> None:
        self._staged = staged
        self._newest = newest

    def split(self, submission: Submission) -> tuple[Checked, Chunk | None]:
        """Return what is written as a batch, and the samples to stage; note the times of both."""
        if submission.numbered is None:
            checked = self._newest.check(submission.batch, submission.identity)
            for key, newest_ns in _newest_of(submission):
                self._staged.series.note_newest(key, newest_ns)
            return (checked[0], submission.identity, checked[1]), None
        batch, series = submission.numbered, self._staged.series
        ids = series.find(batch)
        is_staged = ids >= 0
        if self._staged.points >= 2 * MAX_STAGED_SAMPLES:
            is_staged[:] = False  # they can't be moved: senders get the error
        is_staged[is_staged] = series.is_new(ids[is_staged], batch.times_ns[is_staged])
        others = batch.select(~is_staged).as_batch() if not is_staged.all() else Batch(())
        ordered, suspects = self._newest.check(others, {})
        is_known = ids >= 0
        series.note_times(ids[is_known], batch.times_ns[is_known])
        staged = batch.select(is_staged)
        chunk = Chunk(0, series, ids[is_staged], staged.times_ns, staged.values)
        return (ordered, {}, suspects), chunk if len(chunk.ids) else None

    def add(
        self,
        inserter: Inserter,
        batch: SeriesBatch,
        rejected: Sequence[RejectedPoint],
        schema: Schema,
    ) -> None:
        """Add the new series of a batch that was written, without those that were rejected."""
        is_new = self._staged.series.find(batch) < 0
        if not is_new.any():
            return
        bad = [point.position for point in rejected]
        is_new &= ~np.isin(batch.positions, bad)
        added: dict[LabeledSeries, tuple[Key, int]] = {}
        for number in np.unique(batch.numbers[is_new]).tolist():
            series = batch.table.series[number]
            key = Key(series.tenant, series.measurement)
            if _is_stageable(series, key, schema):
                place = series.measurement, series.tenant, series.appliance
                added[series] = key, self._newest.of(place)
        if len(self._staged.series) + len(added) > MAX_SERIES:
            self._note_newest(None)
            self._staged.renew()
        if added:
            self._staged.add(inserter, added)

    def forget(self, cursor: duckdb.DuckDBPyConnection, key: Key) -> None:
        """Forget a table's series, none of which is staged, but not their newest times."""
        self._note_newest([key])
        self._staged.forget(cursor, key)

    def _note_newest(self, keys: Sequence[Key] | None) -> None:
        for (owner, measurement), appliance, newest_ns in self._staged.series.newest_times(keys):
            self._newest.note((measurement, owner, appliance), newest_ns)


def _newest_of(submission: Submission) -> list[tuple[Key, int]]:
    """Return the newest time of each table of a tenant that a batch may go to."""
    tenant = submission.identity.get("tenant")
    keys = []
    for block in submission.batch.blocks:
        if not len(block) or VALUE_FIELD not in block.fields:
            continue
        tenants = {tenant} if tenant else {values[0] for values in block.tag_sets}
        keys += [(Key(owner or "", block.measurement), max(block.times_ns)) for owner in tenants]
    return keys


def _is_stageable(series: LabeledSeries, key: Key, schema: Schema) -> bool:
    """Return whether all samples of a series go to a table that takes them."""
    table = schema.get(key)
    return (
        table is not None
        and table.fields.get(VALUE_FIELD) is FieldType.FLOAT
        and not is_declared(series.measurement, series.tags, (VALUE_FIELD,))
    )
