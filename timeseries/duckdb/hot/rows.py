"""Rows to insert: checked values in arrays, which are cheap to keep, to write and to concatenate.

`rows_of` checks a block and packs its numbers; a value of the staging table has their bytes.
`arrow_table` makes Arrow columns for DuckDB of the rows of any number of blocks at once.

Parsing and planning an INSERT costs several times as much as running it for the points of a few
senders, so each set of columns has a prepared statement that reads whatever is passed to it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, groupby
from math import isfinite
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from timeseries.duckdb.schema import TIME_COLUMN, Table, field_column, quoted, tag_column
from timeseries.points import Block, FieldValue
from timeseries.store import IDENTITY_TAGS
from timeseries.validation import FieldType

MAX_STATEMENTS = 256
_CODES = {FieldType.FLOAT: "d", FieldType.INTEGER: "q", FieldType.BOOLEAN: "b"}
_TEXT = "s"
_KINDS: dict[str, type] = {"d": float, "q": int, "b": bool, _TEXT: str}
_ARROW_TYPES = {
    FieldType.FLOAT: pa.float64(),
    FieldType.INTEGER: pa.int64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.STRING: pa.string(),
}
_FEW = 256
"""With fewer values NumPy is slower than Python."""
_CODEC, _SIZE = "snappy", Struct("<Q")
Values: TypeAlias = "array[Any] | list[str]"


class InvalidBlockError(Exception):
    """A block has something that can't be stored."""


class Rows(NamedTuple):
    """Points of one shape.

    Attributes:
        tags: the tag names.
        tag_values: a column of values for each tag, one for each tag set; "" where there is none.
        tag_set_of: the index of each point's tag set (`i`).
        fields: the field names.
        values: a column for each field: float (`d`), integer (`q`), boolean (`b`), or texts.
        times_ns: the time of each point, in nanoseconds since the epoch (`q`).
    """

    tags: tuple[str, ...]
    tag_values: Sequence[Sequence[str]]
    tag_set_of: "array[int]"
    fields: tuple[str, ...]
    values: Sequence[Values]
    times_ns: "array[int]"

    @property
    def kinds(self) -> tuple[type, ...]:
        """The type of each field, as in a block."""
        return tuple([_KINDS[_code(column)] for column in self.values])


# On disk: as Rows, but numbers are bytes, and each column of values has its type code.
_Stored = tuple[list[str], list[list[str]], bytes, list[str], list[tuple[str, Any]], bytes]
_decoder = msgspec.msgpack.Decoder(list[_Stored])


def rows_of(
    block: Block, identity: Mapping[str, str], table: Table, *, is_stamped: bool = False
) -> Rows:
    """Return the rows of a block.

    Args:
        block: points whose fields and tags the table has.
        identity: tags that replace those of the block.
        table: gives the types of the fields.
        is_stamped: whether the block's own identity tags count.

    Raises:
        InvalidBlockError: a value can't be stored.
    """
    tags = _tags(block, identity, is_stamped=is_stamped)
    values = [
        _packed(column, table.fields[name])
        for name, column in zip(block.fields, block.values, strict=True)
    ]
    times_ns = _packed_numbers(block.times_ns, "q")
    lengths = {len(times_ns), len(block.tag_set_of), *map(len, values)}
    if len(lengths) > 1:
        raise InvalidBlockError
    return Rows(
        tuple(tags),
        [_checked(texts) for texts in tags.values()],
        array("i", block.tag_set_of),
        block.fields,
        values,
        times_ns,
    )


def _tags(
    block: Block, identity: Mapping[str, str], *, is_stamped: bool
) -> dict[str, Sequence[str]]:
    """Return the values of each tag by tag set; "" where a set has none."""
    columns = zip(*block.tag_sets, strict=True) if block.tags else ()
    tags: dict[str, Sequence[str]] = dict(zip(block.tags, columns, strict=True))
    count = len(block.tag_sets)
    if not is_stamped:
        tags = {tag: texts for tag, texts in tags.items() if tag not in IDENTITY_TAGS}
    for tag in (*IDENTITY_TAGS, *identity):
        if identity.get(tag) or tag not in tags:
            tags[tag] = [identity.get(tag) or ""] * count
    return tags


