"""From blocks to Arrow columns: what the writer inserts, and which points it refuses.

The blocks of one measurement, from however many senders, are first taken whole: those of one shape
are laid end to end, column by column. Only where that does not work is each block tried alone, and
only in a block that does not fit is every point looked at, so that one bad point costs its
neighbours nothing.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from timeseries.batch import Batch, Block
from timeseries.duckdb.schema import (
    MAX_COLUMNS,
    TIME_COLUMN,
    FieldType,
    Schema,
    Table,
    field_column,
    tag_column,
)
from timeseries.duckdb.vetting import measurement_fault, name_fault, point_fault, widened
from timeseries.points import FieldValue
from timeseries.store import IDENTITY_TAGS

Origin = tuple[int, int]
"""Which submission of the group a point came with, and its position in that batch."""

_Text = str | None
_Shape = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[type, ...], bool]

_ARROW_TYPES = {
    FieldType.FLOAT: pa.float64(),
    FieldType.INTEGER: pa.int64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.STRING: pa.string(),
}
_TYPE_CODES = {FieldType.FLOAT: "d", FieldType.INTEGER: "q"}
_FIELD_TYPES: dict[type, FieldType] = {
    float: FieldType.FLOAT,
    int: FieldType.INTEGER,
    bool: FieldType.BOOLEAN,
    str: FieldType.STRING,
}


@dataclass(frozen=True, slots=True)
class Part:
    """A block, the number of the submission that brought it, and the tags stamped over its own.

    Where it `is_stamped`, its own tags say already whose it is.
    """

    submission: int
    identity: Mapping[str, str]
    block: Block
    is_stamped: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """What to insert into one measurement's table.

    Attributes:
        table: what the table must look like first.
        data: Arrow columns named like the table's; None where no point was good.
        refused: origin to reason.
    """

    table: Table
    data: pa.Table | None
    refused: Mapping[Origin, str]


class _DoesNotFitError(Exception):
    """Something in the blocks can't be stored as it is."""


def parts_by_measurement(
    batches: Iterable[tuple[Batch, Mapping[str, str]]],
) -> dict[str, list[Part]]:
    """Return the blocks of some submissions (batch, identity) by measurement."""
    found: dict[str, list[Part]] = {}
    for submission, (batch, identity) in enumerate(batches):
        for block in batch.blocks:
            if len(block):
                part = Part(submission, identity, block, batch.is_stamped)
                found.setdefault(block.measurement, []).append(part)
    return found


def plan_insert(measurement: str, parts: Sequence[Part], *, schema: Schema) -> Insert:
    """Return what to insert for the blocks of one measurement."""
    table = schema.get(measurement, Table())
    fault = measurement_fault(measurement, schema)
    if fault is not None:
        return Insert(table, None, dict.fromkeys(_origins(parts), fault))
    try:
        return Insert(*_columns(parts, table), {})
    except _DoesNotFitError:
        good, refused = _sift(parts, table)
    if not good:
        return Insert(table, None, refused)
    try:
        return Insert(*_columns(good, table), refused)
    except _DoesNotFitError:
        # Better refused with a vague reason than delivered by its sender again and again.
        return Insert(table, None, refused | dict.fromkeys(_origins(good), "it can't be stored"))


def _origins(parts: Iterable[Part]) -> Iterable[Origin]:
    return ((part.submission, at) for part in parts for at in part.block.positions)


def _columns(parts: Sequence[Part], table: Table) -> tuple[Table, pa.Table]:
    """Return the table that the parts need, and their columns."""
    shapes: dict[_Shape, list[Part]] = {}
    for part in parts:
        block = part.block
        identity = tuple(part.identity)
        shape = (identity, block.tags, block.fields, block.kinds, part.is_stamped)
        shapes.setdefault(shape, []).append(part)
    after = _widened(table, shapes)
    batches = [_shape_columns(shape, some, after) for shape, some in shapes.items()]
    names = sorted(set(chain.from_iterable(batches)))
    types = {name: array.type for columns in batches for name, array in columns.items()}
    whole = pa.schema([(name, types[name]) for name in names])
    return after, pa.Table.from_batches([_record_batch(columns, whole) for columns in batches])


def _widened(table: Table, shapes: Iterable[_Shape]) -> Table:
    """Return the table with the columns that the shapes need; the first value types a field."""
    tags, fields = set(table.tags), dict(table.fields)
    for stamped, own, names, kinds, _ in shapes:
        tags.update(stamped, own)
        if not names:
            raise _DoesNotFitError
        for name, given in zip(names, kinds, strict=True):
            kind = _FIELD_TYPES.get(given)
            if kind is None:
                raise _DoesNotFitError
            known = fields.setdefault(name, kind)
            if known is not kind and (known, kind) != (FieldType.FLOAT, FieldType.INTEGER):
                raise _DoesNotFitError
    if len(tags) == len(table.tags) and len(fields) == len(table.fields):
        return table
    _check_names(table, tags, fields.keys())
    return Table(frozenset(tags), fields)


def _check_names(table: Table, tags: AbstractSet[str], names: AbstractSet[str]) -> None:
    new = [*(tags - table.tags), *(names - table.fields.keys())]
    if any(name_fault("it", name) for name in new):
        raise _DoesNotFitError
    if new and table.width + len(new) > MAX_COLUMNS:
        raise _DoesNotFitError


