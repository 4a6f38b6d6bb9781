"""The store on an InfluxDB server: 1.6 to 1.8, 2.x and 3.x, read in InfluxQL by the same code.

The future of a submission resolves when the server has answered its request, and an acknowledged
sample is in the server's WAL. A sample that is written twice is stored once. `influxql` describes
how names that InfluxDB can't store are encoded.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import wraps
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import ParamSpec, TypeVar

from core.clock import NS_PER_SECOND
from timeseries.columns import SampleColumns, SeriesColumns, Tags, columns_of, samples_of
from timeseries.influxdb.address import InfluxDBAddress, parse_address
from timeseries.influxdb.catalog import Catalog
from timeseries.influxdb.client import (
    QUERY_SECONDS,
    DatabaseMissingError,
    InfluxDBConnection,
    Value,
)
from timeseries.influxdb.databases import TenantDatabases
from timeseries.influxdb.influxql import (
    MeasurementSchema,
    decode_name,
    drop_tenant_statement,
    encode_name,
    extent_statements,
    field_expression,
    group_by_clause,
    scan_statement,
    select,
    tag_expression,
    where_clause,
)
from timeseries.influxdb.range_query import group_of, range_series
from timeseries.influxdb.writer import InfluxDBWriter
from timeseries.lineprotocol.grammar import MAX_TIME_NS, MIN_TIME_NS
from timeseries.points import Batch, FieldValue, Point
from timeseries.store import (
    TENANT_TAG,
    Extent,
    Latest,
    LatestQuery,
    NeededField,
    RangeQuery,
    RejectedPoint,
    Resolution,
    SampleQuery,
    ScanQuery,
    Series,
    StoreUnavailableError,
    TooManySamplesError,
)
from timeseries.validation import FieldType

MAX_QUEUED_POINTS = 500_000
SCAN_POINTS = 10_000
_NO_DELETION = (3, 0)
_SUCCESS = 204


P = ParamSpec("P")
R = TypeVar("R")


def _repeated(read: Callable[P, R]) -> Callable[P, R]:
    """Repeat a read once if a tenant's database was dropped meanwhile."""

    @wraps(read)
    def repeated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except DatabaseMissingError:
            return read(*args, **kwargs)

    return repeated


