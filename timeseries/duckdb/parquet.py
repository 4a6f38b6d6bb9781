"""Writing the Parquet files of segments: small, and through to the disk.

Which encoding is smallest depends on the values: counters and times have small differences, most
readings few distinct values, noise neither. So the first row group of each column is encoded in
each way that suits its type, and the smallest is used for the file. Compared with one encoding for
all columns of a type this saves nearly half; see decision 0033.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import chain
from pathlib import Path

import pyarrow as pa

ROW_GROUP_ROWS = 20_000
_COMPRESSION, _LEVEL = "zstd", 9
_PLAIN = "PLAIN"
_DICTIONARY = "RLE_DICTIONARY"
_BY_TYPE: Mapping[pa.DataType, tuple[str, ...]] = {
    pa.int64(): (_DICTIONARY, "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    pa.float64(): (_DICTIONARY, "BYTE_STREAM_SPLIT", _PLAIN),
    pa.bool_(): (_PLAIN,),
}


def write_parquet(path: Path, batches: pa.RecordBatchReader) -> int:
    """Write batches to a file, through to the disk; return its bytes.

    Args:
        path: an existing empty file.
        batches: the rows in order, of any size.
    """
    from pyarrow import parquet  # noqa: PLC0415 - 5 MiB, first needed after an hour

    schema = batches.schema
    groups = _row_groups(batches, schema)
    first = next(groups, schema.empty_table())
    with path.open("wb") as file:
        with parquet.ParquetWriter(file, schema, **_options(first)) as writer:
            for group in chain([first], groups):
                writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            table = pa.Table.from_batches(pending, schema)
            whole = rows - rows % ROW_GROUP_ROWS
            for start in range(0, whole, ROW_GROUP_ROWS):
                yield table.slice(start, ROW_GROUP_ROWS)
            pending, rows = table.slice(whole).to_batches(), rows - whole
    if rows:
        yield pa.Table.from_batches(pending, schema)


def _options(first: pa.Table) -> dict[str, object]:
    """Return the options of the writer: the encoding of each column, tried on some rows."""
    encodings = {name: _smallest(first.select([name])) for name in _flat_columns(first.schema)}
    with_dictionary = [name for name in first.schema.names if name not in encodings]
    with_dictionary += [name for name, encoding in encodings.items() if encoding == _DICTIONARY]
    others = {name: one for name, one in encodings.items() if one != _DICTIONARY}
    return {
        "compression": _COMPRESSION,
        "compression_level": _LEVEL,
        "use_dictionary": with_dictionary,
        "column_encoding": others or None,
        "store_decimal_as_integer": True,
        "store_schema": False,
    }


def _flat_columns(schema: pa.Schema) -> Iterator[str]:
    yield from (field.name for field in schema if _encodings(field.type))


def _encodings(kind: pa.DataType) -> tuple[str, ...]:
    """Return the encodings to try; decimals are stored as integers."""
    return _BY_TYPE.get(pa.int64() if pa.types.is_decimal(kind) else kind, ())


def _smallest(column: pa.Table) -> str:
    """Return the encoding that makes the smallest file of a column."""
    from pyarrow import parquet  # noqa: PLC0415 - as above

    (name,) = column.column_names
    sizes = {}
    for encoding in _encodings(column.schema.field(name).type):
        is_dictionary = encoding == _DICTIONARY
        sink = BytesIO()
        parquet.write_table(
            column,
            sink,
            compression=_COMPRESSION,
            compression_level=_LEVEL,
            use_dictionary=is_dictionary,
            store_decimal_as_integer=True,
            column_encoding=None if is_dictionary else {name: encoding},
        )
        sizes[encoding] = sink.tell()
    return min(sizes, key=sizes.__getitem__)
