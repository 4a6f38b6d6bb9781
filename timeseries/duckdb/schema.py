"""Map measurements, tags and fields to DuckDB tables and columns.

The samples of declared metrics of all tenants are in one table per measurement, `m_<measurement>`.
Whatever else a tenant sends is in tables of its own, `t_<tenant>.<measurement>`, so that its names
and types concern nobody else. Declared fields are numbers of type DOUBLE.

A table has the columns `time` (BIGINT, nanoseconds), `tag_<name>` (VARCHAR, NULL where a sample
lacks the tag) and `field_<name>`. Files of samples have the same columns.

Names come from senders, so identifiers never contain them verbatim: every byte except `a-z 0-9 _`
is written as `%` and two hex digits. That rules out injection, and tells `GPU` from `gpu`, which
DuckDB's case-insensitive identifiers would not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple
from urllib.parse import unquote

from core.clock import NS_PER_SECOND
from timeseries.store import DAY_NS, HOUR_NS, IDENTITY_TAGS, Resolution
from timeseries.validation import FieldType

MINUTE_NS = 60 * NS_PER_SECOND
WIDTHS_NS = {
    Resolution.FIVE_MINUTES: 5 * MINUTE_NS,
    Resolution.HOUR: HOUR_NS,
    Resolution.DAY: DAY_NS,
}
TIME_COLUMN = "time"
MAX_MEASUREMENTS = 1_000
MAX_COLUMNS = 1_000
_SHARED_PREFIX, _OWN_PREFIX = "m_", "t_"
_TAG_PREFIX, _FIELD_PREFIX = "tag_", "field_"
_UNSAFE = re.compile(rb"[^a-z0-9_]")
SQL_TYPES = {
    FieldType.FLOAT: "DOUBLE",
    FieldType.INTEGER: "BIGINT",
    FieldType.BOOLEAN: "BOOLEAN",
    FieldType.STRING: "VARCHAR",
}
_FIELD_TYPES = {sql_type: kind for kind, sql_type in SQL_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Table:
    """The tags of one measurement, and its fields by name with their types.

    Attributes:
        sealed: the types of fields that have no column, but values in files.
    """

    tags: frozenset[str] = frozenset(IDENTITY_TAGS)
    fields: Mapping[str, FieldType] = field(default_factory=dict)
    sealed: Mapping[str, FieldType] = field(default_factory=dict, compare=False)

    @property
    def columns(self) -> dict[str, str]:
        """Column identifier to SQL type, without the time."""
        tags = {tag_column(tag): "VARCHAR" for tag in sorted(self.tags)}
        return tags | {field_column(name): SQL_TYPES[kind] for name, kind in self.fields.items()}

    @property
    def width(self) -> int:
        """The number of tags and fields."""
        return len(self.tags) + len(self.fields)


class Key(NamedTuple):
    """A measurement in the tables of a tenant, its owner; "" for the table that all share."""

    owner: str
    measurement: str


Schema = Mapping[Key, Table]
TextFields = frozenset[tuple[str, FieldType]]
NUMBERS = frozenset({FieldType.FLOAT, FieldType.INTEGER})
Span = tuple[int, int]
"""Nanoseconds since the epoch, the end excluded."""
Spans = tuple[Span, ...]
MAX_SPANS = 32
"""How many spans cover many: the nearest are joined, and a query of them reads more rows."""


def table_name(key: Key) -> str:
    """Return the unquoted identifier of a table."""
    if not key.owner:
        return _SHARED_PREFIX + encoded(key.measurement)
    return f"{_OWN_PREFIX}{encoded(key.owner)}.{encoded(key.measurement)}"


def united(tables: Iterable[Table]) -> Table:
    """Return the tags and fields that some tables have together.

    A field that is a number in one is a number, whatever it is in others.
    """
    tags, fields = set(IDENTITY_TAGS), dict[str, FieldType]()
    for table in tables:
        tags |= table.tags
        for name, kind in table.fields.items():
            fields[name] = common_type(fields.get(name, kind), kind)
    return Table(frozenset(tags), fields)


def common_type(kind: FieldType, other: FieldType) -> FieldType:
    """Return the type of both, a float if one is a number, else text."""
    if kind is other:
        return kind
    return FieldType.FLOAT if NUMBERS & {kind, other} else FieldType.STRING


def text_fields(table: Table) -> TextFields:
    """Return the fields that are no numbers; tables with the same can be read together."""
    return frozenset((name, kind) for name, kind in table.fields.items() if kind not in NUMBERS)


def tag_column(tag: str) -> str:
    """Return the unquoted identifier of a tag's column."""
    return _TAG_PREFIX + encoded(tag)