def _packed(column: Sequence[FieldValue], kind: FieldType) -> Values:
    if kind is FieldType.STRING:
        return _checked(column)
    if kind is FieldType.BOOLEAN and set(map(type, column)) != {bool}:
        raise InvalidBlockError
    numbers = _packed_numbers(column, _CODES[kind])
    # The sum of large numbers may be infinite.
    is_known = kind is not FieldType.FLOAT or (len(numbers) < _FEW and isfinite(sum(numbers)))
    if not is_known and not np.isfinite(numbers).all():
        raise InvalidBlockError
    return numbers


def _packed_numbers(column: Sequence[FieldValue], code: str) -> "array[Any]":
    if code == "d" and isinstance(column, array):
        return array(code, np.array(column, dtype=np.float64).tobytes())
    try:
        return array(code, column)
    except (OverflowError, TypeError):
        raise InvalidBlockError from None


def _checked(texts: Sequence[Any]) -> list[str]:
    try:
        "".join(texts).encode()
    except (TypeError, UnicodeEncodeError):
        raise InvalidBlockError from None
    return list(texts)


def _code(column: Values) -> str:
    return column.typecode if isinstance(column, array) else _TEXT


def oldest_ns(rows: Iterable[Rows]) -> int:
    """Return the oldest time of some rows, in nanoseconds since the epoch."""
    return min(
        min(chunk.times_ns)
        if len(chunk.times_ns) < _FEW
        else int(np.frombuffer(chunk.times_ns, dtype=np.int64).min())
        for chunk in rows
    )


def serialize(rows: Sequence[Rows]) -> bytes:
    """Return rows as one value for the staging table: its size, then the compressed MessagePack.

    It takes a third of the room, so the log is full, and checkpointed, less often.
    """
    packed = msgspec.msgpack.encode(
        [
            (
                *chunk[:2],
                memoryview(chunk.tag_set_of),
                chunk.fields,
                [
                    (_code(column), memoryview(column) if isinstance(column, array) else column)
                    for column in chunk.values
                ],
                memoryview(chunk.times_ns),
            )
            for chunk in rows
        ]
    )
    compressed: bytes = pa.compress(packed, codec=_CODEC, asbytes=True)
    return _SIZE.pack(len(packed)) + compressed


def deserialize(value: bytes) -> list[Rows]:
    """Return the rows of a value made by `serialize`."""
    (size,) = _SIZE.unpack_from(value)
    packed = pa.decompress(value[_SIZE.size :], size, codec=_CODEC, asbytes=True)
    return [
        Rows(
            tuple(tags),
            tag_values,
            array("i", tag_set_of),
            tuple(fields),
            [column if code == _TEXT else array(code, column) for code, column in values],
            array("q", times_ns),
        )
        for tags, tag_values, tag_set_of, fields, values, times_ns in _decoder.decode(packed)
    ]


def arrow_table(rows: Sequence[Rows], table: Table, *, is_ordered: bool = False) -> pa.Table:
    """Return rows as Arrow columns, named and typed as those of the table, which has them all.

    Unless `is_ordered`, those of one shape come together, which takes less time.
    """
    if is_ordered:
        alike = [list(group) for _, group in groupby(rows, key=_shape)]
    else:
        shapes: dict[tuple[object, ...], list[Rows]] = {}
        for chunk in rows:
            shapes.setdefault(_shape(chunk), []).append(chunk)
        alike = list(shapes.values())
    batches = [_shape_columns(group, table) for group in alike]
    names = sorted(set(chain.from_iterable(batches)))
    types = {name: column.type for columns in batches for name, column in columns.items()}
    schema = pa.schema([(name, types[name]) for name in names])
    return pa.Table.from_batches([_record_batch(columns, schema) for columns in batches])


def _shape(rows: Rows) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return rows.tags, rows.fields


def _shape_columns(rows: Sequence[Rows], table: Table) -> dict[str, pa.Array]:
    """Return the columns of rows of one shape, concatenated."""
    first = rows[0]
    columns = {TIME_COLUMN: _numbers([chunk.times_ns for chunk in rows], FieldType.INTEGER)}
    tag_set_of = _tag_set_of(rows)
    for index, tag in enumerate(first.tags):
        texts = list(chain.from_iterable([chunk.tag_values[index] for chunk in rows]))
        columns[tag_column(tag)] = _tag_column(texts, tag_set_of)
    for index, name in enumerate(first.fields):
        values = [chunk.values[index] for chunk in rows]
        columns[field_column(name)] = _field_values(values, table.fields[name])
    return columns