class InfluxDBStore:
    """A `Store` in the databases of an InfluxDB: one for each tenant (`databases`).

    Args:
        address: the server and the base of the databases; the first call connects, so the server
            may start later.
        max_queued_points: how many points may wait for the writer before `submit` refuses.
        query_seconds: the timeout of a query.
    """

    def __init__(
        self,
        address: InfluxDBAddress,
        *,
        max_queued_points: int = MAX_QUEUED_POINTS,
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        self._connection = InfluxDBConnection(address, query_seconds=query_seconds)
        self._databases = TenantDatabases(self._connection)
        self._catalog = Catalog(self._connection, self._databases)
        self._writer = InfluxDBWriter(
            self._connection,
            databases=self._databases,
            load_types=self._catalog.types,
            max_queued_points=max_queued_points,
        )

    @classmethod
    def from_url(cls, url: str) -> "InfluxDBStore":
        """Open the store of an `influxdb://` or `influxdbs://` URL.

        Raises:
            ConfigurationError: the URL is invalid.
        """
        return cls(parse_address(url))

    def submit(self, batch: Batch, *, identity: Mapping[str, str]) -> Future[list[RejectedPoint]]:
        """Queue a batch for the next request; the future has the rejected points."""
        return self._writer.submit(batch, identity)

    @_repeated
    def query_range(self, query: RangeQuery) -> list[Series]:
        """Return one series per field and group, ordered by field, then by group.

        The 95th and 99th percentile are interpolated for windows of up to 16 different sizes; for
        larger sizes they are the nearest rank. Integer sums over 64 bits wrap.
        """
        schema = self._catalog.schema(query.measurement, query.tenants)
        return range_series(query, schema, self._connection.query)

    def query_columns(self, query: RangeQuery) -> list[SeriesColumns]:
        """Return the series of a range query as arrays, by field."""
        return columns_of(self.query_range(query))

    @_repeated
    def samples(self, query: SampleQuery) -> list[SampleColumns]:
        """Return the numbers themselves, with one series for each set of tags."""
        schema = self._catalog.schema(query.measurement, query.tenants)
        names = [
            name
            for name in query.fields
            if schema.fields.get(name, FieldType.STRING) != FieldType.STRING
        ]
        where = where_clause(query, schema, start_ns=query.start_ns, end_ns=query.end_ns)
        if where is None:
            return []
        # All columns with a limit, as tags by name: a list of series would have none.
        tags = sorted(schema.tags)
        columns = {f"t{index}": tag_expression(tag) for index, tag in enumerate(tags)}
        limit = f"LIMIT {query.max_samples + 1}"
        series_of: dict[tuple[str, Tags], tuple[list[int], list[float]]] = {}
        count = 0
        for name in names:
            field = {"v": field_expression(name)}
            statement = select({**field, **columns}, schema.source, where, limit)
            for series in self._connection.stream(statement):
                for time_ns, value, *texts in series.values:
                    present = tuple(
                        (tag, decode_name(str(text)))
                        for tag, text in zip(tags, texts, strict=True)
                        if text
                    )
                    times, values = series_of.setdefault((name, present), ([], []))
                    times.append(int(time_ns or 0))
                    values.append(float(value or 0.0))
                    count += 1
            if count > query.max_samples:
                raise TooManySamplesError.of(query)
        return samples_of(series_of)

    @_repeated
    def latest(self, query: LatestQuery) -> list[Latest]:
        """Return the newest values of each group, ordered by group."""
        schema = self._catalog.schema(query.measurement, query.tenants)
        names = sorted(schema.fields.keys() & set(query.fields))
        end_ns = MAX_TIME_NS + 1 if query.until_ns is None else query.until_ns
        where = where_clause(query, schema, start_ns=query.since_ns, end_ns=end_ns)
        if where is None or not names:
            return []
        # One field per statement: with several, InfluxQL omits their times.
        statements = [
            select({"v": f"last({field_expression(name)})"}, schema.source, where, by)
            for by in [group_by_clause(query)]
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
                    values.setdefault(group, {})[name] = _typed(value, schema.fields[name])
        return [
            Latest(dict(zip(query.group_by, group, strict=True)), times[group], values[group])
            for group in sorted(values)
        ]

    def scan(self, query: ScanQuery) -> Iterator[Batch]:
        """Yield the raw points of a span in batches, oldest first, as they arrive."""
        parts = [self._points(query, schema) for schema in self._catalog.without_conflicts(query)]
        points = parts[0] if len(parts) == 1 else merge(*parts, key=attrgetter("time_ns"))
        while batch := list(islice(points, SCAN_POINTS)):
            yield Batch.of(batch)

    @_repeated
    def extent(self, query: ScanQuery) -> Extent | None:
        """Return the extent of a scan: exact times, and a lower bound of its points.

        InfluxQL counts values of a field, not points: the points of a series are those of its
        longest field. With a single field the number is exact.
        """
        schemas = self._catalog.without_conflicts(query)
        times_ns: list[int] = []
        points = 0
        for schema in schemas:
            for number, series in self._connection.query(extent_statements(query, schema)):
                for time_ns, *values in series.values:
                    if number < 2:  # noqa: PLR2004 - the third statement counts
                        times_ns.append(int(time_ns or 0))
                    else:
                        points += max(int(count or 0) for count in values)
        if not times_ns:
            return None
        is_exact = all(len(schema.fields) == 1 for schema in schemas)
        return Extent(min(times_ns), max(times_ns) + 1, points, is_exact=is_exact)

    @_repeated
    def measurements(self, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the measurements with samples of these tenants, sorted."""
        return self._catalog.measurements(tenants)

    @_repeated
    def fields(self, measurement: str, *, tenants: tuple[str, ...] | None) -> dict[str, str]:
        """Return name to type of the fields with values of these tenants, sorted."""
        return self._catalog.fields(measurement, tenants)

    @_repeated
    def tags(self, measurement: str, *, tenants: tuple[str, ...] | None) -> list[str]:
        """Return the names of the tags of these tenants' samples, identity tags first."""
        return self._catalog.tags(measurement, tenants)

    @_repeated
    def tag_values(
        self, measurement: str, tag: str, *, tenants: tuple[str, ...] | None
    ) -> list[str]:
        """Return the distinct values of a tag, sorted."""
        return self._catalog.tag_values(measurement, tag, tenants)

    def delete_tenant(self, tenant: str) -> None:
        """Delete every sample of a tenant, including those still queued.

        Its database is dropped; the base may have samples from before it had one.
        """

        def delete() -> None:
            self._databases.drop(tenant)
            delete_tenant(self._connection, tenant)

        if tenant:
            self._writer.run(delete)

    def delete_before(self, before_ns: int, *, resolution: Resolution = Resolution.RAW) -> None:
        """Delete every sample older than `before_ns`; there are no roll-ups."""

        def delete() -> None:
            for name in self._databases.visible(None):
                delete_before(self._connection, before_ns, database=name)

        if resolution is Resolution.RAW:
            self._writer.run(delete)

    def maintain(  # the interface of all stores
        self,
        *,
        now_ns: int,  # noqa: ARG002
        needed: Collection[NeededField] = (),  # noqa: ARG002
    ) -> int:
        """Do nothing: this store has no roll-ups and answers every query from samples."""
        return 0

    def close(self) -> None:
        """Write queued points and close the connections."""
        self._writer.close()
        self._connection.close()

    def _points(self, query: ScanQuery, schema: MeasurementSchema) -> Iterator[Point]:
        tags = sorted(schema.tags)
        statement = scan_statement(query, schema, tags=tags)
        kinds = list(schema.fields.items())
        for series in self._connection.stream(statement) if statement else ():
            for row in series.values:
                yield _point(query.measurement, row, kinds, tags)


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
    present = {tag: decode_name(str(text)) for tag, text in zip(tags, texts, strict=True) if text}
    return Point(measurement, present, fields, int(row[0] or 0))


def _typed(value: FieldValue, kind: str) -> FieldValue:
    # JSON writes the float 5.0 as 5.
    return float(value) if kind == FieldType.FLOAT else value


def delete_tenant(connection: InfluxDBConnection, tenant: str) -> None:
    """Delete every sample of a tenant from the base."""
    if connection.has_buckets:
        text = encode_name(tenant).replace("\\", "\\\\").replace('"', '\\"')
        only = f'{TENANT_TAG}="{text}"'
        _delete(connection, "", start_ns=MIN_TIME_NS, end_ns=MAX_TIME_NS, only=only)
    else:
        _run(connection, drop_tenant_statement(tenant))


def delete_before(connection: InfluxDBConnection, before_ns: int, *, database: str) -> None:
    """Delete every sample of a database that is older than an instant."""
    if before_ns <= MIN_TIME_NS:
        return
    if connection.has_buckets:
        last_ns = min(before_ns - 1, MAX_TIME_NS)
        _delete(connection, database, start_ns=MIN_TIME_NS, end_ns=last_ns)
    else:
        last_ns = min(before_ns, MAX_TIME_NS)
        statement = f"DELETE FROM /.*/ WHERE time < {last_ns}"  # noqa: S608 - a number
        _run(connection, statement, database)


def _run(connection: InfluxDBConnection, statement: str, database: str = "") -> None:
    for _ in connection.query([statement], database=database):
        pass


def _delete(
    connection: InfluxDBConnection, database: str, *, start_ns: int, end_ns: int, only: str = ""
) -> None:
    """Delete a time range, including its end."""
    address = connection.address.of(database or connection.address.database)
    if connection.version >= _NO_DELETION:
        raise StoreUnavailableError(
            f"InfluxDB {connection.version[0]}.x at {address.host_port} can't delete samples. "
            "Set a retention period on its database."
        )
    body = {"start": _rfc3339(start_ns), "stop": _rfc3339(end_ns)}
    if only:
        body["predicate"] = only
    response = connection.post(
        "/api/v2/delete",
        json.dumps(body).encode(),
        query={"org": address.organization, "bucket": address.bucket},
        headers={"Content-Type": "application/json"},
    )
    if response.status != _SUCCESS:
        raise connection.error_of(response)


def _rfc3339(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
