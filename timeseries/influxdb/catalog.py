"""The names in the databases of an InfluxDB: measurements, fields with their types, tags.

The server lists names until their shard expires, also those of deleted samples; the lists here have
only names that a field has a value with.
"""

from collections.abc import Mapping, Sequence

from timeseries.influxdb.client import (
    AccessDeniedError,
    DatabaseMissingError,
    InfluxDBConnection,
)
from timeseries.influxdb.databases import TenantDatabases
from timeseries.influxdb.influxql import (
    MeasurementSchema,
    decode_name,
    encode_key,
    field_expression,
    from_clause,
    identifier,
    select,
    tenants_condition,
    where_of,
)
from timeseries.influxdb.range_query import group_of
from timeseries.store import IDENTITY_TAGS, ScanQuery

# If a field has several types in old shards, InfluxQL reads the first of these.
_TYPES_IN_ORDER = ("float", "integer", "unsigned", "string", "boolean")
_NUMBERS = frozenset({"float", "integer", "unsigned"})


class Catalog:
    """Reads the names of tenants' samples; None is all tenants."""

    def __init__(self, connection: InfluxDBConnection, databases: TenantDatabases) -> None:
        self._connection = connection
        self._databases = databases

    def measurements(self, tenants: Sequence[str] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted.

        The server lists names until their shard expires, so each must have a value.
        """
        where = tenants_condition(tenants)
        if where is None:
            return []
        databases = self._databases.visible(tenants)
        fields: dict[str, set[str]] = {}
        statements = [f"SHOW FIELD KEYS{self._on(name)}" for name in databases]
        for _, series in self._connection.query(statements):
            field_keys = fields.setdefault(decode_name(series.name), set())
            field_keys.update(decode_name(str(row[0])) for row in series.values)
        with_values: set[str] = set()
        for is_first in (True, False):
            # One field is enough for nearly all.
            pairs = [
                (name, key)
                for name, keys in fields.items()
                if name not in with_values
                for key in (sorted(keys)[:1] if is_first else sorted(keys)[1:])
            ]
            selects = [
                select({"v": field_expression(key)}, self._source(name, databases), where_of(where))
                + " LIMIT 1"
                for name, key in pairs
            ]
            with_values |= {pairs[number][0] for number, _ in self._connection.query(selects)}
        return sorted(with_values)

    def fields(self, measurement: str, tenants: Sequence[str] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""
        schema = self.schema(measurement, tenants)
        where = tenants_condition(tenants)
        if where is None:
            return {}
        if not where:
            return dict(schema.fields)
        names = list(schema.fields)
        statements = [
            select({"v": field_expression(name)}, schema.source, where_of(where), "LIMIT 1")
            for name in names
        ]
        with_values = {names[number] for number, _ in self._connection.query(statements)}
        return {name: kind for name, kind in schema.fields.items() if name in with_values}

    def tags(self, measurement: str, tenants: Sequence[str] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        where = tenants_condition(tenants)
        if where is None:
            return []
        source = from_clause(measurement)
        statements = [
            f"SHOW TAG KEYS{self._on(name)} {source} {where_of(where)}".rstrip()
            for name in self._databases.visible(tenants)
        ]
        tags = self._names(statements, column=0)
        if not tags and not where and self.schema(measurement, tenants).fields:
            tags = {*IDENTITY_TAGS}
        return [*IDENTITY_TAGS, *sorted(tags.difference(IDENTITY_TAGS))] if tags else []

    def tag_values(self, measurement: str, tag: str, tenants: Sequence[str] | None) -> list[str]:
        """Return the distinct values of a tag, sorted: those that a field has a value with."""
        where = tenants_condition(tenants)
        schema = self.schema(measurement, tenants)
        if where is None or not schema.fields:
            return []
        key = identifier(encode_key(tag))
        statements = [
            f"SHOW TAG VALUES{self._on(name)} {from_clause(measurement)} WITH KEY = {key} "
            f"{where_of(where)}".rstrip()
            for name in self._databases.visible(tenants)
        ]
        listed = self._names(statements, column=1)
        with_values: set[str] = set()
        first, *others = schema.fields
        for names in ([first], others):
            if listed <= with_values:
                break
            selects = [
                select(
                    {"v": f"first({field_expression(name)})"},
                    schema.source,
                    where_of(where),
                    f"GROUP BY {key}::tag",
                )
                for name in names
            ]
            with_values |= {
                group_of(series, (tag,))[0] for _, series in self._connection.query(selects)
            }
        return sorted(listed & with_values)

    def schema(self, measurement: str, tenants: Sequence[str] | None) -> MeasurementSchema:
        """Return the fields with their types, and the tags, of a measurement.

        If a field is a number for one tenant and text for another, it is a number.
        """
        return self._schema_of(measurement, self._databases.visible(tenants))

    def _schema_of(self, measurement: str, databases: Sequence[str]) -> MeasurementSchema:
        return self._merged(measurement, self._schemas(measurement, databases))

    def without_conflicts(self, query: ScanQuery) -> list[MeasurementSchema]:
        """Return the schemas of databases in as few parts as have one type for each field."""
        parts: list[dict[str, MeasurementSchema]] = []
        databases = self._databases.visible(query.tenants)
        for name, schema in self._schemas(query.measurement, databases).items():
            for part in parts:
                if not any(_is_conflict(schema, other) for other in part.values()):
                    part[name] = schema
                    break
            else:
                parts.append({name: schema})
        return [self._merged(query.measurement, part) for part in parts]

    def _schemas(self, measurement: str, databases: Sequence[str]) -> dict[str, MeasurementSchema]:
        """Return the schema of a measurement in each database."""
        source = from_clause(measurement)
        statements = [
            f"SHOW {kind} KEYS{self._on(name)} {source}"
            for name in databases
            for kind in ("FIELD", "TAG")
        ]
        fields: dict[str, dict[str, str]] = {name: {} for name in databases}
        tags: dict[str, set[str]] = {name: set() for name in databases}
        for number, series in self._connection.query(statements):
            database = databases[number // 2]
            if number % 2:
                tags[database].update(decode_name(str(name)) for (name, *_) in series.values)
                continue
            kinds = fields[database]
            for name, kind in series.values:
                key = decode_name(str(name))
                kinds[key] = _first_type(kinds.get(key, str(kind)), str(kind))
        return {name: MeasurementSchema(fields[name], tags[name]) for name in databases}

    def _merged(
        self, measurement: str, schemas: Mapping[str, MeasurementSchema]
    ) -> MeasurementSchema:
        fields: dict[str, str] = {}
        tags: set[str] = set()
        for schema in schemas.values():
            tags |= schema.tags
            for name, kind in schema.fields.items():
                fields[name] = _first_type(fields.get(name, kind), kind)
        source = self._source(measurement, list(schemas))
        return MeasurementSchema(dict(sorted(fields.items())), tags, source)

    def _source(self, measurement: str, databases: Sequence[str]) -> str:
        address = self._connection.address
        if list(databases) == [address.database]:
            return from_clause(measurement)
        return from_clause(measurement, databases, policy=address.retention_policy)

    def _on(self, database: str) -> str:
        is_base = database == self._connection.address.database
        return "" if is_base else f" ON {identifier(database)}"

    def _names(self, statements: Sequence[str], *, column: int) -> set[str]:
        names = {
            decode_name(str(row[column]))
            for _, series in self._connection.query(statements)
            for row in series.values
        }
        return names - {""}

    def types(self, database: str, measurement: str) -> Mapping[str, str]:
        """Return the field types of a measurement in a database; none in one that is missing."""
        try:
            return self._schema_of(measurement, [database]).fields
        except (DatabaseMissingError, AccessDeniedError):
            if database == self._connection.address.database:
                raise
            return {}


def _first_type(kind: str, other: str) -> str:
    return min(kind, other, key=_TYPES_IN_ORDER.index)


def _is_conflict(schema: MeasurementSchema, other: MeasurementSchema) -> bool:
    """Return whether a field has values in both that InfluxQL does not return together."""
    shared = schema.fields.keys() & other.fields.keys()
    pairs = ({schema.fields[name], other.fields[name]} for name in shared)
    return any(len(pair) > 1 and not pair <= _NUMBERS for pair in pairs)
