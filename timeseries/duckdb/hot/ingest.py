"""Planning an insert: which points go into which table with which columns, and which are rejected.

All blocks of one measurement, from any number of senders, are first tried at once. Only if that
fails is each block tried alone, and only in a block that fails is every point checked, so that one
bad point does not affect its neighbors.
"""

from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache

from timeseries.declared import DECLARED
from timeseries.duckdb.hot.overwrites import Suspect, Suspects
from timeseries.duckdb.hot.rows import InvalidBlockError, Rows, rows_of
from timeseries.duckdb.schema import (
    MAX_COLUMNS,
    MAX_MEASUREMENTS,
    Key,
    Schema,
    Table,
)
from timeseries.lineprotocol.grammar import MAX_INT64, MAX_UINT64, MIN_INT64
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

SealedTypes = Callable[[Key], Mapping[str, FieldType]]
"""Returns the types of the fields that files of samples have of a table."""
Origin = tuple[int, int]
"""The submission of the group that a point is from, and its position in that batch."""
_Shape = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[type, ...]]
# Every program that is not ours sends it.
SHARED_TAGS = frozenset({*IDENTITY_TAGS, "host"})


Checked = tuple[Batch, Mapping[str, str], Suspects]
"""A batch, its identity, and its samples that may overwrite others."""


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
    """The rows to insert into one measurement's table.

    Attributes:
        table: the table that the insert needs.
        rows: the valid points.
        rejected: origin to reason.
    """

    table: Table
    rows: Sequence[Rows]
    rejected: Mapping[Origin, str]


def parts_by_key(
    batches: Iterable[tuple[Batch, Mapping[str, str], Collection[str]]],
    *,
    existing: Container[Key] = (),
) -> dict[Key, list[Part]]:
    """Return the blocks of some submissions by the table that they go to.

    Of a series and instant, rows of a tenant's own table are newer than those of the shared one: so
    what may overwrite others goes to the tenant's own, if there is one.

    Args:
        batches: a batch, its identity, and the measurements of which it may overwrite samples.
        existing: the tables that there are.
    """
    parts_of: dict[Key, list[Part]] = {}
    for submission, (batch, identity, overwriting) in enumerate(batches):
        for batch_block in batch.blocks:
            is_shared = is_declared(batch_block.measurement, batch_block.tags, batch_block.fields)
            if is_shared and batch_block.measurement not in overwriting:
                owned: Iterable[tuple[str, Block]] = [("", batch_block)] if len(batch_block) else []
            else:
                owned = _by_owner(batch_block, identity, is_stamped=batch.is_stamped)
            for owner, block in owned:
                key = Key(owner, block.measurement)
                if is_shared and key not in existing and key not in parts_of:
                    key = Key("", block.measurement)
                part = Part(submission, identity, block, batch.is_stamped)
                parts_of.setdefault(key, []).append(part)
    return parts_of


def _by_owner(
    block: Block, identity: Mapping[str, str], *, is_stamped: bool
) -> Iterator[tuple[str, Block]]:
    """Yield a block with its owner; one of several tenants in parts."""
    if not len(block):
        return
    if not is_stamped or TENANT_TAG in identity or TENANT_TAG not in block.tags:
        yield identity.get(TENANT_TAG, ""), block
    else:
        at = block.tags.index(TENANT_TAG)
        rows: dict[str, list[int]] = {}
        for row, tag_set in enumerate(block.tag_set_of):
            rows.setdefault(block.tag_sets[tag_set][at], []).append(row)
        for owner, own_rows in rows.items():
            yield owner, block if len(rows) == 1 else block.select(own_rows)


@lru_cache(maxsize=4_096)
def is_declared(measurement: str, tags: tuple[str, ...], fields: tuple[str, ...]) -> bool:
    """Return whether all names are declared metrics, whose samples share a table."""
    declared = DECLARED.get(measurement)
    return (
        declared is not None
        and declared.fields.issuperset(fields)
        and declared.tags.issuperset(set(tags).difference(SHARED_TAGS))
    )


def plan_insert(
    key: Key, parts: Sequence[Part], *, schema: Schema, sealed: SealedTypes = lambda _key: {}
) -> InsertPlan:
    """Return what to insert for the blocks of one table."""
    table = schema[key] if key in schema else Table(sealed=sealed(key))
    error = measurement_error(key, schema)
    if error is not None:
        return InsertPlan(table, (), dict.fromkeys(_origins(parts), error))
    try:
        return InsertPlan(*_rows(parts, table), {})
    except InvalidBlockError:
        return _plan_of_valid(parts, table)


def _origins(parts: Iterable[Part]) -> Iterable[Origin]:
    return ((part.submission, at) for part in parts for at in part.block.positions)


def _rows(parts: Sequence[Part], table: Table) -> tuple[Table, list[Rows]]:
    """Return the table that the parts need, and their rows in it."""
    shapes = {
        (tuple(part.identity), part.block.tags, part.block.fields, part.block.kinds): None
        for part in parts
    }
    after = widened(table, shapes, parts[0].block.measurement)
    return after, [
        rows_of(part.block, part.identity, after, is_stamped=part.is_stamped) for part in parts
    ]


