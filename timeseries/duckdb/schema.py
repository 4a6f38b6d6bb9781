"""How measurements, tags and fields become DuckDB tables and columns.

One table per measurement: `time` (BIGINT, nanoseconds), `tag_<name>` (VARCHAR, NULL where a sample
lacks the tag), `field_<name>`, and two of our own: `cluster`, a number made of the appliance's name
by which samples are laid together, and `loose`, NULL once they are. Names come from senders, so an
identifier never holds their text as it is: every byte but `a-z 0-9 _` is written as `%` and two hex
digits. That rules out injection and keeps `GPU` and `gpu` apart, which DuckDB's identifiers alone
would not.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote

from timeseries.points import FieldValue
from timeseries.store import IDENTITY_TAGS

TIME_COLUMN = "time"
CLUSTER_COLUMN = "cluster"
LOOSE_COLUMN = "loose"
MAX_NAME_BYTES = 200
MAX_MEASUREMENTS = 1_000
MAX_COLUMNS = 1_000

_OWN_COLUMNS = {CLUSTER_COLUMN: "USMALLINT", LOOSE_COLUMN: "BOOLEAN"}
_TABLE_PREFIX, _TAG_PREFIX, _FIELD_PREFIX = "m_", "tag_", "field_"
_UNSAFE = re.compile(rb"[^a-z0-9_]")


class FieldType(StrEnum):
    """The type of a field: that of the first value ever written to it."""

    FLOAT = "float"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    STRING = "string"


SQL_TYPES = {
    FieldType.FLOAT: "DOUBLE",
    FieldType.INTEGER: "BIGINT",
    FieldType.BOOLEAN: "BOOLEAN",
    FieldType.STRING: "VARCHAR",
}
_FIELD_TYPES = {sql_type: field_type for field_type, sql_type in SQL_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of one measurement; `tags` holds names, `fields` name to type."""

    tags: frozenset[str] = frozenset(IDENTITY_TAGS)
    fields: Mapping[str, FieldType] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, str]:
        """Column identifier to SQL type, but for the time."""
        tags = {tag_column(tag): "VARCHAR" for tag in sorted(self.tags)}
        return tags | {field_column(name): SQL_TYPES[kind] for name, kind in self.fields.items()}

    @property
    def width(self) -> int:
        """How many tags and fields there are."""
        return len(self.tags) + len(self.fields)


Schema = Mapping[str, Table]


def type_of(value: FieldValue) -> FieldType:
    """Return the field type of a value."""
    if isinstance(value, bool):
        return FieldType.BOOLEAN
    if isinstance(value, int):
        return FieldType.INTEGER
    return FieldType.STRING if isinstance(value, str) else FieldType.FLOAT


def table_name(measurement: str) -> str:
    """Return the unquoted identifier of a measurement's table."""
    return _TABLE_PREFIX + _encoded(measurement)


def tag_column(tag: str) -> str:
    """Return the unquoted identifier of a tag's column."""
    return _TAG_PREFIX + _encoded(tag)


def field_column(name: str) -> str:
    """Return the unquoted identifier of a field's column."""
    return _FIELD_PREFIX + _encoded(name)


def quoted(identifier: str) -> str:
    """Return an identifier as SQL text."""
    return '"' + identifier.replace('"', '""') + '"'


def ddl(measurement: str, before: Table | None, after: Table) -> list[str]:
    """Return the statements that bring a measurement's table from `before` to `after`."""
    table = quoted(table_name(measurement))
    if before is None:
        columns = [f"{quoted(TIME_COLUMN)} BIGINT NOT NULL"]
        columns += [f"{quoted(name)} {kind}" for name, kind in after.columns.items()]
        columns += [f"{name} {kind}" for name, kind in _OWN_COLUMNS.items()]
        return [f"CREATE TABLE {table} ({', '.join(columns)})"]
    if before is after:
        return []
    return [
        f"ALTER TABLE {table} ADD COLUMN {quoted(name)} {kind}"
        for name, kind in after.columns.items()
        if name not in before.columns
    ]


def upgrade_ddl(columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the statements that bring tables of earlier versions up to date."""
    known = {(table, column) for table, column, _ in columns}
    return [
        f"ALTER TABLE {quoted(table)} ADD COLUMN {name} {kind}"
        for table in sample_tables(columns)
        for name, kind in _OWN_COLUMNS.items()
        if (table, name) not in known
    ]


def sample_tables(columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the unquoted identifiers of the tables of samples, sorted."""
    return sorted({table for table, _, _ in columns if table.startswith(_TABLE_PREFIX)})


def cluster_of(appliance: str) -> int:
    """Return the number by which the samples of an appliance are laid together."""
    return zlib.crc32(appliance.encode()) & 0xFFFF


READ_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
)


def schema_from(columns: Sequence[tuple[str, str, str]]) -> dict[str, Table]:
    """Return the schema that the rows of `READ_COLUMNS` describe."""
    tags: dict[str, set[str]] = {}
    fields: dict[str, dict[str, FieldType]] = {}
    for table, column, sql_type in columns:
        if not table.startswith(_TABLE_PREFIX):
            continue
        measurement = unquote(table.removeprefix(_TABLE_PREFIX))
        known_tags = tags.setdefault(measurement, set())
        known_fields = fields.setdefault(measurement, {})
        if column.startswith(_TAG_PREFIX):
            known_tags.add(unquote(column.removeprefix(_TAG_PREFIX)))
        elif column.startswith(_FIELD_PREFIX):
            name = unquote(column.removeprefix(_FIELD_PREFIX))
            known_fields[name] = _FIELD_TYPES[sql_type]
    return {name: Table(frozenset(tags[name]), fields[name]) for name in tags}


@lru_cache(maxsize=4_096)
def _encoded(name: str) -> str:
    return _UNSAFE.sub(lambda byte: b"%%%02x" % byte[0][0], name.encode()).decode()
