"""Planning an insert: from blocks of points to Arrow columns, and the points to reject.

All blocks of one measurement, from any number of senders, are first tried at once: blocks of one
shape are concatenated column by column. Only if that fails is each block tried alone, and only in
a block that fails is every point checked, so that one bad point does not affect its neighbors.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa

from timeseries.declared import DECLARED
from timeseries.duckdb.schema import (
    MAX_COLUMNS,
    MAX_MEASUREMENTS,
    NUMBERS,
    TIME_COLUMN,
    Key,
    Schema,
    Table,
    common_type,
    field_column,
    tag_column,
)
from timeseries.lineprotocol_grammar import MAX_INT64, MAX_UINT64, MIN_INT64
from timeseries.points import Batch, Block, FieldValue, Point
from timeseries.store import IDENTITY_TAGS, TENANT_TAG, RejectedPoint
from timeseries.validation import (
    FIELD_TYPES,
    FieldType,
    name_error,
    text_error,
    type_conflict,
    value_error,
)
from timeseries.write_queue import Submission

Origin = tuple[int, int]
"""The submission of the group that a point is from, and its position in that batch."""
_Text = str | None
_Shape = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[type, ...], bool]
_ARROW_TYPES = {
    FieldType.FLOAT: pa.float64(),
    FieldType.INTEGER: pa.int64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.STRING: pa.string(),
}
# Every program that is not ours sends it.
SHARED_TAGS = frozenset({*IDENTITY_TAGS, "host"})
_FEW = 256
_TYPE_CODES = {FieldType.FLOAT: "d", FieldType.INTEGER: "q"}


@dataclass(frozen=True, slots=True)
class Part:
    """A block, the index of its submission, and the identity tags that replace its own.

    If it `is_stamped`, its own tags already have the verified identity.
    """

    submission: int
    identity: Mapping[str, str]
    block: Block
    is_stamped: bool = False


@dataclass(frozen=True, slots=True)
class InsertPlan:
    """What to insert into one measurement's table.

    Attributes:
        table: the table that the insert needs.
        data: Arrow columns named like the table's; None if no point is valid.
        rejected: origin to reason.
    """

    table: Table
    data: pa.Table | None
    rejected: Mapping[Origin, str]


class _InvalidBlockError(Exception):
    """A block has something that can't be stored."""


def parts_by_key(batches: Iterable[tuple[Batch, Mapping[str, str]]]) -> dict[Key, list[Part]]:
    """Return the blocks of some submissions (batch, identity) by the table that they go to."""
    found: dict[Key, list[Part]] = {}
    for submission, (batch, identity) in enumerate(batches):
        for whole in batch.blocks:
            for owner, block in _by_owner(whole, identity, is_stamped=batch.is_stamped):
                part = Part(submission, identity, block, batch.is_stamped)
                found.setdefault(Key(owner, block.measurement), []).append(part)
    return found


def _by_owner(
    block: Block, identity: Mapping[str, str], *, is_stamped: bool
) -> Iterator[tuple[str, Block]]:
    """Yield a block with its owner; one of several tenants in parts, unless all share its table."""
    if not len(block):
        return
    if is_declared(block.measurement, block.tags, block.fields):
        yield "", block
    elif not is_stamped or TENANT_TAG in identity or TENANT_TAG not in block.tags:
        yield identity.get(TENANT_TAG, ""), block
    else:
        at = block.tags.index(TENANT_TAG)
        rows: dict[str, list[int]] = {}
        for row, tag_set in enumerate(block.tag_set_of):
            rows.setdefault(block.tag_sets[tag_set][at], []).append(row)
        for owner, some in rows.items():
            yield owner, block if len(rows) == 1 else block.select(some)


@lru_cache(maxsize=4_096)
def is_declared(measurement: str, tags: tuple[str, ...], fields: tuple[str, ...]) -> bool:
    """Return whether all names are declared metrics, whose samples share a table."""
    declared = DECLARED.get(measurement)
    return (
        declared is not None
        and declared.fields.issuperset(fields)
        and declared.tags.issuperset(set(tags).difference(SHARED_TAGS))
    )


def plan_insert(key: Key, parts: Sequence[Part], *, schema: Schema) -> InsertPlan:
    """Return what to insert for the blocks of one table."""
    table = schema.get(key, Table())
    error = measurement_error(key, schema)
    if error is not None:
        return InsertPlan(table, None, dict.fromkeys(_origins(parts), error))
    try:
        return InsertPlan(*_columns(parts, table), {})
    except _InvalidBlockError:
        good, rejected = _filter_valid(parts, table)
    if not good:
        return InsertPlan(table, None, rejected)
    try:
        return InsertPlan(*_columns(good, table), rejected)
    except _InvalidBlockError:
        # A vague reason is better than a sender that retries forever.
        return InsertPlan(
            table, None, rejected | dict.fromkeys(_origins(good), "it can't be stored")
        )


def _origins(parts: Iterable[Part]) -> Iterable[Origin]:
    return ((part.submission, at) for part in parts for at in part.block.positions)


