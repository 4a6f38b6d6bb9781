"""The stage of numbered series: a commit is one row, whatever number of tables it is for.

Prometheus sends hundreds of metrics, and so samples of hundreds of tables, in each post. An insert
into a table costs milliseconds, and tags take ten times the room of their sample: so the tags of a
series are written once, and a commit has the ID of the series, time and value of each sample. They
are moved into their tables, or to files, when they are read or sealed, or when there are many.

A table is moved alone, so `staged_moved` has the last commit whose samples are in it. Commits are
deleted once all their samples are moved. After a crash, series get new IDs.

Samples of new series, which are added afterwards, and those that may overwrite others are not
staged here, but written as any batch is, which checks and compares them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import Struct

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeseries.duckdb.hot.ingest import Checked, is_declared
from timeseries.duckdb.hot.numbered_series import Ids, NumberedSeries
from timeseries.duckdb.hot.overwrites import NewestTimes
from timeseries.duckdb.hot.rows import Inserter
from timeseries.duckdb.schema import Key, Schema
from timeseries.points import Batch
from timeseries.series_batch import VALUE_FIELD, LabeledSeries, SeriesBatch
from timeseries.store import RejectedPoint
from timeseries.validation import FieldType
from timeseries.write_queue import Submission

MAX_STAGED_SAMPLES = 2_000_000
"""From this many on, all are moved into their tables, one after another; they take 40 MB."""
SAMPLES_TABLE, SERIES_TABLE, MOVED_TABLE = "staged_samples", "staged_series", "staged_moved"
MAX_SERIES = 300_000
"""With more, series are numbered anew; one takes about half a kilobyte of memory."""
_DDL = (
    f"CREATE TABLE IF NOT EXISTS {SERIES_TABLE} (id BIGINT NOT NULL, owner VARCHAR NOT NULL, "
    "measurement VARCHAR NOT NULL, tags BLOB NOT NULL); "
    f"CREATE TABLE IF NOT EXISTS {SAMPLES_TABLE} (number BIGINT NOT NULL, samples BLOB NOT NULL); "
    f"CREATE TABLE IF NOT EXISTS {MOVED_TABLE} (owner VARCHAR NOT NULL, "
    "measurement VARCHAR NOT NULL, number BIGINT NOT NULL)"
)
_SAMPLES = pa.schema({"number": pa.int64(), "samples": pa.binary()})
_SERIES = pa.schema(
    {"id": pa.int64(), "owner": pa.string(), "measurement": pa.string(), "tags": pa.binary()}
)
_CODEC, _HEAD = "snappy", Struct("<QQ")
_log = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[str, ...]])


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Staged samples in order of writing.

    Attributes:
        number: that of the last commit that they are of.
        series: has the IDs.
    """

    number: int
    series: NumberedSeries
    ids: Ids
    times_ns: NDArray[np.int64]
    values: NDArray[np.float64]

    def select(self, at: NDArray[np.int64]) -> "Chunk":
        """Return the samples at some positions."""
        return Chunk(self.number, self.series, self.ids[at], self.times_ns[at], self.values[at])

    @classmethod
    def joined(cls, chunks: Sequence["Chunk"]) -> "Chunk":
        """Return chunks of the same series as one."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            chunks[-1].number,
            chunks[0].series,
            np.concatenate([chunk.ids for chunk in chunks]),
            np.concatenate([chunk.times_ns for chunk in chunks]),
            np.concatenate([chunk.values for chunk in chunks]),
        )


class StagedSeries:
    """Staged samples of series, in the database and in memory; for the writer's thread only.

    Attributes:
        series: those that samples may be staged of.
        points: how many samples are staged.
        pending: how many of them are of each table; safe to read from any thread.
    """

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.execute(_DDL)
        self.series = NumberedSeries()
        self.points = 0
        self.pending: dict[Key, int] = {}
        self._first_id = 0
        self._unsorted: list[Chunk] = []
        self._chunks: dict[Key, list[Chunk]] = {}
        self._first_commit: dict[Key, int] = {}
        self._commits: list[int] = []
        self._former_commit = -1
        """The last one with IDs of former series."""
        self._load(cursor)

    @property
    def last_commit(self) -> int:
        """The number of the last commit with staged samples; 0 without any."""
        return self._commits[-1] if self._commits else 0

    def add(self, inserter: Inserter, added: Mapping[LabeledSeries, tuple[Key, int]]) -> None:
        """Add series, of which samples may be staged from now on.

        Args:
            inserter: writes them.
            added: the table of each, and the newest time that it may have samples of.
        """
        records = []
        for series, (key, newest_ns) in added.items():
            series_id = self._first_id + self.series.add(series, key, newest_ns=newest_ns)
            records.append((series_id, *key, msgspec.msgpack.encode(series[1:])))
        _insert(inserter, SERIES_TABLE, _SERIES, records)

    def renew(self) -> None:
        """Number series anew, which limits the memory of those that have ended."""
        self._first_id += len(self.series)
        self.series = NumberedSeries()
        self._former_commit = self._commits[-1] if self._commits else -1

    def insert(self, inserter: Inserter, commit: Chunk) -> None:
        """Stage samples in the database, which commits them; `inserted` follows."""
        record = (commit.number, _packed(commit, first_id=self._first_id))
        _insert(inserter, SAMPLES_TABLE, _SAMPLES, [record])

    def inserted(self, commit: Chunk) -> None:
        """Add committed samples to those in memory."""
        self._unsorted.append(commit)
        self._commits.append(commit.number)
        self.points += len(commit.ids)
        for key, count in commit.series.counts(commit.ids):
            self._first_commit.setdefault(key, commit.number)
            self.pending[key] = self.pending.get(key, 0) + count

    def chunks(self, key: Key) -> Sequence[Chunk]:
        """Return the staged samples of a table."""
        self.sort()
        return self._chunks.get(key, ())

    def sort(self) -> None:
        """Sort the samples of new commits by table."""
        for _, alike in groupby(self._unsorted, key=lambda commit: id(commit.series)):
            commit = Chunk.joined(list(alike))
            for key, at in commit.series.by_key(commit.ids):
                self._chunks.setdefault(key, []).append(commit.select(at))
        self._unsorted.clear()

    def remove(self, cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> None:
        """Note in the open transaction that tables have their samples; delete whole commits."""
        keys = [key for key in keys if key in self._first_commit]
        for key in keys:
            cursor.execute(
                f"INSERT INTO {MOVED_TABLE} VALUES (?, ?, ?)",  # noqa: S608 - ours
                [*key, self._commits[-1]],
            )
        oldest = self._oldest_without(keys)
        if not keys or self._commits[0] >= oldest:
            return
        for table in (SAMPLES_TABLE, MOVED_TABLE):
            cursor.execute(f"DELETE FROM {table} WHERE number < ?", [oldest])  # noqa: S608 - ours
        if self._former_commit < oldest:
            cursor.execute(f"DELETE FROM {SERIES_TABLE} WHERE id < ?", [self._first_id])  # noqa: S608 - ours

    def removed(self, keys: Sequence[Key]) -> None:
        """Remove them from memory once that transaction is committed."""
        keys = [key for key in keys if key in self._first_commit]
        oldest = self._oldest_without(keys)
        for key in keys:
            del self._chunks[key], self._first_commit[key]
            self.points -= self.pending.pop(key)
        self._commits = [number for number in self._commits if number >= oldest]

    def forget(self, cursor: duckdb.DuckDBPyConnection, key: Key) -> None:
        """Forget the series of a table, of which no sample is staged."""
        self.series.forget(key)
        cursor.execute(
            f"DELETE FROM {SERIES_TABLE} WHERE owner = ? AND measurement = ?",  # noqa: S608 - ours
            key,
        )

    def _oldest_without(self, keys: Sequence[Key]) -> int:
        """Return the first commit that is still needed once the samples of some tables are not."""
        others = [number for key, number in self._first_commit.items() if key not in keys]
        return min(others) if others else self._commits[-1] + 1 if self._commits else 0

    def _load(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Load what was staged when the store was closed, or its process ended."""
        commits = cursor.execute(f"SELECT number, samples FROM {SAMPLES_TABLE} ORDER BY 1")  # noqa: S608 - ours
        rows = commits.fetchall()
        if not rows:
            cursor.execute(f"DELETE FROM {SERIES_TABLE}; DELETE FROM {MOVED_TABLE}")  # noqa: S608 - ours
            return
        former, index = self._former_series(cursor)
        moved = {
            Key(owner, measurement): number
            for owner, measurement, number in cursor.execute(
                f"SELECT owner, measurement, max(number) FROM {MOVED_TABLE} GROUP BY ALL"  # noqa: S608 - ours
            ).fetchall()
        }
        for number, packed in rows:
            self._commits.append(number)
            commit = _unpacked(packed, number=number, series=former, index=index)
            is_known = commit.ids >= 0
            if not is_known.all():  # of a damaged file
                _log.warning("%d staged samples have no series", len(is_known) - is_known.sum())
                commit = commit.select(np.flatnonzero(is_known))
            for key, at in former.by_key(commit.ids):
                if number > moved.get(key, -1):
                    self._chunks.setdefault(key, []).append(commit.select(at))
                    self._first_commit.setdefault(key, number)
                    self.pending[key] = self.pending.get(key, 0) + len(at)
                    self.points += len(at)
        self._former_commit = self._commits[-1]

    def _former_series(self, cursor: duckdb.DuckDBPyConnection) -> tuple[NumberedSeries, Ids]:
        """Return the series of former samples, and the number of each of their IDs."""
        rows = cursor.execute(
            f"SELECT id, owner, measurement, tags FROM {SERIES_TABLE} ORDER BY 1"  # noqa: S608 - ours
        ).fetchall()
        former, self._first_id = NumberedSeries(), rows[-1][0] + 1 if rows else 0
        index = np.full(self._first_id + 1, -1, dtype=np.int32)
        for series_id, owner, measurement, packed in rows:
            series = LabeledSeries(measurement, *_decoder.decode(packed))
            index[series_id] = former.add(series, Key(owner, measurement), newest_ns=0)
        return former, index


def _insert(
    inserter: Inserter, table: str, schema: pa.Schema, records: Sequence[tuple[object, ...]]
) -> None:
    columns = zip(*records, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    inserter.insert(table, pa.Table.from_arrays(arrays, schema=schema))


def _packed(commit: Chunk, *, first_id: int) -> bytes:
    """Return samples as one value: two sizes, then the compressed IDs, times and values."""
    ids = commit.ids.astype(np.int64) + first_id
    packed = ids.tobytes() + commit.times_ns.tobytes() + commit.values.tobytes()
    compressed: bytes = pa.compress(packed, codec=_CODEC, asbytes=True)
    return _HEAD.pack(len(packed), len(ids)) + compressed


def _unpacked(value: bytes, *, number: int, series: NumberedSeries, index: Ids) -> Chunk:
    size, count = _HEAD.unpack_from(value)
    packed = pa.decompress(value[_HEAD.size :], size, codec=_CODEC, asbytes=True)
    ids, times_ns = np.frombuffer(packed, dtype=np.int64, count=2 * count).reshape(2, count)
    values = np.frombuffer(packed, dtype=np.float64, offset=16 * count)
    return Chunk(number, series, index[np.minimum(ids, len(index) - 1)], times_ns, values)


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