def _tag_set_of(rows: Sequence[Rows]) -> pa.Array:
    """Return for each row its index in the tag sets of all."""
    starts = np.cumsum([0, *[len(chunk.tag_values[0]) for chunk in rows[:-1]]], dtype=np.int32)
    lengths = [len(chunk.tag_set_of) for chunk in rows]
    indices = np.frombuffer(b"".join([chunk.tag_set_of for chunk in rows]), dtype=np.int32)
    return pa.array(indices + np.repeat(starts, lengths))


def _tag_column(values: Sequence[str], tag_set_of: pa.Array) -> pa.Array:
    if "" not in values:
        return pa.DictionaryArray.from_arrays(tag_set_of, pa.array(values, pa.string()), safe=False)
    texts = pa.array([text or None for text in values], pa.string())
    if texts.null_count == len(texts):
        texts, tag_set_of = texts.slice(0, 0), pa.nulls(len(tag_set_of), tag_set_of.type)
    else:
        # Dictionaries are unified later, which fails with a null in one.
        encoded = texts.dictionary_encode()
        texts, tag_set_of = encoded.dictionary, encoded.indices.take(tag_set_of)
    return pa.DictionaryArray.from_arrays(tag_set_of, texts, safe=False)


def _field_values(columns: Sequence[Values], kind: FieldType) -> pa.Array:
    if kind is FieldType.STRING:
        return pa.array(list(chain.from_iterable(columns)), pa.string())
    return _numbers(columns, kind)


def _numbers(columns: Sequence[Any], kind: FieldType) -> pa.Array:
    """Return numbers as an Arrow array that shares their memory."""
    code = _CODES[kind]
    joined = columns[0] if len(columns) == 1 else b"".join(columns)
    if any(column.typecode != code for column in columns):
        joined = array(code, chain.from_iterable(columns))
    if kind is FieldType.BOOLEAN:
        return pa.array(np.frombuffer(joined, dtype=np.bool_))
    count = sum(map(len, columns))
    return pa.Array.from_buffers(_ARROW_TYPES[kind], count, [None, pa.py_buffer(joined)])


def _record_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    count = len(columns[TIME_COLUMN])
    arrays = [
        columns[name] if name in columns else pa.nulls(count, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Inserter:
    """Inserts through one cursor, which nothing else uses at the same time."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._cursor = cursor
        self._statements: dict[tuple[object, ...], tuple[str, _Incoming]] = {}
        self._numbers = count()

    def insert(self, table: str, data: pa.Table) -> None:
        """Insert rows, whose columns are named as those of the table."""
        key = (table, *zip(data.column_names, data.schema.types, strict=True))
        if key not in self._statements:
            if len(self._statements) >= MAX_STATEMENTS:
                self.clear()
            self._statements[key] = self._prepare(table, data)
        name, incoming = self._statements[key]
        incoming.data = data
        try:
            self._cursor.execute(f"EXECUTE {name}")
        finally:
            incoming.data = data.slice(0, 0)

    def clear(self) -> None:
        """Drop every statement: a rollback may have dropped some of them."""
        for name, _ in self._statements.values():
            for drop in (f"DEALLOCATE {name}", f"DROP VIEW IF EXISTS {_view(name)}"):
                with suppress(duckdb.Error):
                    self._cursor.execute(drop)
        self._statements.clear()

    def _prepare(self, table: str, data: pa.Table) -> "tuple[str, _Incoming]":
        name = f"insert_{next(self._numbers)}"
        incoming = _Incoming(data)
        self._cursor.register(_view(name), incoming)
        columns = ", ".join(map(quoted, data.column_names))
        self._cursor.execute(
            f"PREPARE {name} AS INSERT INTO {quoted(table)} ({columns}) "  # noqa: S608 - ours
            f"SELECT {columns} FROM {_view(name)}"
        )
        return name, incoming


class _Incoming:
    """The input of a prepared statement: `data` at the time it runs."""

    def __init__(self, data: pa.Table) -> None:
        self.data = data

    def __arrow_c_schema__(self) -> object:
        return self.data.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.data.__arrow_c_stream__(requested_schema)


def _view(name: str) -> str:
    return f"incoming_for_{name}"