def _columns(parts: Sequence[Part], table: Table) -> tuple[Table, pa.Table]:
    """Return the table that the parts need, and their columns in it."""
    shapes: dict[_Shape, list[Part]] = {}
    for part in parts:
        block = part.block
        identity = tuple(part.identity)
        shape = (identity, block.tags, block.fields, block.kinds, part.is_stamped)
        shapes.setdefault(shape, []).append(part)
    after = _widened(table, shapes, parts[0].block.measurement)
    batches = [_shape_columns(shape, some, after) for shape, some in shapes.items()]
    names = sorted(set(chain.from_iterable(batches)))
    types = {name: array.type for columns in batches for name, array in columns.items()}
    whole = pa.schema([(name, types[name]) for name in names])
    return after, pa.Table.from_batches([_record_batch(columns, whole) for columns in batches])


def _widened(table: Table, shapes: Iterable[_Shape], measurement: str) -> Table:
    """Return the table with the columns that the shapes need.

    The first value types a field, and a float makes it one of floats.
    """
    tags, fields = set(table.tags), dict(table.fields)
    for stamped, own, names, kinds, _ in shapes:
        tags.update(stamped, own)
        if not names:
            raise _InvalidBlockError
        for name, given in zip(names, kinds, strict=True):
            kind = FIELD_TYPES.get(given)
            if kind is None:
                raise _InvalidBlockError
            if is_number(measurement, name):
                if kind is FieldType.STRING:
                    raise _InvalidBlockError
                kind = FieldType.FLOAT
            known = fields.setdefault(name, kind)
            if known is not kind:
                if not {known, kind} <= NUMBERS:
                    raise _InvalidBlockError
                fields[name] = FieldType.FLOAT
    if len(tags) == len(table.tags) and fields == table.fields:
        return table
    _check_names(table, tags, fields.keys())
    return Table(frozenset(tags), fields)


def _check_names(table: Table, tags: AbstractSet[str], names: AbstractSet[str]) -> None:
    new = [*(tags - table.tags), *(names - table.fields.keys())]
    if any(name_error("it", name) for name in new):
        raise _InvalidBlockError
    if new and table.width + len(new) > MAX_COLUMNS:
        raise _InvalidBlockError


def _shape_columns(shape: _Shape, parts: Sequence[Part], table: Table) -> dict[str, pa.Array]:
    """Return the columns of all parts of one shape, concatenated."""
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
        raise _InvalidBlockError
    return columns


def _tag_set_of(blocks: Sequence[Block]) -> pa.Array:
    """Return for each row its index in the tag sets of all blocks."""
    indices = array("i")
    before = 0
    for block in blocks:
        indices.extend([before + at for at in block.tag_set_of] if before else block.tag_set_of)
        before += len(block.tag_sets)
    return pa.Array.from_buffers(pa.int32(), len(indices), [None, pa.py_buffer(indices)])


def _tag_column(values: Sequence[_Text], tag_set_of: pa.Array) -> pa.Array:
    texts = _array(values, FieldType.STRING)
    if texts.null_count == len(texts):
        texts, tag_set_of = texts.slice(0, 0), pa.nulls(len(tag_set_of), tag_set_of.type)
    elif texts.null_count:
        # Dictionaries are unified later, which fails with a null in one.
        encoded = texts.dictionary_encode()
        texts, tag_set_of = encoded.dictionary, encoded.indices.take(tag_set_of)
    return pa.DictionaryArray.from_arrays(tag_set_of, texts, safe=False)


def _tag_values(parts: Sequence[Part], tag: str, own: Sequence[str]) -> list[_Text]:
    """Return a tag's value in each tag set of each part, or None."""
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
        return _array(_concatenate(columns), kind)
    return _numbers(columns, kind)


def _numbers(columns: Sequence[Sequence[FieldValue]], kind: FieldType) -> pa.Array:
    """Return numbers as an Arrow array that shares the memory of one of Python: several times
    faster than from a list.
    """
    try:
        numbers: array[Any] = array(_TYPE_CODES[kind], _concatenate(columns))
    except (OverflowError, TypeError):
        raise _InvalidBlockError from None
    # The sum of few is cheaper than NumPy; that of large numbers may be infinite.
    is_known = len(numbers) < _FEW and isfinite(sum(numbers))
    if kind is FieldType.FLOAT and not is_known and not np.isfinite(numbers).all():
        raise _InvalidBlockError
    buffers = [None, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(_ARROW_TYPES[kind], len(numbers), buffers)


def _concatenate(columns: Sequence[Sequence[FieldValue]]) -> Sequence[FieldValue]:
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))


def _array(values: Sequence[FieldValue | None], kind: FieldType) -> pa.Array:
    try:
        return pa.array(values, type=_ARROW_TYPES[kind])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise _InvalidBlockError from None