def widened(table: Table, shapes: Iterable[_Shape], measurement: str) -> Table:
    """Return the table with the columns that the shapes need.

    The first value types a field, for as long as there are samples of it.
    """
    tags, fields = set(table.tags), dict(table.fields)
    for stamped, own, names, kinds in shapes:
        tags.update(stamped, own)
        if not names:
            raise InvalidBlockError
        for name, value_type in zip(names, kinds, strict=True):
            kind = FIELD_TYPES.get(value_type)
            if kind is None:
                raise InvalidBlockError
            if is_number(measurement, name):
                if kind is FieldType.STRING:
                    raise InvalidBlockError
                kind = FieldType.FLOAT
            stored_kind = fields.get(name) or table.sealed.get(name, kind)
            if not accepts(stored_kind, kind):
                raise InvalidBlockError
            fields[name] = stored_kind
    if len(tags) == len(table.tags) and len(fields) == len(table.fields):
        return table
    _check_names(table, tags, fields.keys())
    return Table(frozenset(tags), fields, table.sealed)


def accepts(stored: FieldType, kind: FieldType) -> bool:
    """Return whether a field of a type takes values of another: floats take integers."""
    return stored is kind or (stored, kind) == (FieldType.FLOAT, FieldType.INTEGER)


def _check_names(table: Table, tags: AbstractSet[str], names: AbstractSet[str]) -> None:
    new = [*(tags - table.tags), *(names - table.fields.keys())]
    if any(name_error("it", name) for name in new):
        raise InvalidBlockError
    if new and table.width + len(new) > MAX_COLUMNS:
        raise InvalidBlockError


def _plan_of_valid(parts: Iterable[Part], table: Table) -> InsertPlan:
    """Return the plan without invalid points, with the reasons to reject those."""
    rows: list[Rows] = []
    rejected: dict[Origin, str] = {}
    for part in parts:
        try:
            table, added = _rows([part], table)
        except InvalidBlockError:
            table, errors = _check_points(part, table)
            valid = replace(part, block=part.block.without(errors.keys()))
            try:
                table, added = _rows([valid], table) if len(valid.block) else (table, [])
            except InvalidBlockError:
                # A vague reason is better than a sender that retries forever.
                added = []
                errors = dict.fromkeys(valid.block.positions, "it can't be stored") | errors
            rejected |= {(part.submission, at): reason for at, reason in errors.items()}
        rows += added
    return InsertPlan(table, rows, rejected)


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
    """The rows to write for a group of submissions.

    Attributes:
        rows: those to insert, by table.
        schema: the tables that the insert needs.
        rejected: the rejected points of each submission, by position.
        suspects: the samples that may overwrite others.
    """

    rows: Mapping[Key, Sequence[Rows]]
    schema: Schema
    rejected: Sequence[list[RejectedPoint]]
    suspects: Suspects

    @property
    def points(self) -> int:
        """The number of points to write."""
        return sum(len(rows.times_ns) for table_rows in self.rows.values() for rows in table_rows)


def plan_group(
    batches: Sequence[Checked],
    *,
    schema: Schema,
    sealed: SealedTypes,
) -> GroupPlan:
    """Plan the insert of some batches.

    Args:
        batches: what to write, in order.
        schema: the tables.
        sealed: returns the types of the fields that files have of a new table.
    """
    rejected: list[list[RejectedPoint]] = [[] for _ in batches]
    rows, after = {}, dict(schema)
    suspects = dict[str, list[Suspect]]()
    for _, _, batch_suspects in batches:
        for measurement, added in batch_suspects.items():
            suspects.setdefault(measurement, []).extend(added)
    for key, parts in parts_by_key(batches, existing=schema).items():
        insert = plan_insert(key, parts, schema=after, sealed=sealed)
        for (index, position), reason in insert.rejected.items():
            rejected[index].append(RejectedPoint(position, reason))
        if insert.rows:
            rows[key], after[key] = insert.rows, insert.table
    for answer in rejected:
        answer.sort(key=lambda point: point.position)
    return GroupPlan(rows, after, rejected, suspects)


def measurement_error(key: Key, schema: Schema) -> str | None:
    """Return why no point of this measurement can be stored."""
    error = name_error(f"measurement {key.measurement!r}", key.measurement)
    if error is not None or key in schema or not key.owner:
        return error
    if sum(other.owner == key.owner for other in schema) >= MAX_MEASUREMENTS:
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
        label = f"tag {tag!r}"
        if error := name_error(label, tag) or text_error(label, tag_value):
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
    kind = FIELD_TYPES.get(type(value))
    if kind is None:
        return f"field {name!r} is {value!r}, which is not a number, boolean or text"
    if is_number(measurement, name) and kind is FieldType.STRING:
        return (
            f"field {name!r} is {value!r}, but {measurement}.{name} is declared as a number "
            "(see docs/metrics.md); send a number, or choose another name"
        )
    if is_number(measurement, name) and kind is FieldType.BOOLEAN:
        return None
    stored = table.fields.get(name) or table.sealed.get(name) or kind
    if stored is FieldType.FLOAT and type(value) is int and MIN_INT64 <= value <= MAX_UINT64:
        return None
    if accepts(stored, kind):
        return value_error(name, value)
    return type_conflict(name, value, stored=stored, given=kind)


def is_number(measurement: str, field: str) -> bool:
    """Return whether a field is declared: then it is a number, with booleans as 0 and 1."""
    declared = DECLARED.get(measurement)
    return declared is not None and field in declared.fields


def _widen_for_point(table: Table, point: Point, identity: Mapping[str, str]) -> Table:
    """Return the table with the columns that a valid point needs."""
    new = {
        name: FieldType.FLOAT
        if is_number(point.measurement, name)
        else table.sealed.get(name, FIELD_TYPES[type(value)])
        for name, value in point.fields.items()
        if name not in table.fields
    }
    if not new and table.tags.issuperset(point.tags) and table.tags.issuperset(identity):
        return table
    return Table(table.tags.union(point.tags, identity), {**table.fields, **new}, table.sealed)