def field_column(name: str) -> str:
    """Return the unquoted identifier of a field's column."""
    return _FIELD_PREFIX + encoded(name)


def tag_of(column: str) -> str | None:
    """Return the tag of a column; None for other columns."""
    is_tag = column.startswith(_TAG_PREFIX)
    return unquote(column.removeprefix(_TAG_PREFIX)) if is_tag else None


def field_of(column: str) -> str | None:
    """Return the field of a column; None for other columns."""
    is_field = column.startswith(_FIELD_PREFIX)
    return unquote(column.removeprefix(_FIELD_PREFIX)) if is_field else None


def quoted(identifier: str) -> str:
    """Return an identifier as SQL text."""
    return '"' + identifier.replace('"', '""') + '"'


def ddl(key: Key, before: Table | None, after: Table) -> list[str]:
    """Return the statements that change a table from `before` to `after`."""
    table = quoted(table_name(key))
    if before is None:
        columns = [f"{quoted(TIME_COLUMN)} BIGINT NOT NULL"]
        columns += [f"{quoted(name)} {kind}" for name, kind in after.columns.items()]
        return [f"CREATE TABLE {table} ({', '.join(columns)})"]
    if before is after:
        return []
    former_columns = before.columns
    return [
        f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} TYPE {kind}"
        if name in former_columns
        else f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {kind}"
        for name, kind in after.columns.items()
        if former_columns.get(name) != kind
    ]


COLUMNS_SQL = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
)


def parse_schema(columns: Sequence[tuple[str, str, str]]) -> dict[Key, Table]:
    """Return the schema that the rows of `COLUMNS_SQL` describe."""
    tags: dict[Key, set[str]] = {}
    fields: dict[Key, dict[str, FieldType]] = {}
    for table, column, sql_type in columns:
        key = _key(table)
        if key is None:
            continue
        known_tags = tags.setdefault(key, set())
        known_fields = fields.setdefault(key, {})
        tag, name = tag_of(column), field_of(column)
        if tag is not None:
            known_tags.add(tag)
        elif name is not None:
            known_fields[name] = _FIELD_TYPES[sql_type]
    return {key: Table(frozenset(tags[key]), fields[key]) for key in tags}


def _key(table: str) -> Key | None:
    """Return the key of a table's name; None for other tables."""
    if table.startswith(_SHARED_PREFIX):
        return Key("", unquote(table.removeprefix(_SHARED_PREFIX)))
    owner, dot, measurement = table.removeprefix(_OWN_PREFIX).partition(".")
    return Key(unquote(owner), unquote(measurement)) if dot else None


@lru_cache(maxsize=4_096)
def encoded(name: str) -> str:
    """Return a name with every byte except `a-z 0-9 _` as `%` and two hex digits."""
    return _UNSAFE.sub(lambda byte: b"%%%02x" % byte[0][0], name.encode()).decode()


def joined(spans: Iterable[Span]) -> Spans:
    """Return spans in order, those joined that are within an hour, and the nearest if many."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] < HOUR_NS:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    if len(merged) <= MAX_SPANS:
        return tuple(merged)
    gaps = sorted(
        ((after[0] - before[1], before[1], after[0]) for before, after in pairwise(merged))
    )
    edges = sorted((end, start) for _, end, start in gaps[-(MAX_SPANS - 1) :])
    bounds = [merged[0][0], *chain.from_iterable(edges), merged[-1][1]]
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def shared_part(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of some spans that are in others too."""
    return [
        (max(start, first), min(end, last))
        for start, end in spans
        for first, last in others
        if max(start, first) < min(end, last)
    ]


def other_part(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of some spans that are in none of others, which are in order."""
    parts = []
    for start, end in spans:
        at = start
        for first, last in shared_part([(start, end)], others):
            parts.append((at, first))
            at = last
        parts.append((at, end))
    return [(start, end) for start, end in parts if start < end]
