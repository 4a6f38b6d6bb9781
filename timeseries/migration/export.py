"""Exporting the samples of a measurement as Parquet or CSV, in pieces of bounded size.

A row is a point: its time, tags and fields, oldest first. A missing tag or field is null in Parquet
and empty in CSV. Text that a spreadsheet would interpret as a formula starts with an apostrophe in
CSV.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from io import RawIOBase
from typing import TYPE_CHECKING

import pyarrow as pa

from core.csv_cells import FORMULA_STARTS, guarded
from core.errors import NotFoundError
from timeseries.points import Batch, Block
from timeseries.store import ScanQuery, Store, chunks

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetWriter

TIME = "time"
_MIN_ROWS = 50_000
_FORMULA = f"^([{re.escape(''.join(FORMULA_STARTS))}])"
_TIME_TYPE = pa.timestamp("ns", tz="UTC")
_TYPES = {
    "float": pa.float64(),
    "integer": pa.int64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}


class ExportFormat(StrEnum):
    """The file format of an export."""

    PARQUET = "parquet"
    CSV = "csv"

    @property
    def media_type(self) -> str:
        """The media type of the format."""
        if self is ExportFormat.CSV:
            return "text/csv; charset=utf-8"
        return "application/vnd.apache.parquet"


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an export, with the tag or field of each.

    A field with the name of a tag, or `time`, becomes `field_<name>`; a tag `time` becomes
    `tag_time`.
    """

    schema: pa.Schema
    tags: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of the file, and how many rows are written so far."""

    data: bytes
    rows: int


def layout_of(store: Store, measurement: str, *, tenants: tuple[str, ...] | None) -> Layout:
    """Return the columns of an export of these tenants' samples.

    Raises:
        NotFoundError: the store has no such measurement.
    """
    fields = store.fields(measurement, tenants=tenants)
    if not fields:
        raise NotFoundError.of("measurement", measurement)
    tags = store.tags(measurement, tenants=tenants)
    reserved = {TIME, *tags}
    columns = [pa.field(TIME, _TIME_TYPE, nullable=False)]
    columns += [pa.field("tag_time" if tag == TIME else tag, pa.string()) for tag in tags]
    columns += [
        pa.field(f"field_{name}" if name in reserved else name, _TYPES[kind])
        for name, kind in fields.items()
    ]
    return Layout(pa.schema(columns), tuple(tags), tuple(fields))


def export(store: Store, query: ScanQuery, file_format: ExportFormat) -> Iterator[Piece]:
    """Yield a file with the points of a scan, in pieces.

    Raises:
        NotFoundError: the store has no such measurement; raised before the first piece.
    """
    layout = layout_of(store, query.measurement, tenants=query.tenants)
    return _pieces(_tables(store, query, layout), layout, file_format)


def _pieces(
    tables: Iterator[pa.Table], layout: Layout, file_format: ExportFormat
) -> Iterator[Piece]:
    sink = _Sink()
    writer = _CSVWriter(sink, layout) if file_format is ExportFormat.CSV else _parquet(sink, layout)
    rows = 0
    with writer:
        for table in tables:
            writer.write_table(table)
            rows += table.num_rows
            yield Piece(sink.take(), rows)
    yield Piece(sink.take(), rows)


def _tables(store: Store, query: ScanQuery, layout: Layout) -> Iterator[pa.Table]:
    """Yield tables that are large enough for a row group."""
    extent = store.extent(query)
    waiting: list[pa.Table] = []
    for chunk in chunks(query, extent) if extent else ():
        for batch in store.scan(chunk):
            if len(batch):
                waiting.append(_table(batch, layout))
            if sum(table.num_rows for table in waiting) >= _MIN_ROWS:
                yield pa.concat_tables(waiting)
                waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting)


def _table(batch: Batch, layout: Layout) -> pa.Table:
    parts = [_columns(block, layout) for block in batch.blocks if len(block)]
    return pa.concat_tables(pa.table(part, schema=layout.schema) for part in parts).sort_by(TIME)


def _columns(block: Block, layout: Layout) -> list[pa.Array]:
    rows = len(block)
    which = pa.array(block.tag_set_of, pa.int32())
    columns = [pa.array(block.times_ns, pa.int64()).cast(_TIME_TYPE)]
    for tag in layout.tags:
        if tag in block.tags:
            index = block.tags.index(tag)
            values = pa.array([tag_set[index] or None for tag_set in block.tag_sets], pa.string())
            columns.append(values.take(which))
        else:
            columns.append(pa.nulls(rows, pa.string()))
    types = layout.schema.types[1 + len(layout.tags) :]
    for name, kind in zip(layout.fields, types, strict=True):
        if name in block.fields:
            columns.append(pa.array(block.values[block.fields.index(name)], kind))
        else:
            columns.append(pa.nulls(rows, kind))
    return columns


def _parquet(sink: "_Sink", layout: Layout) -> "ParquetWriter":
    from pyarrow import parquet  # noqa: PLC0415 - 5 MiB that servers without exports save

    return parquet.ParquetWriter(sink, layout.schema, compression="zstd")


class _CSVWriter:
    """CSV with a header, RFC 3339 times to the nanosecond, and no text that is a formula."""

    def __init__(self, sink: "_Sink", layout: Layout) -> None:
        from pyarrow import csv  # noqa: PLC0415 - as above

        schema = layout.schema.set(0, pa.field(TIME, pa.string(), nullable=False))
        self._schema = pa.schema([field.with_name(guarded(field.name)) for field in schema])
        self._writer = csv.CSVWriter(sink, self._schema)

    def __enter__(self) -> "_CSVWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write_table(self, table: pa.Table) -> None:
        """Append the rows of a table."""
        import pyarrow.compute as pc  # noqa: PLC0415 - 8 MiB

        stamps = pc.binary_join_element_wise(
            pc.strftime(table[TIME], format="%Y-%m-%dT%H:%M:%S"), pa.scalar("Z"), pa.scalar("")
        )
        columns = [
            pc.replace_substring_regex(column, pattern=_FORMULA, replacement=r"'\1")
            if pa.types.is_string(column.type)
            else column
            for column in table.columns[1:]
        ]
        self._writer.write_table(pa.table([stamps, *columns], schema=self._schema))


class _Sink(RawIOBase):
    """A write-only file that returns what was written since the last call of `take`."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object, /) -> int:
        """Store a copy of the bytes."""
        part = bytes(memoryview(data))  # type: ignore[arg-type] # pyarrow gives bytes or a buffer
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data
