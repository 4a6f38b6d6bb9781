"""Files straight from the stage: many samples of a table become a segment, never rows of it.

A row of a table is written twice, to the log and at a checkpoint, with all its tags, before it is
sealed. Staged samples of numbered series have their tags once, and none of them has the series and
instant of another sample, so that nothing is looked up: in a file they take a fifth of the time.
Such a segment is merged with the others of its day once that is settled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from core.ids import new_id
from timeseries.duckdb.files.files import Files
from timeseries.duckdb.files.parquet import FAST_LEVEL, write_parquet
from timeseries.duckdb.files.segments import Segment
from timeseries.duckdb.hot.staged_series import Chunk
from timeseries.duckdb.schema import TIME_COLUMN, Key, Table, field_column, tag_column
from timeseries.series_batch import VALUE_FIELD
from timeseries.store import APPLIANCE_TAG, DAY_NS, IDENTITY_TAGS, Resolution
from timeseries.validation import FieldType

MIN_FILE_SAMPLES = 5_000
"""How many samples of a day are worth a file."""
_MAX_INTEGER = 1e15
"""Up to this, each integer is exactly a float."""


def chunk_for_files(chunks: Sequence[Chunk]) -> Chunk | None:
    """Return staged samples of a table as one chunk; None if they are not for files.

    They are for a table if they are few for the days that they are of, or if series were numbered
    anew between them.
    """
    if sum(len(chunk.ids) for chunk in chunks) < MIN_FILE_SAMPLES:
        return None
    if len({id(chunk.series) for chunk in chunks}) > 1:
        return None
    chunk = Chunk.joined(chunks)
    days = np.unique(chunk.times_ns // DAY_NS)
    is_worth_files = days[0] >= 0 and len(chunk.ids) >= MIN_FILE_SAMPLES * len(days)
    return chunk if is_worth_files else None


def write_segments(files: Files, key: Key, chunk: Chunk) -> list[Segment]:
    """Write staged samples of a table to files: a segment of each day."""
    ids, of_sample = np.unique(chunk.ids, return_inverse=True)
    series = chunk.series.labeled(ids)
    tags = sorted({tag for labeled in series for tag in labeled.tags} - {APPLIANCE_TAG})
    tags = [APPLIANCE_TAG, *tags]
    values_of = [dict(zip(labeled.tags, labeled.tag_values, strict=True)) for labeled in series]
    rows = [tuple(values.get(tag, "") for tag in tags) for values in values_of]
    ranks = np.argsort(np.array(sorted(range(len(rows)), key=rows.__getitem__)))[of_sample]
    columns = dict(zip(tags, zip(*sorted(rows), strict=True), strict=True))
    columns = {tag: texts for tag, texts in columns.items() if any(texts) or tag in IDENTITY_TAGS}
    order = np.lexsort((chunk.times_ns, ranks))
    days = chunk.times_ns[order] // DAY_NS
    return [
        _write_day(files, key, columns, ranks[at], chunk.select(at))
        for at in (order[days == day] for day in np.unique(days).tolist())
    ]


def _write_day(
    files: Files,
    key: Key,
    columns: Mapping[str, Sequence[str]],
    ranks: NDArray[np.int64],
    samples: Chunk,
) -> Segment:
    """Write sorted samples of one day to a file; `columns` has the tags of each rank."""
    arrays = {TIME_COLUMN: pa.array(samples.times_ns)}
    places = pa.array(ranks.astype(np.int32))
    for tag, texts in columns.items():
        encoded = pa.array([text or None for text in texts], pa.string()).dictionary_encode()
        arrays[tag_column(tag)] = pa.DictionaryArray.from_arrays(
            encoded.indices.take(places), encoded.dictionary, safe=False
        )
    values = samples.values if files.is_open else _smallest(samples.values)
    arrays[field_column(VALUE_FIELD)] = pa.array(values)
    table = pa.table(arrays)
    appliances = columns[APPLIANCE_TAG]
    segment = Segment(
        name=new_id(),
        tenant=key.owner,
        measurement=key.measurement,
        oldest_ns=int(samples.times_ns.min()),
        newest_ns=int(samples.times_ns.max()),
        first_appliance=appliances[ranks[0]],
        last_appliance=appliances[ranks[-1]],
        rows=len(ranks),
        table=Table(frozenset(columns) | {*IDENTITY_TAGS}, {VALUE_FIELD: FieldType.FLOAT}),
        rolled={},
        sizes={},
        is_open=files.is_open,
    )
    path = segment.path(Resolution.RAW)
    new = files.create(path)
    size = write_parquet(new, table.to_reader(), level=FAST_LEVEL, is_open=files.is_open)
    files.publish(new, path)
    return replace(segment, sizes={Resolution.RAW: size})


def _smallest(values: NDArray[np.float64]) -> NDArray[np.int64] | NDArray[np.float64]:
    """Return floats as integers, which are smaller, if each is one; there is no integer -0."""
    are_integers = (np.trunc(values) == values) & (np.abs(values) < _MAX_INTEGER)
    are_integers &= ~((values == 0) & np.signbit(values))
    return values.astype(np.int64) if are_integers.all() else values
