"""From points to Arrow columns: what the writer inserts, and which points it refuses.

A batch is first taken whole, column by column; only where something in it does not fit is every
point looked at alone, so that one bad point costs its neighbours nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from timeseries.duckdb_schema import (
    MAX_COLUMNS,
    TIME_COLUMN,
    FieldType,
    Schema,
    Table,
    field_column,
    tag_column,
    type_of,
)
from timeseries.duckdb_vetting import measurement_fault, name_fault, point_fault, widened
from timeseries.points import FieldValue, Point
from timeseries.store import IDENTITY_TAGS

Origin = tuple[int, int]

_ARROW_TYPES = {
    FieldType.FLOAT: pa.float64(),
    FieldType.INTEGER: pa.int64(),
    FieldType.BOOLEAN: pa.bool_(),
    FieldType.STRING: pa.string(),
}
_PYTHON_TYPES: dict[FieldType, tuple[type, ...]] = {
    FieldType.FLOAT: (float, int),
    FieldType.INTEGER: (int,),
    FieldType.BOOLEAN: (bool,),
    FieldType.STRING: (str,),
}


@dataclass(slots=True)
class Rows:
    """Points of one measurement from any number of batches, in step with where each came from.

    Attributes:
        identities: the tags stamped over each point's own.
        origins: (batch, index in the batch) of each point.
    """

    points: list[Point] = field(default_factory=list)
    identities: list[Mapping[str, str]] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)

    def add(self, point: Point, identity: Mapping[str, str], origin: Origin) -> None:
        """Append one point."""
        self.points.append(point)
        self.identities.append(identity)
        self.origins.append(origin)


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


def rows_by_measurement(
    batches: Iterable[tuple[Sequence[Point], Mapping[str, str]]],
) -> dict[str, Rows]:
    """Return the points of some batches (points, identity) by measurement."""
    found: dict[str, Rows] = {}
    for batch, (points, identity) in enumerate(batches):
        for index, point in enumerate(points):
            rows = found.get(point.measurement)
            if rows is None:
                rows = found[point.measurement] = Rows()
            rows.add(point, identity, (batch, index))
    return found


def plan_insert(measurement: str, rows: Rows, *, schema: Schema) -> Insert:
    """Return what to insert for the points of one measurement."""
    table = schema.get(measurement, Table())
    fault = measurement_fault(measurement, schema)
    if fault is not None:
        return Insert(table, None, dict.fromkeys(rows.origins, fault))
    try:
        return Insert(*_columns(rows, table), {})
    except _DoesNotFitError:
        good, refused = _sift(rows, table)
    if not good.points:
        return Insert(table, None, refused)
    try:
        return Insert(*_columns(good, table), refused)
    except _DoesNotFitError:
        # Better refused with a vague reason than delivered by its sender again and again.
        return Insert(table, None, refused | dict.fromkeys(good.origins, "it can't be stored"))


class _DoesNotFitError(Exception):
    """Some point of the batch can't be stored as it is."""


def _columns(rows: Rows, table: Table) -> tuple[Table, pa.Table]:
    """Return the table that the rows need, and their columns."""
    points = rows.points
    stamped = frozenset(IDENTITY_TAGS).union(*{id(i): i for i in rows.identities}.values())
    tags = stamped.union(chain.from_iterable(point.tags for point in points))
    names = dict.fromkeys(chain.from_iterable(point.fields for point in points))
    _check_names(table, tags, names.keys())
    if not all(point.fields for point in points):
        raise _DoesNotFitError
    columns = {TIME_COLUMN: _array([point.time_ns for point in points], pa.int64())}
    for tag in tags:
        columns[tag_column(tag)] = _array(_tag_values(rows, tag, stamped), pa.string())
    fields = dict(table.fields)
    for name in names:
        values = [point.fields.get(name) for point in points]
        kind = fields.setdefault(name, _first_type(values))
        columns[field_column(name)] = _field_array(values, kind)
    return Table(table.tags | tags, fields), pa.table(columns)


def _check_names(table: Table, tags: AbstractSet[str], names: AbstractSet[str]) -> None:
    new = [*(tags - table.tags), *(names - table.fields.keys())]
    if any(name_fault("it", name) for name in new):
        raise _DoesNotFitError
    if table.width + len(new) > MAX_COLUMNS:
        raise _DoesNotFitError


def _tag_values(rows: Rows, tag: str, stamped: Collection[str]) -> list[str | None]:
    if tag in IDENTITY_TAGS:
        return [identity.get(tag) or None for identity in rows.identities]
    if tag in stamped:
        pairs = zip(rows.identities, rows.points, strict=True)
        return [identity.get(tag) or point.tags.get(tag) or None for identity, point in pairs]
    return [point.tags.get(tag) or None for point in rows.points]


def _first_type(values: Iterable[FieldValue | None]) -> FieldType:
    for value in values:
        if value is not None:
            return type_of(value)
    raise _DoesNotFitError


def _field_array(values: list[FieldValue | None], kind: FieldType) -> pa.Array:
    types = set(map(type, values)) - {type(None)}
    if not all(_is_taken(given, kind) for given in types):
        raise _DoesNotFitError
    if kind is not FieldType.FLOAT:
        return _array(values, _ARROW_TYPES[kind])
    if types != {float}:
        values = _floats(values)
    array = _array(values, _ARROW_TYPES[kind])
    if not pc.all(pc.is_finite(array)).as_py():
        raise _DoesNotFitError
    return array


def _is_taken(given: type, kind: FieldType) -> bool:
    # bool is a subclass of int, and no number here.
    return issubclass(given, _PYTHON_TYPES[kind]) and (
        kind is FieldType.BOOLEAN or not issubclass(given, bool)
    )


def _floats(values: list[FieldValue | None]) -> list[FieldValue | None]:
    try:
        return [None if value is None else float(value) for value in values]
    except OverflowError:
        raise _DoesNotFitError from None


def _array(values: Sequence[FieldValue | None], arrow_type: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type=arrow_type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        raise _DoesNotFitError from None


def _sift(rows: Rows, table: Table) -> tuple[Rows, dict[Origin, str]]:
    """Split the rows into those that fit and the reasons of the others."""
    good = Rows()
    refused: dict[Origin, str] = {}
    for point, identity, origin in zip(rows.points, rows.identities, rows.origins, strict=True):
        fault = point_fault(point, identity, table)
        if fault is None:
            table = widened(table, point, identity)
            good.add(point, identity, origin)
        else:
            refused[origin] = fault
    return good, refused
