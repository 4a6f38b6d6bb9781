"""Writing the Parquet files of segments: small, and through to the disk.

Which encoding is smallest depends on the values: counters and times have small differences, most
readings few distinct values, noise neither. So the first rows of each column are encoded in each
way that suits its type, and the smallest is used for the file. Compared with one encoding for
all columns of a type this saves nearly half; see docs/decisions/0010-sealed-files.md.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path

import pyarrow as pa

from timeseries.duckdb.schema import TIME_COLUMN, tag_column

BATCH_ROWS = 20_000
MAX_ROW_GROUP_ROWS = 100_000
ROW_GROUP_VALUES = 4_000_000
"""About how many values a row group has; they are in memory while it is written."""
TRIED_ROWS = 5_000
"""How many of the first rows the encodings are tried on."""
TRIED_ROWS_FAST = 1_000
"""The same for files that are merged soon."""
_PAGE_BYTES = 2**24
LEVEL, ROLLUP_LEVEL, FAST_LEVEL = 18, 12, 3
"""Levels of zstd for samples, for roll-ups, and for files that are merged soon."""
_PLAIN = "PLAIN"
_DICTIONARY = "RLE_DICTIONARY"
_BYTE_STREAMS = "BYTE_STREAM_SPLIT"
_BY_TYPE: Mapping[pa.DataType, tuple[str, ...]] = {
    pa.int64(): (_DICTIONARY, "DELTA_BINARY_PACKED", _BYTE_STREAMS),
    pa.float64(): (_DICTIONARY, _BYTE_STREAMS, _PLAIN),
    pa.bool_(): (_PLAIN,),
}
_OPEN_BY_TYPE: Mapping[pa.DataType, tuple[str, ...]] = {
    **_BY_TYPE,
    pa.int64(): (_DICTIONARY, "DELTA_BINARY_PACKED"),
    pa.float64(): (_DICTIONARY, _PLAIN),
}
"""What every reader knows: some lack BYTE_STREAM_SPLIT, others have it for floats only."""


def write_parquet(
    path: Path,
    batches: pa.RecordBatchReader,
    *,
    level: int,
    is_open: bool = False,
) -> int:
    """Write batches to a file, through to the disk; return its bytes.

    Args:
        path: an existing empty file.
        batches: the rows in order, of any size.
        level: that of the compression.
        is_open: use only encodings that all programs read.
    """
    from pyarrow import parquet  # noqa: PLC0415 - 5 MiB, first needed after an hour

    schema = batches.schema
    rows = min(MAX_ROW_GROUP_ROWS, max(BATCH_ROWS, ROW_GROUP_VALUES // len(schema)))
    groups = _row_groups(batches, schema, rows)
    first = next(groups, schema.empty_table())
    tried_rows = TRIED_ROWS_FAST if level == FAST_LEVEL else TRIED_ROWS
    options = _options(first.slice(0, tried_rows), level=level, is_open=is_open)
    with path.open("wb") as file:
        with parquet.ParquetWriter(
            file,
            schema,
            write_statistics=_sorted_by(schema),
            # One page: each is compressed by itself.
            max_rows_per_page=rows,
            data_page_size=_PAGE_BYTES,
            **options,
        ) as writer:
            for group in chain([first], groups):
                writer.write_table(group, row_group_size=rows)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _sorted_by(schema: pa.Schema) -> list[str]:
    """Return the columns that readers skip row groups by; statistics of others take space only."""
    return [name for name in schema.names if name == TIME_COLUMN or name.startswith(tag_column(""))]


def _row_groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, size: int
) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= size:
            table = pa.Table.from_batches(pending, schema)
            full_rows = rows - rows % size
            for start in range(0, full_rows, size):
                yield table.slice(start, size)
            pending, rows = table.slice(full_rows).to_batches(), rows - full_rows
    if rows:
        yield pa.Table.from_batches(pending, schema)


def _options(first: pa.Table, *, level: int, is_open: bool) -> dict[str, object]:
    """Return the options of the writer: the encoding of each column, tried on some rows.

    The keys and values of maps are always encoded as streams of bytes, which are small.
    """
    by_type = _OPEN_BY_TYPE if is_open else _BY_TYPE
    encodings = {
        field.name: _smallest(first.select([field.name]), level, tried)
        for field in first.schema
        if (tried := _encodings(field.type, by_type))
    }
    maps = [field.name for field in first.schema if pa.types.is_map(field.type)]
    with_dictionary = [name for name in first.schema.names if name not in [*encodings, *maps]]
    with_dictionary += [name for name, encoding in encodings.items() if encoding == _DICTIONARY]
    others = {name: encoding for name, encoding in encodings.items() if encoding != _DICTIONARY}
    others |= {
        f"{name}.key_value.{part}": "DELTA_BINARY_PACKED" if is_open else _BYTE_STREAMS
        for name in maps
        for part in ("key", "value")
    }
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": with_dictionary,
        "column_encoding": others or None,
        "store_decimal_as_integer": True,
        "store_schema": False,
        "write_page_checksum": True,
    }


def _encodings(
    kind: pa.DataType, by_type: Mapping[pa.DataType, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the encodings to try; decimals are stored as integers."""
    return by_type.get(pa.int64() if pa.types.is_decimal(kind) else kind, ())


def _smallest(column: pa.Table, level: int, encodings: Iterable[str]) -> str:
    """Return the encoding that makes the smallest file of a column."""
    from pyarrow import parquet  # noqa: PLC0415 - as above

    (name,) = column.column_names
    sizes = {}
    for encoding in encodings:
        is_dictionary = encoding == _DICTIONARY
        sink = BytesIO()
        parquet.write_table(
            column,
            sink,
            compression="zstd",
            compression_level=level,
            use_dictionary=is_dictionary,
            store_decimal_as_integer=True,
            column_encoding=None if is_dictionary else {name: encoding},
        )
        sizes[encoding] = sink.tell()
    return min(sizes, key=sizes.__getitem__)