def _shape_columns(shape: _Shape, parts: Sequence[Part], table: Table) -> dict[str, pa.Array]:
    """Return the columns of the parts of one shape, laid end to end."""
    stamped, own, names, *_ = shape
    blocks = [part.block for part in parts]
    columns = {TIME_COLUMN: _numbers([block.times_ns for block in blocks], FieldType.INTEGER)}
    tag_set_of = _tag_set_of(blocks)
    for tag in dict.fromkeys((*IDENTITY_TAGS, *stamped, *own)):
        columns[tag_column(tag)] = _tag_column(_tag_values(parts, tag, own), tag_set_of)
    for index, name in enumerate(names):
        values = [block.values[index] for block in blocks]
        columns[field_column(name)] = _field_values(values, table.fields[name])
    if len({len(column) for column in columns.values()}) > 1:
        raise _DoesNotFitError
    return columns


def _tag_set_of(blocks: Sequence[Block]) -> pa.Array:
    """Return for each row its index among the tag sets of all blocks."""
    indices = array("i")
    before = 0
    for block in blocks:
        indices.extend([before + at for at in block.tag_set_of] if before else block.tag_set_of)
        before += len(block.tag_sets)
    return pa.Array.from_buffers(pa.int32(), len(indices), [None, pa.py_buffer(indices)])


def _tag_column(values: Sequence[_Text], tag_set_of: pa.Array) -> pa.Array:
    texts = _array(values, FieldType.STRING)
    if texts.null_count:
        # Dictionaries are made into one, and those that hold a null can't be.
        encoded = texts.dictionary_encode()
        texts, tag_set_of = encoded.dictionary, encoded.indices.take(tag_set_of)
    return pa.DictionaryArray.from_arrays(tag_set_of, texts, safe=False)


def _tag_values(parts: Sequence[Part], tag: str, own: Sequence[str]) -> list[_Text]:
    """Return a tag's value in each tag set of each part; None where it is absent."""
    is_claim = tag in IDENTITY_TAGS and not parts[0].is_stamped
    at = own.index(tag) if tag in own and not is_claim else None
    values: list[_Text] = []
    for part in parts:
        stamped = part.identity.get(tag)
        sets = part.block.tag_sets
        if stamped or at is None:
            values.extend([stamped or None] * len(sets))
        else:
            values.extend([one[at] or None for one in sets])
    return values


def _field_values(columns: Sequence[Sequence[FieldValue]], kind: FieldType) -> pa.Array:
    if kind not in _TYPE_CODES:
        return _array(_end_to_end(columns), kind)
    numbers = _numbers(columns, kind)
    if kind is FieldType.FLOAT and not _is_finite(numbers):
        raise _DoesNotFitError
    return numbers


def _is_finite(numbers: pa.Array) -> bool:
    # The sum tells most columns at once; that of large numbers can overflow.
    if math.isfinite(pc.sum(numbers).as_py() or 0.0):
        return True
    return bool(pc.all(pc.is_finite(numbers)).as_py())


def _numbers(columns: Sequence[Sequence[FieldValue]], kind: FieldType) -> pa.Array:
    try:
        return _wrapped(array(_TYPE_CODES[kind], _end_to_end(columns)), kind)  # type: ignore[type-var, arg-type]
    except (OverflowError, TypeError):
        raise _DoesNotFitError from None


def _wrapped(numbers: "array[float] | array[int]", kind: FieldType) -> pa.Array:
    """Return an Arrow array over the memory of an array of numbers."""
    # Several times faster than to hand Arrow a list.
    buffers = [None, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(_ARROW_TYPES[kind], len(numbers), buffers)


def _end_to_end(columns: Sequence[Sequence[FieldValue]]) -> Sequence[FieldValue]:
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


def _array(values: Sequence[FieldValue | None], kind: FieldType) -> pa.Array:
    try:
        return pa.array(values, type=_ARROW_TYPES[kind])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise _DoesNotFitError from None


def _record_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    rows = len(columns[TIME_COLUMN])
    arrays = [
        columns[name] if name in columns else pa.nulls(rows, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _sift(parts: Iterable[Part], table: Table) -> tuple[list[Part], dict[Origin, str]]:
    """Return the parts without the points that do not fit, and the reasons of those."""
    good: list[Part] = []
    refused: dict[Origin, str] = {}
    for part in parts:
        try:
            table, _ = _columns([part], table)
        except _DoesNotFitError:
            table, faults = _faults(part, table)
            refused |= {(part.submission, at): reason for at, reason in faults.items()}
            block = part.block.without(faults.keys())
            if len(block):
                good.append(replace(part, block=block))
        else:
            good.append(part)
    return good, refused


def _faults(part: Part, table: Table) -> tuple[Table, dict[int, str]]:
    """Look at each point of a part; return the table that the good ones need, and the faults."""
    block = part.block
    if not block.fields:
        return table, dict.fromkeys(block.positions, "it has no fields")
    faults: dict[int, str] = {}
    for position, point in zip(block.positions, block.points(), strict=True):
        fault = point_fault(point, part.identity, table)
        if fault is None:
            table = widened(table, point, part.identity)
        else:
            faults[position] = fault
    return table, faults
