"""Reads from an InfluxDB in InfluxQL, which all its versions speak."""

from collections.abc import Iterator, Sequence

from timeseries.batch import Batch
from timeseries.influxdb.http import InfluxDBConnection, Value
from timeseries.influxdb.names import plain
from timeseries.influxdb.ql import (
    FLOAT,
    MAX_TIME_NS,
    Shape,
    condition,
    extent_statements,
    field_of,
    first_value_statement,
    grouping,
    measurements_statement,
    scan_statement,
    select,
    shape_statements,
    source,
    tag_keys_statement,
    tag_values_statement,
    tenants_condition,
)
from timeseries.influxdb.range import group_of, range_series
from timeseries.points import FieldValue, Point
from timeseries.store import (
    IDENTITY_TAGS,
    Extent,
    Latest,
    LatestQuery,
    RangeQuery,
    ScanQuery,
    Series,
)

SCAN_POINTS = 10_000

# Should a field have several types in old shards, InfluxQL reads the first of these.
_TYPES_IN_ORDER = ("float", "integer", "string", "boolean")


class InfluxDBReader:
    """Answers queries; what a measurement is like is asked for each, for others may write too."""

    def __init__(self, connection: InfluxDBConnection) -> None:
        self._connection = connection

    def shape(self, measurement: str) -> Shape:
        """Return the fields with their types, and the tags, of a measurement."""
        fields: dict[str, str] = {}
        tags: set[str] = set()
        for number, series in self._connection.query(shape_statements(measurement)):
            if number == 1:
                tags.update(plain(str(name)) for (name, *_) in series.values)
                continue
            for name, kind in series.values:
                key = plain(str(name))
                fields[key] = min(fields.get(key, str(kind)), str(kind), key=_preference)
        return Shape(dict(sorted(fields.items())), tags)

    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group."""
        return range_series(query, self.shape(query.measurement), self._connection.query)

    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group."""
        shape = self.shape(query.measurement)
        names = sorted(shape.fields.keys() & set(query.fields))
        end_ns = MAX_TIME_NS + 1 if query.until_ns is None else query.until_ns
        where = condition(query, shape, start_ns=query.since_ns, end_ns=end_ns)
        if where is None or not names:
            return []
        # A field at a time: with several in one statement InfluxQL leaves out when they were.
        statements = [
            select({"v": f"last({field_of(name)})"}, source(query.measurement), where, by)
            for by in [grouping(query)]
            for name in names
        ]
        times: dict[tuple[str, ...], int] = {}
        values: dict[tuple[str, ...], dict[str, FieldValue]] = {}
        for number, series in self._connection.query(statements):
            group = group_of(series, query.group_by)
            name = names[number]
            for time_ns, value in series.values:
                if isinstance(time_ns, int) and value is not None:
                    times[group] = max(time_ns, times.get(group, time_ns))
                    values.setdefault(group, {})[name] = _typed(value, shape.fields[name])
        return [
            Latest(dict(zip(query.group_by, group, strict=True)), times[group], values[group])
            for group in sorted(values)
        ]

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first."""
        shape = self.shape(query.measurement)
        tags = sorted(shape.tags)
        statement = scan_statement(query, shape, tags=tags)
        if not statement:
            return
        kinds = list(shape.fields.items())
        for series in self._connection.stream(statement):
            rows = series.values
            for start in range(0, len(rows), SCAN_POINTS):
                part = rows[start : start + SCAN_POINTS]
                yield Batch.of(_point(query.measurement, row, kinds, tags) for row in part)

    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan; its points are the most values that a field of each has."""
        shape = self.shape(query.measurement)
        times_ns: list[int] = []
        points = 0
        for number, series in self._connection.query(extent_statements(query, shape)):
            for time_ns, *values in series.values:
                if number < 2:  # noqa: PLR2004 - the third statement counts
                    times_ns.append(int(time_ns or 0))
                else:
                    points += max(int(count or 0) for count in values)
        if not times_ns:
            return None
        is_exact = len(shape.fields) == 1
        return Extent(min(times_ns), max(times_ns) + 1, points, is_exact=is_exact)

    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""
        known = dict(self.shape(measurement).fields)
        where = tenants_condition(tenants)
        if where is None:
            return {}
        if not where:
            return known
        names = list(known)
        statements = [first_value_statement(measurement, name, where) for name in names]
        found = {names[number] for number, _ in self._connection.query(statements)}
        return {name: kind for name, kind in known.items() if name in found}

    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        where = tenants_condition(tenants)
        if where is None:
            return []
        return self._names(measurements_statement(where), column=0)

    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        where = tenants_condition(tenants)
        if where is None:
            return []
        return self._names(tag_values_statement(measurement, tag, where), column=1)

    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        where = tenants_condition(tenants)
        if where is None:
            return []
        if where:
            found = set(self._names(tag_keys_statement(measurement, where), column=0))
        else:
            shape = self.shape(measurement)
            found = {*shape.tags, *IDENTITY_TAGS} if shape.fields else set()
        return [*IDENTITY_TAGS, *sorted(found.difference(IDENTITY_TAGS))] if found else []

    def _names(self, statement: str, *, column: int) -> list[str]:
        found = {
            plain(str(row[column]))
            for _, series in self._connection.query([statement])
            for row in series.values
        }
        return sorted(found - {""})


def _preference(kind: str) -> int:
    return _TYPES_IN_ORDER.index(kind) if kind in _TYPES_IN_ORDER else len(_TYPES_IN_ORDER)


def _point(
    measurement: str, row: Sequence[Value], kinds: Sequence[tuple[str, str]], tags: Sequence[str]
) -> Point:
    values = row[1 : 1 + len(kinds)]
    fields = {
        name: _typed(value, kind)
        for (name, kind), value in zip(kinds, values, strict=True)
        if value is not None
    }
    texts = row[1 + len(kinds) :]
    present = {tag: plain(str(text)) for tag, text in zip(tags, texts, strict=True) if text}
    return Point(measurement, present, fields, int(row[0] or 0))


def _typed(value: FieldValue, kind: str) -> FieldValue:
    # JSON writes the float 5.0 as 5.
    return float(value) if kind == FLOAT else value