def _record_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    rows = len(columns[TIME_COLUMN])
    arrays = [
        columns[name] if name in columns else pa.nulls(rows, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _filter_valid(parts: Iterable[Part], table: Table) -> tuple[list[Part], dict[Origin, str]]:
    """Return the parts without invalid points, and the reasons to reject those."""
    good: list[Part] = []
    rejected: dict[Origin, str] = {}
    for part in parts:
        try:
            table, _ = _columns([part], table)
        except _InvalidBlockError:
            table, errors = _check_points(part, table)
            rejected |= {(part.submission, at): reason for at, reason in errors.items()}
            block = part.block.without(errors.keys())
            if len(block):
                good.append(replace(part, block=block))
        else:
            good.append(part)
    return good, rejected


def _check_points(part: Part, table: Table) -> tuple[Table, dict[int, str]]:
    """Check each point of a part; return the table that the valid ones need, and the errors."""
    block = part.block
    if not block.fields:
        return table, dict.fromkeys(block.positions, "it has no fields")
    errors: dict[int, str] = {}
    for position, point in zip(block.positions, block.points(), strict=True):
        error = point_error(point, part.identity, table)
        if error is None:
            table = _widen_for_point(table, point, part.identity)
        else:
            errors[position] = error
    return table, errors


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to write for a group of submissions.

    Attributes:
        columns: the rows to insert, by table.
        schema: the tables that the insert needs.
        rejected: the rejected points of each submission, by position.
    """

    columns: Mapping[Key, pa.Table]
    schema: Schema
    rejected: Sequence[list[RejectedPoint]]

    @property
    def points(self) -> int:
        """How many points to write."""
        return sum(data.num_rows for data in self.columns.values())


def plan_group(submissions: Sequence[Submission], *, schema: Schema) -> GroupPlan:
    """Plan the insert of some submissions into the tables of `schema`."""
    rejected: list[list[RejectedPoint]] = [[] for _ in submissions]
    columns, after = {}, dict(schema)
    parts = parts_by_key((one.batch, one.identity) for one in submissions)
    for key, some in parts.items():
        insert = plan_insert(key, some, schema=after)
        for (submission, position), reason in insert.rejected.items():
            rejected[submission].append(RejectedPoint(position, reason))
        if insert.data is not None:
            columns[key], after[key] = insert.data, insert.table
    for answer in rejected:
        answer.sort(key=lambda point: point.position)
    return GroupPlan(columns, after, rejected)


def measurement_error(key: Key, schema: Schema) -> str | None:
    """Return why no point of this measurement can be stored."""
    error = name_error(f"measurement {key.measurement!r}", key.measurement)
    if error is not None or key in schema or not key.owner:
        return error
    if sum(known.owner == key.owner for known in schema) >= MAX_MEASUREMENTS:
        return (
            f"measurement {key.measurement!r} is new and the tenant already has "
            f"{MAX_MEASUREMENTS}; put the part of the name that varies into a tag"
        )
    return None


def point_error(point: Point, identity: Mapping[str, str], table: Table) -> str | None:
    """Return why a point can't be stored in the table of its measurement."""
    if not point.fields:
        return "it has no fields"
    if not MIN_INT64 <= point.time_ns <= MAX_INT64:
        return f"its time {point.time_ns} ns is out of the range of 64 bits"
    for tag, tag_value in {**point.tags, **identity}.items():
        what = f"tag {tag!r}"
        if error := name_error(what, tag) or text_error(what, tag_value):
            return error
    for name, value in point.fields.items():
        if error := name_error(f"field {name!r}", name) or _field_error(
            point.measurement, name, value, table
        ):
            return error
    if _widen_for_point(table, point, identity).width > MAX_COLUMNS:
        return f"{point.measurement!r} would have over {MAX_COLUMNS} tags and fields"
    return None


def _field_error(measurement: str, name: str, value: FieldValue, table: Table) -> str | None:
    given = FIELD_TYPES.get(type(value))
    if given is None:
        return f"field {name!r} is {value!r}, which is not a number, boolean or text"
    if is_number(measurement, name) and given is FieldType.STRING:
        return (
            f"field {name!r} is {value!r}, but {measurement}.{name} is declared as a number "
            "(see docs/metrics.md); send a number, or choose another name"
        )
    if is_number(measurement, name) and given is FieldType.BOOLEAN:
        return None
    stored = table.fields.get(name, given)
    if stored is FieldType.FLOAT and type(value) is int and MIN_INT64 <= value <= MAX_UINT64:
        return None
    if given is stored or {given, stored} <= NUMBERS:
        return value_error(name, value)
    return type_conflict(name, value, stored=stored, given=given)


def is_number(measurement: str, field: str) -> bool:
    """Return whether a field is declared: then it is a number, with booleans as 0 and 1."""
    declared = DECLARED.get(measurement)
    return declared is not None and field in declared.fields


def _widen_for_point(table: Table, point: Point, identity: Mapping[str, str]) -> Table:
    """Return the table with the columns that a valid point needs."""
    new = {
        name: FieldType.FLOAT
        if is_number(point.measurement, name)
        else common_type(FIELD_TYPES[type(value)], table.fields.get(name, FIELD_TYPES[type(value)]))
        for name, value in point.fields.items()
        if table.fields.get(name) not in {FieldType.FLOAT, FIELD_TYPES[type(value)]}
    }
    if not new and table.tags.issuperset(point.tags) and table.tags.issuperset(identity):
        return table
    return Table(table.tags.union(point.tags, identity), {**table.fields, **new})
